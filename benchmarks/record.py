"""What a figure depends on, written beside it; nothing that names the machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "memplan",
    "numpy",
    "numba",
    "highspy",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "torch",
)


def write_record(path: Path, command: str, rows: Sequence[object]) -> None:
    """Write ``rows`` with the command, the number of CPUs and versions, as JSON."""
    record = {
        "command": command,
        "cpu_count": os.cpu_count(),
        "versions": versions(),
        "results": list(rows),
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are installed, of those that figures may depend
    on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
