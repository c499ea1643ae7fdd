"""``FILE.py:FUNCTION`` where a model is only read: a step of PyTorch, captured for its sizes alone.

1. A process of its own runs the function under ``torch.device("meta")``, so that no weight is made.
   Code that needs values there is run once more as it is. Nothing is held against PyTorch.
2. The graph is kept in the user's cache folder, with what it was made from: every file outside of
   installed packages that the code imported or opened, the packages that it imported, PyTorch,
   memplan and Python. While none of that has changed, it is taken from there, and no code is run.

What code learns elsewhere (a variable of the environment, a server, the files in a folder) is not
noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from memplan.api.source import Model, as_file
from memplan.errors import MemplanError, UsageError
from memplan.processes.child import ChildError, call
from memplan.processes.scratch import scratch_folder
from memplan.proto.paths import python_step
from memplan.proto.write import write_atomically
from memplan.pytorch.installed_torch import require_torch
from memplan.solver.cache import cache_folder, private_folder

_MOST_READ = 1 << 26
"""Bytes of a file that are compared; of larger ones, size and time of change."""
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib"))
_OURS = str(Path(__file__).parents[1])
_DEVICES = ("/dev/", "/proc/", "/sys/")


@dataclass(frozen=True, slots=True)
class StepSizes:
    """A captured step without weights in ``file``.

    ``sources``: what the user's code imported and opened, each with what it was like then.
    ``packages``: the same of installed ones.
    """

    file: Path
    sources: Mapping[str, str]
    packages: Mapping[str, str]


@contextmanager
def as_sizes(model: Model) -> Iterator[Path]:
    """The path of ``model``, which is only read: as :func:`memplan.api.source.as_file`, and a step
    of PyTorch is captured.

    Raises:
        UsageError: it is no path, or the step's code fails.
        ModelError: the step cannot be captured.
        RuntimeUnavailableError: PyTorch is not installed, or too old.
    """
    step = python_step(model) if isinstance(model, str | os.PathLike) else None
    if step is None:
        with as_file(model) as file:
            yield file
    else:
        with captured_sizes(*step) as found:
            yield found.file


@contextmanager
def captured_sizes(script: Path, function: str) -> Iterator[StepSizes]:
    """A step captured for its sizes, from the cache where nothing has changed.

    Raises:
        UsageError: the step's code fails.
        ModelError: the step cannot be captured.
        RuntimeUnavailableError: PyTorch is not installed, or too old.
    """
    require_torch()
    key = repr((os.path.abspath(script), function, os.getcwd(), sys.prefix, _versions()))
    name = _hash(key)[:32]
    folder = private_folder("steps")
    found = _kept(folder, name) if folder is not None else None
    if found is not None:
        yield found
        return
    with scratch_folder() as scratch:
        found = capture_sizes(script, function, scratch / "step.onnx")
        if folder is not None:
            _keep(found, folder, name)
        yield found


def capture_sizes(
    script: Path, function: str, output: Path, folder: Path | None = None
) -> StepSizes:
    """Capture a step for its sizes into ``output``; the code runs in a process of its own, in the
    current ``folder``, or in another.

    Raises:
        MemplanError: as :func:`captured_sizes`.
    """
    target = f"{script}:{function}"
    place = str(folder or Path.cwd())
    try:
        return _captured_on("meta", target, output, place)
    except MemplanError:  # its code needs values, or is wrong in any case
        return _captured_on("", target, output, place)


def _captured_on(device: str, target: str, output: Path, folder: str) -> StepSizes:
    """The same on a device; empty: on that of the user's choice."""
    try:
        found = call(f"{__name__}:_capture_here", target, str(output), device, folder)
    except ChildError as error:
        raise UsageError(f"{target} ends its process: {error}") from None
    if isinstance(found, MemplanError):
        raise found
    return StepSizes(output, *found)


def _capture_here(
    target: str, output: str, device: str, folder: str
) -> tuple[dict[str, str], dict[str, str]] | MemplanError:
    """Capture a step in this process, which is the child: what :class:`StepSizes` has behind the
    file, or why there is none."""
    os.chdir(folder)
    made = (os.environ["TMPDIR"], str(Path(output).parent), str(cache_folder()))
    opened: dict[str, None] = {}
    sys.addaudithook(lambda event, given: _note(opened, given) if event == "open" else None)
    from memplan.api.capture.capturing import capture
    from memplan.pytorch.places import lines_written
    from memplan.pytorch.torch_defaults import on_device

    with ExitStack() as stack:
        stack.enter_context(lines_written())
        if device:
            stack.enter_context(on_device(device))
        try:
            capture(target, output, weights="none", check=False, force=True)
        except MemplanError as error:
            return error
    modules = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    own = {file for file in (*modules, *opened) if file and _is_projects(file, made)}
    heads = {name.partition(".")[0] for name in sys.modules}
    packages = [getattr(sys.modules.get(name), "__file__", None) for name in heads]
    installed = {file for file in packages if file and "-packages" in file}
    return _states(own), _states(installed)


def _note(opened: dict[str, None], given: tuple[Any, ...]) -> None:
    path, mode, *_ = given
    if isinstance(path, str) and not (isinstance(mode, str) and set(mode) & set("wax+")):
        opened[os.path.abspath(path)] = None


def _is_projects(file: str, made: tuple[str, ...]) -> bool:
    """Whether a file is neither installed nor of the system, nor one that memplan ``made``."""
    if not os.path.isabs(file) or file.startswith((_OURS, *_DEVICES, *_INSTALLED, *made)):
        return False
    return "-packages" not in file and file not in sys.path


def _states(files: Iterable[str]) -> dict[str, str]:
    return {file: _state(file) for file in sorted(files) if "__pycache__" not in file}


def _state(file: str) -> str:
    """What a file is like: a hash of it, or size and time where it is large or installed."""
    try:
        status = os.stat(file)
        if status.st_size > _MOST_READ or "-packages" in file:
            return f"{status.st_size} {status.st_mtime_ns}"
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return ""


def _versions() -> tuple[str, ...]:
    return version("torch"), version("onnxscript"), version("memplan"), _own_sources(), sys.version


def _own_sources() -> str:
    """What tells one state of memplan's own files from another, as far as capture reads them."""
    rooms = [Path(_OURS, room) for room in ("pytorch", "autodiff", "api/capture", "proto")]
    files = sorted(file for room in rooms for file in room.rglob("*.py"))
    return _hash(*(f"{file.name} {file.stat().st_mtime_ns}" for file in files))


def _hash(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode(errors="surrogateescape")).hexdigest()


def _kept(folder: Path, name: str) -> StepSizes | None:
    """What is kept, if it still holds."""
    try:
        kept = json.loads((folder / f"{name}.json").read_text())
        found = StepSizes(folder / f"{name}.onnx", kept["sources"], kept["packages"])
        states = {**found.sources, **found.packages, str(found.file): kept["state"]}
        holds = kept["state"] and all(_state(file) == state for file, state in states.items())
        return found if holds else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or damaged
        return None


def _keep(found: StepSizes, folder: Path, name: str) -> None:
    kept = {
        "sources": found.sources,
        "packages": found.packages,
        "state": _state(str(found.file)),
    }
    try:
        write_atomically(folder / f"{name}.onnx", found.file.read_bytes(), force=True)
        write_atomically(folder / f"{name}.json", json.dumps(kept).encode(), force=True)
    except (UsageError, OSError):  # it is made again the next time
        return
