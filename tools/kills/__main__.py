"""Commands that are killed in the moment of writing: is every file old or new, and whole?

    python tools/kills --kills 20 --seed 1

ends each command by SIGKILL at moments spread over all that it does to files: in the middle of a
write, before and behind every fsync, link, rename and removal. Half of the runs replace outputs
that are there. After each, every output is to hold all of the old or all of the new; and the same
command once more is to end well and to leave nothing else in the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from hook import Moments
from scenes import SCENES, Scene, content, make_inputs

from memplan_cli.main import cli

_SEEN = "moments.json"
_LOADED = (
    *(
        "memplan.api.grad.differentiate",
        "memplan.api.lower.lowered",
        "memplan.api.rewrite.rewriting",
    ),
    *(
        "memplan.training.train",
        "memplan.runtime.training_session",
        "memplan.solver.search.anytime",
    ),
    *(f"memplan_cli.{command}" for command in ("grad", "lower", "rewrite", "run")),
    *("memplan.report.terminal.grad_text", "memplan.report.terminal.lowered_text"),
    *("memplan.report.terminal.rewrite_text", "memplan.report.terminal.training"),
)


def main() -> int:
    """Kill; 1 if a file was damaged or something was left."""
    parser = argparse.ArgumentParser(prog="tools/kills", description=__doc__)
    parser.add_argument("--command", choices=[*SCENES, "all"], default="all")
    parser.add_argument("--kills", type=int, default=20, help="per command")
    parser.add_argument("--seed", type=int, default=1, help="other weights")
    options = parser.parse_args()
    for module in _LOADED:  # once, not in every child
        import_module(module)
    bad = 0
    for name in SCENES if options.command == "all" else (options.command,):
        begun = time.monotonic()
        faults, moments = killed(SCENES[name], options.kills, options.seed)
        told = ", ".join(f"{what}: {count}" for what, count in sorted(moments.items()))
        print(
            f"{name}: {sum(moments.values())} kills ({told}), {len(faults)} faults, "
            f"{time.monotonic() - begun:.0f} s",
            flush=True,
        )
        for fault in faults:
            print(f"  {fault}")
        bad += len(faults)
    return int(bad > 0)


def killed(scene: Scene, kills: int, seed: int) -> tuple[list[str], Counter[str]]:
    """What was found wrong after so many kills, and the moments in which they came."""
    faults: list[str] = []
    moments: Counter[str] = Counter()
    for there in (True, False):
        share = kills // 2 if there else kills - kills // 2
        with _folder() as folder:
            old = _prepared(scene, folder, seed, there)
            seen = _moments(scene, folder)
            new = {name: content(folder / name) for name in scene.outputs}
            files = {path.name for path in folder.iterdir()}
        for k in range(share):
            last = 1 + k * len(seen) // share
            with _folder() as folder:
                _prepared(scene, folder, seed, there)
                status = _ended(scene, folder, last)
                moments[seen[last - 1]] += 1
                where = f"moment {last} of {len(seen)} ({seen[last - 1]}), {len(old)} files before"
                if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
                    faults.append(f"{where}: not killed, status {status}")
                faults += [f"{where}: {f}" for f in _damage(folder, scene, old, new)]
                if _ended(scene, folder, None) != 0:
                    faults.append(f"{where}: the command does not run again")
                faults += [f"{where}, again: {f}" for f in _damage(folder, scene, new, new)]
                left = [path.name for path in folder.iterdir()]
                if len(left) != len(files):  # weights beside a model may have another name
                    faults.append(f"{where}: {sorted(left)} are left, not {sorted(files)}")
    return faults, moments


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="memplan-kills-") as made:
        yield Path(made).resolve()


def _prepared(scene: Scene, folder: Path, seed: int, there: bool) -> dict[str, str]:
    """The inputs, and outputs of other inputs if they are to be ``there``; what these hold."""
    if there:
        kept = _OLD.get((scene, seed))
        if kept is None:
            make_inputs(folder, scene, seed + 1)
            assert _ended(scene, folder, None) == 0
            kept = {path.name: path.read_bytes() for path in folder.iterdir()}
            _OLD[scene, seed] = kept
        for name, data in kept.items():
            (folder / name).write_bytes(data)
    make_inputs(folder, scene, seed)
    return {name: content(folder / name) for name in scene.outputs if there}


_OLD: dict[tuple[Scene, int], dict[str, bytes]] = {}


def _damage(folder: Path, scene: Scene, old: dict[str, str], new: dict[str, str]) -> list[str]:
    """The outputs that are neither old nor new."""
    found = []
    for name in scene.outputs:
        path = folder / name
        if not path.exists():
            if name in old:
                found.append(f"{name} is gone")
            continue
        try:
            held = content(path)
        except Exception as error:
            found.append(f"{name} is damaged: {error}")
            continue
        # A checkpoint in the middle of a run is neither, and whole.
        if held not in (old.get(name), new[name]) and not name.endswith(".npz"):
            found.append(f"{name} is neither old nor new")
    return found


def _moments(scene: Scene, folder: Path) -> list[str]:
    """The moments of an undisturbed run."""
    seen = folder / _SEEN
    assert _ended(scene, folder, None, seen) == 0
    found: list[str] = json.loads(seen.read_text())
    seen.unlink()
    return found


def _ended(scene: Scene, folder: Path, last: int | None, seen: Path | None = None) -> int:
    """How the command ended in a child, which is killed at its ``last`` moment."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    code = 70
    try:
        os.chdir(folder)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        moments = Moments(folder, last)
        moments.watch()
        code = _called([*scene.arguments, "--force"])
        if seen is not None:
            seen.write_text(json.dumps(moments.seen))
    finally:
        os._exit(code)


def _called(arguments: Sequence[str]) -> int:
    result = cli.main(list(arguments), prog_name="memplan", standalone_mode=False)
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
