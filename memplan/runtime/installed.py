"""Which ONNX Runtime is installed, without loading it; and what to do where it does not load."""

from __future__ import annotations

from functools import cache
from importlib import import_module, metadata

from memplan.errors import RuntimeUnavailableError

NAME = "onnxruntime"
_PACKAGES = ("onnxruntime-gpu", "onnxruntime")


def require_runtime() -> None:
    """Load it.

    Raises:
        RuntimeUnavailableError: it is not installed, or does not load.
    """
    try:
        import_module(NAME)
    except ImportError as error:
        raise missing_runtime(str(error)) from None


def missing_runtime(why: str) -> RuntimeUnavailableError:
    """The error that it does not load; ``why`` are Python's words."""
    hint = "pip install onnxruntime-gpu (or onnxruntime)"
    if "no module named 'onnxruntime'" in why.lower():
        return RuntimeUnavailableError("ONNX Runtime is not installed", hint)
    line = " ".join(why.split())[:200]
    return RuntimeUnavailableError(
        f"ONNX Runtime does not load: {line}", f"install it anew: {hint}"
    )


@cache
def installed_package() -> str:
    """Name and version of the installed distribution; empty where there is none. It is looked for
    once: that takes a twentieth of what a small model is analyzed in."""
    for name in _PACKAGES:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return ""


def installed_runtime() -> str:
    """``onnxruntime`` and the version that is installed, of any build; empty: none is."""
    _, _, version = installed_package().partition(" ")
    # Builds of one version carry local labels: 1.31.1+cu130.
    return f"{NAME} {version.partition('+')[0]}" if version else ""
