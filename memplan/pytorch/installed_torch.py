"""Is PyTorch there? Asked before anything of this room is imported."""

from __future__ import annotations

from importlib.util import find_spec

from memplan.errors import RuntimeUnavailableError

_NEEDED = ("torch", "onnxscript")


def require_torch() -> None:
    """Check that PyTorch and what its exporter needs can be imported.

    Raises:
        RuntimeUnavailableError: they are not installed.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise RuntimeUnavailableError(
            f"capture needs {' and '.join(missing)}, which this environment does not have",
            "pip install 'memplan[torch]'",
        )
