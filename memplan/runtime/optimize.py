"""What ONNX Runtime makes of a model: optimized offline, and as a session holds it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from memplan.runtime.measure import run_child

LEVELS = ("none", "basic", "extended")


def optimize_offline(model: Path, output: Path, level: str, provider: str) -> None:
    """Write ``model`` as the runtime's optimizer leaves it at ``level`` to ``output``.

    Fusions depend on the provider; the file may hold operators that only it can run.

    Args:
        model: an ONNX file.
        output: where to write.
        level: ``basic`` or ``extended``.
        provider: ``cpu`` or ``cuda``.

    Raises:
        RuntimeUnavailableError: the runtime refused the model or the provider is missing.
    """
    _save("optimize", model, output, provider, {"level": level}, f"optimizing {model.name}")


def save_as_loaded(model: Path, output: Path, session: str, provider: str) -> None:
    """Write ``model`` to ``output`` as a session of the given kind holds it.

    Nodes stand in the order in which a default session runs them.

    Args:
        model: an ONNX file.
        output: where to write.
        session: ``tuned`` or ``default``.
        provider: ``cpu`` or ``cuda``.

    Raises:
        RuntimeUnavailableError: the runtime refused the model or the provider is missing.
    """
    _save("load", model, output, provider, {"session": session}, f"loading {model.name}")


def _save(
    task: str, model: Path, output: Path, provider: str, more: Mapping[str, str], what: str
) -> None:
    """Let a child load ``model`` and write what the runtime made of it to ``output``."""
    request = {
        "task": task,
        "model": str(model),
        "output": str(output),
        "provider": provider,
        # Bound dimensions would be written into the file and change its interface.
        "dims": {},
        **more,
    }
    run_child(request, what)
