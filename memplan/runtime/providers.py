"""Names of the execution providers; importable without ONNX Runtime."""

PROVIDER_NAMES = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
PROVIDERS = tuple(PROVIDER_NAMES)
