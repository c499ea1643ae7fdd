"""What ONNX Runtime makes of a model: optimized offline, and as a session holds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx.parser

from memplan.runtime.measure import run_child
from memplan.runtime.messages import RunRequest, Saved

_ONE_CHANNEL = """<ir_version: 8, opset_import: ["" : 17]>
one_channel (float[1, 3, 1, 1] x) => (float[1, 1, 1, 1] y) <float[1, 3, 1, 1] w = {1, 1, 1}>
{ y = Conv(x, w) }"""


def optimize_offline(
    model: Path,
    output: Path,
    provider: str,
    weights: Path | None = None,
    disabled: Sequence[str] = (),
    time_limit: float | None = None,
) -> None:
    """Write ``model`` as the runtime's optimizer leaves it at the level *extended* to ``output``.

    External data is neither read nor copied: the result refers to it as ``model`` does.

    Fusions depend on the provider; the file may hold operators that only it can run.

    Args:
        model: an ONNX file.
        output: where to write.
        provider: ``cpu`` or ``cuda``.
        weights: the model beside which external data lies, if not ``model``.
        disabled: optimizers to leave out, by the runtime's names.
        time_limit: seconds after which it is stopped; None: never. The runtime's optimizer takes
            the square of some graphs' size: more than six minutes for a chain of 100,000 nodes.

    Raises:
        RuntimeUnavailableError: the runtime refused the model, took too long, or the provider is
            missing.
    """
    # Bound dimensions would be written into the file and change its interface.
    request = RunRequest("default", provider)
    what = f"optimizing {model.name}"
    arguments = (model, output, weights, tuple(disabled))
    run_child("optimize", request, what, *arguments, time_limit=time_limit)


def save_as_loaded(
    model: Path,
    output: Path,
    session: str,
    provider: str,
    *,
    weights: Path | None = None,
    portable: bool = False,
) -> Saved:
    """Write ``model`` to ``output`` as a session of the given kind holds it; nothing is run.

    Nodes stand in the order in which a default session runs them. For a tuned session, which runs
    them by index, the answer names them in that order.

    Args:
        model: an ONNX file.
        output: where to write.
        session: ``tuned`` or ``default``.
        provider: ``cpu`` or ``cuda``.
        weights: the model beside which external data lies, if not ``model``.
        portable: leave out layouts that depend on the processor, so that the answer is the same
            on any machine with this version of the runtime.

    Raises:
        RuntimeUnavailableError: the runtime refused the model or the provider is missing.
    """
    request = RunRequest(session, provider)
    what = f"loading {model.name}"
    found: Saved = run_child("load", request, what, model, output, weights, portable)
    return found


def channels_per_block(folder: Path) -> int:
    """Channels per block of the CPU's convolution layout on this processor.

    Seen from what the runtime makes of the weights of a convolution with a single channel.

    Args:
        folder: for temporary files.

    Raises:
        RuntimeUnavailableError: the runtime does not start.
    """
    path, saved = folder / "one_channel.onnx", folder / "one_channel_loaded.onnx"
    onnx.save(onnx.parser.parse_model(_ONE_CHANNEL), path)
    save_as_loaded(path, saved, "default", "cpu")
    return max(int(tensor.dims[0]) for tensor in onnx.load(saved).graph.initializer)
