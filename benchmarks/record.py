"""What a figure depends on, written beside it; nothing that names the machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("memplan", "numpy", "numba", "highspy")


def write_record(path: Path, command: str, rows: Sequence[object]) -> None:
    """Write ``rows`` with the command, the number of CPUs and versions, as JSON."""
    record = {
        "command": command,
        "cpu_count": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "results": list(rows),
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
