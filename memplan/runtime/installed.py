"""Which ONNX Runtime is installed, without loading it."""

from __future__ import annotations

from importlib import metadata

NAME = "onnxruntime"
_PACKAGES = ("onnxruntime-gpu", "onnxruntime")


def installed_package() -> str:
    """Name and version of the installed distribution; empty where there is none."""
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
