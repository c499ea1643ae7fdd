"""Whether this checkout says and writes what an earlier commit did, byte for byte.

    python tools/same_output.py REF

For a refactoring. The code of REF is laid out in a temporary folder; both run, with the Python that
runs this, on every sample model: ``analyze`` for tuned and plain sessions and for CUDA, the lock
that ``check --update`` writes and what ``check`` says of it, ``rewrite --strategy greedy`` for both
kinds of session, and ``grad`` on the part of each model that makes the loss. Text is compared after
the fields of ``IGNORED`` are taken out, files as they are. Exit code 0: all the same; 1: the
differences are listed.
"""

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DIMS = {"gpt_dynamic": ("--dim", "N=8")}
# What may differ: seconds, versions that a file or report states, and sentences for people.
_SECONDS = {f"{what}seconds" for what in ("", "planning_", "search_", "bound_", "total_")}
IGNORED = {*_SECONDS, "memplan_version", "runtime", "note"}
_VERSIONS = re.compile(rb"^accounting *=.*$", re.MULTILINE)
# Else an installed memplan might answer for both.
_START = (
    "import memplan, sys; tree = sys.argv.pop(1); assert memplan.__file__.startswith(tree), tree;"
    "from memplan_cli.main import run; run()"
)
_SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the program; ``made`` is the file that it writes beside what it prints."""

    name: str
    arguments: tuple[str, ...]
    made: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call printed, its exit code, and the bytes that it wrote."""

    exit_code: int
    text: str
    written: bytes | None


def cases(model: Path, forward: Path | None) -> Iterator[Case]:
    """The calls for one sample model; ``forward`` is its forward part, where it has a loss."""
    path, dims = model.name, DIMS.get(model.stem, ())
    as_json = ("--format", "json")
    write = ("-o", "out.onnx", "--force", *as_json)
    greedy = ("--budget", "70%", "--strategy", "greedy")
    adamw = ("--loss", "loss", "--wrt", "*weight*", "--optimizer", "adamw")
    for session in ("tuned", "default"):
        for provider in ("cpu", "cuda"):
            options = ("--session", session, "--provider", provider)
            call = ("analyze", path, *dims, *options, *as_json)
            yield Case(f"analyze {session} {provider}", call)
        call = ("rewrite", path, *dims, *greedy, "--session", session, *write)
        yield Case(f"rewrite {session}", call, "out.onnx")
    yield Case("lock", ("check", path, "--update", *dims, *as_json), "memplan.lock")
    yield Case("check", ("check", *as_json))
    if forward:
        yield Case("grad", ("grad", forward.name, *adamw, *write), "out.onnx")


def answer(tree: Path, folder: Path, case: Case) -> Answer:
    """Run one call with the code of ``tree``, in ``folder``."""
    made = folder / case.made if case.made else None
    if made and case.made != "memplan.lock":
        made.unlink(missing_ok=True)
    paths = os.pathsep.join([str(tree), str(tree / "cli")])
    done = subprocess.run(
        [sys.executable, "-c", _START, str(tree), *case.arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    written = made.read_bytes() if made and made.exists() else None
    if written is not None and case.made == "memplan.lock":
        written = _VERSIONS.sub(b"", written)
    return Answer(done.returncode, _comparable(done.stdout) or done.stderr, written)


def _comparable(text: str) -> str:
    """JSON without the fields that may differ; other text as it is."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if key not in IGNORED}
        return [without(item) for item in value] if isinstance(value, list) else value

    try:
        return json.dumps(without(json.loads(text)), indent=1)
    except ValueError:
        return text


def forward_part(model: Path, target: Path) -> Path | None:
    """The nodes of a training graph that its loss depends on, as a file; None without a loss."""
    import onnx

    step = onnx.load(model)
    graph = step.graph
    loss = next((output for output in graph.output if output.name == "loss"), None)
    if loss is None:
        return None
    needed, nodes = {loss.name}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.append(node)
    kept = {
        "node": nodes[::-1],
        "output": [loss],
        "input": [value for value in graph.input if value.name in needed],
        "initializer": [value for value in graph.initializer if value.name in needed],
    }
    for field, values in kept.items():
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)
    graph.ClearField("value_info")
    onnx.save(step, target)
    return target


def differences(before: Answer, after: Answer) -> list[str]:
    """What differs, in lines to print; none when all is the same."""
    found = []
    if before.exit_code != after.exit_code:
        found.append(f"exit code {before.exit_code} -> {after.exit_code}")
    if before.text != after.text:
        lines = difflib.unified_diff(before.text.splitlines(), after.text.splitlines(), n=0)
        found += [line for line in lines if not line.startswith(("---", "+++"))][:_SHOWN_LINES]
    if before.written != after.written:
        sizes = [len(answer.written or b"") for answer in (before, after)]
        found.append(f"the file written differs: {sizes[0]} B -> {sizes[1]} B")
    return found


def compare(reference: Path, models: list[Path]) -> int:
    """Print a line per call and the differences; how many calls differ."""
    different = 0
    for model in models:
        with tempfile.TemporaryDirectory() as scratch:
            folders = [Path(scratch) / side for side in ("before", "after")]
            for folder in folders:
                folder.mkdir()
                (folder / model.name).write_bytes(model.read_bytes())
                forward = forward_part(model, folder / f"{model.stem}_forward.onnx")
            for case in cases(model, forward):
                before, after = (
                    answer(tree, folder, case)
                    for tree, folder in zip((reference, ROOT), folders, strict=True)
                )
                found = differences(before, after)
                different += bool(found)
                wrote = "" if before.written is None else f", {len(before.written)} B written"
                state = "DIFFERS" if found else f"same (exit {before.exit_code}{wrote})"
                print(f"{model.name}: {case.name}: {state}", flush=True)
                for line in found:
                    print(f"    {line}")
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
            different = compare(tree, models)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    print(f"{different} calls differ" if different else "all the same")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
