"""The command line of probes that run on the stub of the CUDA runtime, in a child process."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def run_on_stub(script: str, summary: str, probe: Callable[[Path], None]) -> int:
    """Build the stub and run ``script --child`` on it, which calls ``probe`` with ``--out``.

    The loader looks for libraries when a process starts, so the probe needs one of its own.
    """
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        probe(options.out)
        return 0
    sys.path.insert(0, str(ROOT))
    from tests.helpers import cuda_stub as stub

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(stub.build(Path(folder)))}
        command = [sys.executable, script, "--child", "--out", str(options.out)]
        return subprocess.run(command, env=environment).returncode
