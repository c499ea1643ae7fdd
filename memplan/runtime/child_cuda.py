"""What a child process measures on CUDA beside the rest: counted bytes, arenas, the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from memplan.runtime.bound import placed
from memplan.runtime.counting import CountingAllocator
from memplan.runtime.gpu import find_gpu, free_bytes
from memplan.runtime.messages import Started
from memplan.runtime.providers import PROVIDER_NAMES
from memplan.runtime.sessions import run_step

PROVIDER = PROVIDER_NAMES["cuda"]
TIGHT_ARENA = {"arena_extend_strategy": "kSameAsRequested"}
"""Provider options that keep the arena near what is asked for."""

MakeSession = Callable[[Mapping[str, str]], Any]
"""A session with further options of the provider."""


def device_free() -> int | None:
    """Free bytes of the device, with or without a context in this process."""
    gpu = find_gpu()
    return None if isinstance(gpu, str) or gpu.free_bytes is None else gpu.free_bytes


def counted_peak(make: MakeSession, feeds: Mapping[str, Any]) -> int:
    """Bytes at the peak of one run on an allocator that counts: initializers, inputs copied to the
    device, tensors and kernel workspace."""
    allocator = CountingAllocator()
    session = make(allocator.provider_options())
    allocator.start()
    run_step(session, feeds)
    result = allocator.peak_bytes
    del session  # frees through the allocator, which must still be there
    return result


def resident_step(session: Any, feeds: Mapping[str, Any]) -> Callable[[], None]:
    """One step with inputs and outputs that stay on the device, as a training loop has them.

    Returns when the device has ended the step. With ``session.run`` every step would copy all
    parameters to the device and all gradients back.
    """
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, placed(value, ("cuda", 0)))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda", 0)

    def step() -> None:
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return step


def trivial_model() -> bytes:
    """A product of two matrices: it needs a kernel library, so all of the runtime must be there."""
    value = helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "trivial",
        [value("x", kind, [8, 8])],
        [value("y", kind, [8, 8])],
        [numpy_helper.from_array(np.ones((8, 8), np.float32), "w")],
    )
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return bytes(model.SerializeToString())


def start_provider(provider: str) -> Started:
    """Run a trivial model on ``provider`` alone; what that took of the device.

    Raises:
        RuntimeError: the provider did not start, or the node ran elsewhere.
    """
    before = device_free() if provider == PROVIDER else None
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(trivial_model(), options, providers=[provider])
    if session.get_providers()[0] != provider:
        raise RuntimeError(f"{provider} did not start; the session fell back to the CPU")
    session.disable_fallback()
    x = np.ones((8, 8), np.float32)
    y = session.run(None, {"x": x})[0]
    after = device_free() if provider == PROVIDER else None
    return Started(
        version=ort.__version__,
        right=bool(np.array_equal(y, x @ x)),
        taken_bytes=None if before is None or after is None else before - after,
        free_bytes=free_bytes() if provider == PROVIDER else None,
    )
