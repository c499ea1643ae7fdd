"""The release, built twice and tried in empty environments, one for each Python.

    python tools/try_release.py --python 3.11 --python 3.12 --python 3.13

Builds sdist and wheel (in an environment of its own, with `build` and `twine`) and compares the
bytes of two builds. The wheel must hold the packages and nothing else, the sdist every file that
its tests need. Then, for each Python: the wheel is installed alone, `memplan --help` is timed, the
commands of the README run in the unpacked sdist, and so do the quick tests against the installed
wheel. It takes minutes per Python and a package index. Exit code 1: something fails, or a Python is
not there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
HELP_SECONDS = 0.15
_HELP_RUNS = 20
# What the benchmarks' records name, of another Python: run there, as nothing else is installed.
_VERSIONS = "import json, runpy, sys; print(json.dumps(runpy.run_path(sys.argv[1])['versions']()))"
_PACKAGES = {"memplan": "memplan", "cli/memplan_cli": "memplan_cli"}
_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)


class FailedError(Exception):
    """A part of the trial failed; the message says which."""


@dataclass(frozen=True, slots=True)
class Release:
    """What a build makes."""

    wheel: Path
    sdist: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, compare and try; 1 if anything fails."""
    sys.stdout.reconfigure(line_buffering=True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", help="a version or a path; repeatable")
    parser.add_argument("--dist", type=Path, help="try what lies in this folder; build nothing")
    parser.add_argument("--out", type=Path, help="copy the built files to this folder")
    parser.add_argument("--build-only", action="store_true", help="build and check; try nothing")
    parser.add_argument("--no-tests", action="store_true", help="leave out the quick tests")
    parser.add_argument("--json", type=Path, help="put what came of it into this file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        try:
            release = found(options.dist) if options.dist else build(Path(folder))
            check_contents(release)
            if options.out:
                options.out.mkdir(parents=True, exist_ok=True)
                for file in (release.wheel, release.sdist):
                    shutil.copy(file, options.out)
        except FailedError as error:
            print(f"FAIL {error}")
            return 1
        failed = 0
        pythons = () if options.build_only else options.python or PYTHONS
        for number, wanted in enumerate(pythons):
            row: dict[str, object] = {"wanted": wanted, "failed": None}
            try:
                place = Path(folder) / f"python{number}"
                for said, figures in tried(release, wanted, place, options):
                    print(f"python {wanted}: {said}")
                    row |= figures
            except FailedError as error:
                print(f"python {wanted}: FAIL {error}")
                row["failed"] = str(error)
                failed = 1
            if options.json:
                write_record(options.json, row)
        return failed


def write_record(path: Path, row: dict[str, object]) -> None:
    """Put what came of one Python into a record, in place of what the record says of it."""
    rows = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    rows = [each for each in rows if each["wanted"] != row["wanted"]]
    record = {
        "command": "python tools/try_release.py --json FILE",
        "cpu_count": os.cpu_count(),
        "results": sorted([*rows, row], key=lambda each: str(each["wanted"])),
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def found(folder: Path) -> Release:
    """The one wheel and the one sdist in a folder."""
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        raise FailedError(f"expected one wheel and one sdist in {folder}")
    return Release(wheels[0].resolve(), sdists[0].resolve())


def build(folder: Path) -> Release:
    """Build twice, with the time of the last commit, and compare the bytes."""
    tools = _environment(folder / "tools", sys.executable)
    _run([tools / "pip", "install", "-q", "build", "twine"], "pip install build twine")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time()}
    made = []
    for name in ("first", "second"):
        out = folder / name
        _run([tools / "python", "-m", "build", "-o", out, ROOT], "build", env=environment)
        made.append(found(out))
    for one, other in zip(_files(made[0]), _files(made[1]), strict=True):
        digest = hashlib.sha256(one.read_bytes()).hexdigest()
        if digest != hashlib.sha256(other.read_bytes()).hexdigest():
            raise FailedError(f"two builds of {one.name} differ")
        print(f"{one.name}: {one.stat().st_size:,} B, the same bytes twice, sha256 {digest}")
    _run([tools / "twine", "check", "--strict", *_files(made[0])], "twine check")
    return made[0]


def commit_time() -> str:
    """Seconds since 1970 of the last commit, or ``SOURCE_DATE_EPOCH`` where it is set."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    done = _run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], "git log")
    return done.stdout.strip()


def check_contents(release: Release) -> None:
    """Hold wheel and sdist against the files that the sources are.

    Raises:
        FailedError: the wheel has more or less than the packages, or the sdist lacks a source.
    """
    sources = sorted(_sources())
    with zipfile.ZipFile(release.wheel) as wheel:
        packed = {n for n in wheel.namelist() if not n.split("/")[0].endswith(".dist-info")}
    wanted = {
        f"{name}{path.removeprefix(folder)}"
        for path in sources
        for folder, name in _PACKAGES.items()
        if path.startswith(f"{folder}/")
    }
    if packed != wanted:
        raise FailedError(f"the wheel differs from the packages: {_some(packed ^ wanted)}")
    with tarfile.open(release.sdist) as archive:
        unpacked = {each.name.partition("/")[2] for each in archive if each.isfile()}
    missing = {path for path in sources if _in_sdist(path)} - unpacked
    if missing:
        raise FailedError(f"the sdist lacks {_some(missing)}")
    unknown = unpacked - set(sources) - {"PKG-INFO"}
    if unknown:
        raise FailedError(f"the sdist has files that are not committed: {_some(unknown)}")
    print(f"wheel: {len(packed)} files of the packages; sdist: {len(unpacked)} files")


def readme_commands() -> tuple[tuple[str, ...], ...]:
    """The commands of memplan in the README's block that begins with an environment."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for block in _BLOCK.findall(text):
        calls = re.findall(r"^\.venv/bin/memplan (.+?)(?: &&)?$", block, re.MULTILINE)
        if calls and "python3 -m venv" in block:
            return tuple(tuple(call.split()) for call in calls)
    raise FailedError("no block of the README makes an environment and calls memplan in it")


def tried(
    release: Release, wanted: str, folder: Path, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, object]]]:
    """Install, time ``--help``, run the README's commands and the quick tests: what came of it, in
    words and for the record."""
    python = interpreter(wanted)
    if python is None:
        raise FailedError("not found on this machine")
    programs = _environment(folder / "venv", python)
    environment = {**os.environ, "MEMPLAN_CACHE_DIR": str(folder / "cache")}
    environment.pop("PYTHONPATH", None)
    begin = time.monotonic()
    _run([programs / "pip", "install", "-q", release.wheel], "pip install")
    said = f"installed in {time.monotonic() - begin:.0f} s"
    versions = [programs / "python", "-c", _VERSIONS, ROOT / "benchmarks" / "record.py"]
    digest = hashlib.sha256(release.wheel.read_bytes()).hexdigest()
    installed = json.loads(_run(versions, "the versions").stdout)
    yield said, {"versions": installed, "wheel_sha256": digest}
    help_took = help_seconds(programs / "memplan", environment)
    told = ", ".join(f"{name} {1000 * took:.0f}" for name, took in help_took.items())
    yield f"--help in ms: {told}", {"help_seconds": help_took}
    if help_took["cpu"] > HELP_SECONDS:
        raise FailedError(f"--help takes {1000 * help_took['cpu']:.0f} ms of CPU")
    with tarfile.open(release.sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = (each for each in folder.glob("memplan-*") if each.is_dir())
    begin = time.monotonic()
    for call in readme_commands():
        _run([programs / "memplan", *call], f"memplan {' '.join(call)}", env=environment, cwd=tree)
    took = round(time.monotonic() - begin)
    commands = {"readme_commands": [" ".join(call) for call in readme_commands()]}
    yield f"the README's commands in {took} s", commands | {"readme_seconds": took}
    if not options.no_tests:
        _run([programs / "pip", "install", "-q", f"{release.wheel}[test]"], "pip install [test]")
        quick = [programs / "pytest", "-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider"]
        done = _run(quick, "the quick tests", env=environment, cwd=tree)
        said = done.stdout.strip().splitlines()[-1]
        yield said, {"quick_tests": said}


def interpreter(wanted: str) -> str | None:
    """The path of a Python: one that is given as a path, on the path, or kept by pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places: Iterator[str | None] = iter(
        [
            wanted if "/" in wanted else shutil.which(f"python{wanted}"),
            *map(str, sorted(pyenv.glob(f"versions/{wanted}*/bin/python"), reverse=True)),
        ]
    )
    for place in places:
        # A shim of pyenv is there for versions that are not switched on.
        if place and not subprocess.run([place, "-c", ""], capture_output=True).returncode:
            return place
    return None


def help_seconds(program: Path, environment: dict[str, str]) -> dict[str, float]:
    """Some runs of ``--help`` by the clock, which also counts what else the machine does, and the
    least in CPU seconds."""
    waited, worked = [], []
    for _ in range(_HELP_RUNS):
        begin, before = time.perf_counter(), os.times()
        _run([program, "--help"], "memplan --help", env=environment)
        after = os.times()
        waited.append(time.perf_counter() - begin)
        used = after.children_user + after.children_system
        worked.append(used - before.children_user - before.children_system)
    took = {"median": statistics.median(waited), "shortest": min(waited), "cpu": min(worked)}
    return {name: round(seconds, 3) for name, seconds in took.items()}


def _environment(folder: Path, python: str) -> Path:
    """A virtual environment of a Python; the folder of its programs."""
    if python == sys.executable:
        venv.create(folder, with_pip=True)
    else:
        _run([python, "-m", "venv", folder], f"{python} -m venv")
    return folder / "bin"


def _files(release: Release) -> tuple[Path, Path]:
    return release.wheel, release.sdist


def _sources() -> list[str]:
    """What git tracks; in an unpacked sdist, every file."""
    if (ROOT / ".git").exists():
        return _run(["git", "-C", ROOT, "ls-files"], "git ls-files").stdout.split()
    return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]


def _in_sdist(path: str) -> bool:
    """Whether pyproject.toml puts a file of the repository into the sdist."""
    first = path.split("/")[0]
    return any(fnmatch(first, pattern.removeprefix("/")) for pattern in _included())


@cache
def _included() -> tuple[str, ...]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        hatch = tomllib.load(file)["tool"]["hatch"]
    return tuple(hatch["build"]["targets"]["sdist"]["include"])


def _some(names: set[str]) -> str:
    shown = sorted(names)[:5]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _run(
    command: Sequence[str | Path],
    what: str,
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        print((done.stdout + done.stderr)[-6000:])
        last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:]
        raise FailedError(": ".join([f"{what} ended with {done.returncode}", *last]))
    return done


if __name__ == "__main__":
    sys.exit(main())
