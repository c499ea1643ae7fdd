"""The execution providers: what sets one apart from another stands here.

Importable without ONNX Runtime. Which kernels a provider has, and what these do with memory, is in
the tables of ``memplan.ops``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Provider:
    """How sessions get a provider, and what can be seen of it.

    ``title``: what sentences call it. ``runtime_name``: ONNX Runtime's name. ``device``: where an
    ``OrtValue`` in its memory lies. ``settings``: options that every session gives it.
    ``profiling``: environment under which its nodes are timed. ``counts``: whether its profile says
    what memory it uses. ``plugin``: the module that brings its library, where the runtime does not;
    ``cure``: what to install where it does not start.
    """

    title: str
    runtime_name: str
    device: str
    settings: Mapping[str, str] = field(default_factory=dict)
    profiling: Mapping[str, str] = field(default_factory=dict)
    counts: bool = True
    plugin: str = ""
    cure: str = ""


PROVIDERS: Mapping[str, Provider] = {
    "cpu": Provider("the CPU", "CPUExecutionProvider", "cpu"),
    "cuda": Provider(
        "CUDA",
        "CUDAExecutionProvider",
        "cuda",
        # A launch returns before its kernel has ended, and the profiler looks at the host's clock.
        profiling={"CUDA_LAUNCH_BLOCKING": "1"},
        cure="install onnxruntime-gpu, an NVIDIA driver, CUDA 13 and cuDNN 9 (pip: "
        "nvidia-cuda-runtime nvidia-cublas nvidia-cufft nvidia-curand nvidia-cudnn-cu13), or use "
        "--provider cpu; 'memplan device' says what is there",
    ),
    "webgpu": Provider(
        "WebGPU",
        "WebGpuExecutionProvider",
        "webgpu",
        # Else convolutions get another layout and new nodes, whatever the optimization level.
        settings={"preferredLayout": "NCHW"},
        counts=False,
        plugin="onnxruntime_ep_webgpu",
        cure="pip install onnxruntime onnxruntime-ep-webgpu (without onnxruntime-gpu) and, on "
        "Linux, Vulkan's loader (libvulkan1) and a driver (docs/any-gpu.md); or use --provider cpu",
    ),
}


def on_host(provider: str) -> bool:
    """Whether a provider works in the host's memory: no node falls back, and nothing is copied."""
    return PROVIDERS[provider].device == "cpu"
