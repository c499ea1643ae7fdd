"""What ONNX Runtime makes of a model: optimized offline, and as a session holds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from memplan.runtime.measure import run_child
from memplan.runtime.messages import LoadTask, OptimizeTask, RunRequest, Saved


def optimize_offline(
    model: Path,
    output: Path,
    provider: str,
    weights: Path | None = None,
    disabled: Sequence[str] = (),
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

    Raises:
        RuntimeUnavailableError: the runtime refused the model or the provider is missing.
    """
    # Bound dimensions would be written into the file and change its interface.
    request = RunRequest("default", provider)
    task = OptimizeTask(str(model), request, str(output), _text(weights), tuple(disabled))
    run_child(task, Saved, f"optimizing {model.name}")


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
    task = LoadTask(str(model), request, str(output), _text(weights), portable, session == "tuned")
    return run_child(task, Saved, f"loading {model.name}")


def channels_per_block(folder: Path) -> int:
    """Channels per block of the CPU's convolution layout on this processor.

    Seen from what the runtime makes of the weights of a convolution with a single channel.

    Args:
        folder: for temporary files.

    Raises:
        RuntimeUnavailableError: the runtime does not start.
    """
    import onnx
    from onnx import helper

    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, [1, 3, 1, 1], [1.0] * 3)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "one_channel",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 1, 1])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1, 1, 1])],
        [weight],
    )
    path, saved = folder / "one_channel.onnx", folder / "one_channel_loaded.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    save_as_loaded(path, saved, "default", "cpu")
    return max(int(tensor.dims[0]) for tensor in onnx.load(saved).graph.initializer)


def _text(weights: Path | None) -> str | None:
    return None if weights is None else str(weights.parent.resolve())
