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
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from memplan import errors
from memplan.api.source import Model, as_file
from memplan.errors import MemplanError, UsageError
from memplan.processes.child import ChildError, call
from memplan.processes.scratch import scratch_folder
from memplan.proto.paths import python_step
from memplan.proto.write import write_atomically
from memplan.pytorch.installed_torch import require_torch
from memplan.solver.cache import cache_folder, is_private

_MOST_READ = 1 << 26
"""Bytes of a file that are compared; of larger ones, size and time of change."""
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib"))
_OURS = str(Path(__file__).parents[1])
_DEVICES = ("/dev/", "/proc/", "/sys/")


@dataclass(frozen=True, slots=True)
class StepSizes:
    """A captured step without weights in ``file``; ``torch``: the version of PyTorch.

    ``sources``: what the user's code imported and opened, each with what it was like then.
    ``packages``: the same of installed ones.
    """

    file: Path
    torch: str
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
    name = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:32]
    folder = _kept_in()
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
    told: Mapping[str, Any] = {}
    for device in ("meta", ""):
        try:
            told = call(f"{__name__}:_capture_here", target, str(output), device, place)
        except ChildError as error:
            told = {
                "error": "UsageError",
                "message": f"{target} ends its process: {error}",
            }
        if "error" not in told:
            return StepSizes(output, version("torch"), told["sources"], told["packages"])
    kind = getattr(errors, told["error"], MemplanError)
    raise kind(told["message"], told.get("hint", ""))


def unchanged(sources: Mapping[str, str]) -> bool:
    """Whether files are what they were."""
    return all(_state(file) == state for file, state in sources.items())


def _capture_here(target: str, output: str, device: str, folder: str) -> dict[str, object]:
    """Capture a step in this process, which is the child."""
    os.chdir(folder)
    opened: dict[str, None] = {}
    sys.addaudithook(lambda event, given: _note(opened, given) if event == "open" else None)
    from memplan.api.capture.capturing import capture
    from memplan.pytorch.meta import on_device

    with ExitStack() as stack:
        if device:
            stack.enter_context(on_device(device))
        try:
            capture(target, output, weights="none", check=False, force=True)
        except MemplanError as error:
            kinds = [
                kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__)
            ]
            return {"error": kinds[0], "message": error.message, "hint": error.hint}
    modules = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    made = str(Path(output).parent)
    own = {
        file
        for file in (*modules, *opened)
        if file and _is_projects(file) and not file.startswith(made)
    }
    heads = {name.partition(".")[0] for name in sys.modules}
    packages = [getattr(sys.modules.get(name), "__file__", None) for name in heads]
    installed = {file for file in packages if file and "-packages" in file}
    return {"sources": _states(own), "packages": _states(installed)}


def _note(opened: dict[str, None], given: tuple[Any, ...]) -> None:
    path, mode, *_ = given
    if isinstance(path, str) and not (isinstance(mode, str) and set(mode) & set("wax+")):
        opened[os.path.abspath(path)] = None


def _is_projects(file: str) -> bool:
    """Whether a file is neither installed nor of the system, nor one that memplan made."""
    if not os.path.isabs(file) or file.startswith((_OURS, *_DEVICES, *_INSTALLED)):
        return False
    made = file.startswith((os.environ.get("TMPDIR", "\0"), str(cache_folder())))
    return not made and "-packages" not in file and file not in sys.path


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


def _kept_in() -> Path | None:
    """The folder of what is kept; None where there is none that is this user's alone."""
    folder = cache_folder()
    if folder is None:
        return None
    place = folder / "steps"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = is_private(place) and is_private(folder) and os.access(place, os.W_OK)
    except OSError:
        return None
    return place if own else None


def _kept(folder: Path, name: str) -> StepSizes | None:
    """What is kept, if it still holds."""
    try:
        kept = json.loads((folder / f"{name}.json").read_text())
        found = StepSizes(Path(kept["file"]), kept["torch"], kept["sources"], kept["packages"])
        whole = _state(str(found.file)) == kept["state"] != ""
        return found if whole and unchanged({**found.sources, **found.packages}) else None
    except (OSError, ValueError, KeyError, TypeError):  # none, or damaged: it is made again
        return None


def _keep(found: StepSizes, folder: Path, name: str) -> None:
    model = folder / f"{name}.onnx"
    kept = {**asdict(found), "file": str(model), "state": _state(str(found.file))}
    try:
        write_atomically(model, found.file.read_bytes(), force=True)
        write_atomically(folder / f"{name}.json", json.dumps(kept).encode(), force=True)
    except (UsageError, OSError):  # it is made again the next time
        return
