"""The lowest versions that pyproject.toml allows, tried once from end to end.

    python tools/lower_bounds.py

Makes a virtual environment with memplan and the lowest version of every dependency, and takes a
small model through it: analyze in both kinds of session, rewrite, validate, check. It takes minutes
and a package index; run it once when a bound changes. Exit code 1: something fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_REQUIREMENT = re.compile(
    r"^(?P<name>[A-Za-z0-9_.-]+)\s*>=\s*(?P<version>[0-9.]+)[^;]*(?P<when>;.*)?$"
)
_STEP = """
import onnx, onnx.parser
text = '''<ir_version: 9, opset_import: ["" : 17]>
g (float[64,256] x, float[256,256] w, float[256,256] v) => (float loss, float[256,256] dv) {
  a = MatMul(x, w)  b = Tanh(a)  c = Exp(b)  d = MatMul(c, v)  e = Sin(d)
  loss = ReduceMean <keepdims = 0> (e)  f = Cos(d)  t = Transpose <perm = [1, 0]> (c)
  dv = MatMul(t, f)
}'''
onnx.save(onnx.parser.parse_model(text), "step.onnx")
"""
_COMMANDS = (
    ("analyze", "step.onnx"),
    ("analyze", "step.onnx", "--session", "default"),
    ("rewrite", "step.onnx", "--budget", "100%", "--strategy", "greedy", "-o", "fits.onnx"),
    ("validate", "step.onnx", "fits.onnx", "--runs", "1"),
    ("check", "--update", "step.onnx"),
    ("check",),
    ("sweep", "step.onnx", "--budget", "100%", "--strategy", "greedy"),
    ("device",),
)


def lowest(requirements: list[str]) -> list[str]:
    """Every requirement with a lower bound, pinned to it; conditions are kept.

    Raises:
        ValueError: a requirement has no lower bound.
    """
    pinned = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            raise ValueError(f"'{requirement}' has no lower bound that could be tried")
        pinned.append(f"{match['name']}=={match['version']}.*{match['when'] or ''}")
    return pinned


def main() -> int:
    """Make the environment and run the commands; 1 if one of them fails."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        wanted = lowest(tomllib.load(file)["project"]["dependencies"])
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        programs = place / "venv" / "bin"
        python = str(programs / "python")
        print("\n".join(wanted), flush=True)
        install = [python, "-m", "pip", "install", "-q", *wanted, str(ROOT)]
        if subprocess.run(install).returncode:
            return 1
        calls = [[python, "-c", _STEP], *([str(programs / "memplan"), *c] for c in _COMMANDS)]
        for call in calls:
            done = subprocess.run(call, cwd=place, capture_output=True, text=True)
            print(
                "ok  " if not done.returncode else "FAIL",
                " ".join(call[1:3]).splitlines()[0],
                flush=True,
            )
            if done.returncode:
                print(done.stdout + done.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
