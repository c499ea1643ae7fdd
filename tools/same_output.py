"""Whether this checkout says and writes what an earlier commit did, byte for byte.

    python tools/same_output.py REF

For a refactoring. The code of REF is laid out in a temporary folder; both run, with the Python that
runs this, on every sample model: ``analyze`` for tuned and plain sessions and for CUDA, the lock
that ``check --update`` writes and what ``check`` says of it, ``rewrite --strategy greedy`` for both
kinds of session, and ``grad`` on the part of each model that makes the loss. Text is compared
without the fields of ``IGNORED``, files as they are. Exit code 0: all the same; 1: the differences
are listed.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parent.parent
DIMS = {"gpt_dynamic": "--dim N=8"}
# What may differ: seconds, versions that a file or report states, and sentences for people.
IGNORED = re.compile(rb'^ *("(\w*seconds|memplan_version|runtime|note)": |accounting *=).*\n', re.M)
# Else an installed memplan might answer for both.
_START = (
    "import memplan, sys; tree = sys.argv.pop(1); assert memplan.__file__.startswith(tree), tree;"
    "from memplan_cli.main import run; run()"
)
_SHOWN_LINES = 12


def calls(model: str, dims: str, forward: str) -> Iterator[str]:
    """The calls for one sample model; ``forward`` is its forward part, where it has a loss."""
    write = "-o out.onnx --force"
    for session in ("tuned", "default"):
        for provider in ("cpu", "cuda"):
            yield f"analyze {model} {dims} --session {session} --provider {provider}"
        yield f"rewrite {model} {dims} --budget 70% --strategy greedy --session {session} {write}"
    yield f"check {model} --update {dims}"
    yield "check"
    if forward:
        yield f"grad {forward} --loss loss --wrt *weight* --optimizer adamw {write}"


def answer(tree: Path, folder: Path, call: str) -> dict[str, bytes]:
    """What one call with the code of ``tree`` says, in ``folder``, and the files that it writes."""
    made = [folder / "out.onnx", folder / "memplan.lock"]
    made[0].unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", _START, str(tree), *call.split(), "--format", "json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'cli'}", "COLUMNS": "120"},
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    said = IGNORED.sub(b"", done.stdout or done.stderr)
    found = {"exit code": b"%d" % done.returncode, "text": said}
    written = {path.name: path.read_bytes() for path in made if path.exists()}
    return found | {name: IGNORED.sub(b"", data) for name, data in written.items()}


def differences(before: dict[str, bytes], after: dict[str, bytes]) -> Iterator[str]:
    """What differs, in lines to print; none when all is the same."""
    for name in sorted({*before, *after}):
        old, new = before.get(name, b""), after.get(name, b"")
        if old != new and name.endswith(".onnx"):
            yield f"{name} differs: {len(old)} B -> {len(new)} B"
        elif old != new:
            lines = (text.decode().splitlines() for text in (old, new))
            yield from list(difflib.unified_diff(*lines, name, name, n=0))[: _SHOWN_LINES + 2]


def compare(reference: Path, model: Path) -> int:
    """Print a line per call and the differences; how many calls differ."""
    different = 0
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / side for side in ("before", "after")]
        step, forward = onnx.load(model), ""
        if "loss" in {output.name for output in step.graph.output}:
            forward = f"{model.stem}_forward.onnx"
        for folder in folders:
            folder.mkdir()
            (folder / model.name).write_bytes(model.read_bytes())
            if forward:
                inputs = [value.name for value in step.graph.input]
                onnx.utils.extract_model(model, folder / forward, inputs, ["loss"])
        for call in calls(model.name, DIMS.get(model.stem, ""), forward):
            trees = zip((reference, ROOT), folders, strict=True)
            before, after = (answer(tree, folder, call) for tree, folder in trees)
            found = list(differences(before, after))
            different += bool(found)
            kept = ", ".join(f"{name} {len(data)} B" for name, data in before.items())
            print(f"{call}: {'DIFFERS' if found else f'same ({kept})'}", *found, sep="\n    ")
    return different


def main() -> int:
    """Read the command line, lay out REF, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", help="the commit to compare with")
    parser.add_argument("--model", action="append", type=Path, help="instead of all sample models")
    options = parser.parse_args()
    models = options.model or sorted((ROOT / "sample_models").glob("*.onnx"))
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "reference"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), options.ref], check=True)
        try:
            different = sum(compare(tree, model) for model in models)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    print(f"{different} calls differ" if different else "all the same")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
