"""What ONNX Runtime makes of a model: optimized offline, and as a session holds it."""

from __future__ import annotations

from pathlib import Path

from memplan.runtime.measure import run_child
from memplan.runtime.messages import LoadTask, OptimizeTask, RunRequest, Saved


def optimize_offline(
    model: Path, output: Path, level: str, provider: str, weights: Path | None = None
) -> None:
    """Write ``model`` as the runtime's optimizer leaves it at ``level`` to ``output``.

    External data is neither read nor copied: the result refers to it as ``model`` does.

    Fusions depend on the provider; the file may hold operators that only it can run.

    Args:
        model: an ONNX file.
        output: where to write.
        level: ``basic`` or ``extended``.
        provider: ``cpu`` or ``cuda``.
        weights: the model beside which external data lies, if not ``model``.

    Raises:
        RuntimeUnavailableError: the runtime refused the model or the provider is missing.
    """
    # Bound dimensions would be written into the file and change its interface.
    request = RunRequest("default", provider)
    task = OptimizeTask(str(model), request, str(output), level, _text(weights))
    run_child(task, Saved, f"optimizing {model.name}")


def save_as_loaded(
    model: Path, output: Path, session: str, provider: str, weights: Path | None = None
) -> None:
    """Write ``model`` to ``output`` as a session of the given kind holds it.

    Nodes stand in the order in which a default session runs them.

    Args:
        model: an ONNX file.
        output: where to write.
        session: ``tuned`` or ``default``.
        provider: ``cpu`` or ``cuda``.
        weights: the model beside which external data lies, if not ``model``.

    Raises:
        RuntimeUnavailableError: the runtime refused the model or the provider is missing.
    """
    task = LoadTask(str(model), RunRequest(session, provider), str(output), _text(weights))
    run_child(task, Saved, f"loading {model.name}")


def _text(weights: Path | None) -> str | None:
    return None if weights is None else str(weights.parent.resolve())
