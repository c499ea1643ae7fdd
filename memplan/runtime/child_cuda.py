"""What a child process measures on CUDA beside the rest: counted bytes, arenas, the device.

Tested over a stub of the CUDA runtime, never on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort

from memplan.runtime.bound import placed
from memplan.runtime.counting import CountingAllocator
from memplan.runtime.gpu import free_bytes, unused_bytes
from memplan.runtime.messages import RunRequest, Start
from memplan.runtime.sessions import open_session, run_step

TIGHT_ARENA = {"arena_extend_strategy": "kSameAsRequested"}
"""Provider options that keep the arena near what is asked for."""

MakeSession = Callable[[Mapping[str, str]], Any]
"""A session with further options of the provider."""


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
        binding.bind_ortvalue_input(name, placed(value, "cuda"))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda", 0)

    def step() -> None:
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return step


# A product of two matrices: it needs a kernel library, so all of the runtime must be there.
_TRIVIAL = """<ir_version: 8, opset_import: ["" : 17]>
trivial (float[8, 8] x) => (float[8, 8] y) { y = MatMul(x, x) }"""


def start_provider(request: RunRequest) -> Start:
    """Run a trivial model on the provider that is asked for alone; what that took of the device.

    Raises:
        RuntimeError: the provider did not start, or the node ran elsewhere.
    """
    before = unused_bytes(request.provider)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = open_session(onnx.parser.parse_model(_TRIVIAL).SerializeToString(), request, options)
    x = np.ones((8, 8), np.float32)
    y = session.run(None, {"x": x})[0]
    after = unused_bytes(request.provider)
    return Start(
        provider=request.provider,
        problem="",
        right=bool(np.array_equal(y, x @ x)),
        taken_bytes=None if before is None or after is None else before - after,
        free_bytes=free_bytes() if request.provider == "cuda" else None,
    )
