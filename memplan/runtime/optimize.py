"""Let ONNX Runtime optimize a model offline, so that fusions are in the file that is planned."""

from __future__ import annotations

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
    run_child(
        {
            "task": "optimize",
            "model": str(model),
            "output": str(output),
            "level": level,
            "provider": provider,
            # Bound dimensions would be written into the file and change its interface.
            "dims": {},
        },
        f"optimizing {model.name}",
    )
