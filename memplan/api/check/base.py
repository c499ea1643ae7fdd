"""The models of another commit: what ``check --base`` compares with.

1. The commit is the one at which HEAD and the named one parted, so that what others did since is
   not counted as a change of this branch.
2. A model is taken out of git into a scratch folder and analyzed by this very memplan: figures of
   two memory models are never compared.
3. A model whose file is the same as today's is not analyzed again.
4. Weights in other files are never read for tuned sessions; files of their size, with nothing in
   them, stand for them. A plain session is loaded by the runtime and gets the real ones.
5. What is behind a Git LFS pointer comes from what was fetched, else through ``git lfs``.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from memplan.api.check.current import Current, UnboundDimsError, measure
from memplan.api.check.lock import Binding, Lock, read_lock
from memplan.errors import LockError, MemplanError, UsageError
from memplan.processes.git import Blob, Repository, repository_of
from memplan.processes.scratch import scratch_folder
from memplan.proto.elements import tensor_bytes
from memplan.proto.external import external_entry, external_tensors
from memplan.proto.paths import file_problem, read_bytes
from memplan.proto.read import parse_file
from memplan.units import printable

_MOST_LINKS = 40  # as Linux follows
_MOST_PARTS = 1000
_LONGEST_TARGET = 4096
_LOCAL_NAME = "memplan-base.onnx"
_LARGEST_STAND_IN = 1 << 50
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n"
    rb"(?:.*\n)*?oid sha256:([0-9a-f]{64})\nsize ([0-9]{1,18})\n"
)
_MOST_POINTER = 1024


@dataclass(frozen=True, slots=True)
class BaseCommit:
    """What is compared with: the merge-base with ``ref``. ``note`` is what could not be used."""

    ref: str
    commit: str
    note: str = ""

    @property
    def short(self) -> str:
        """The commit as people read it."""
        return self.commit[:9]


class BaseProblem(Exception):
    """Why the model of the base is not known; ``hint`` is what to do."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


@dataclass(slots=True)
class BaseModels:
    """The files of a commit, as far as they were asked for."""

    repository: Repository
    commit: BaseCommit
    folder: Path
    lock: Lock | None = None
    _blobs: dict[str, Blob] = field(default_factory=dict)
    _looked_at: set[str] = field(default_factory=set)

    def look_at(self, files: Iterable[Path]) -> None:
        """Ask git for several files at once, which is quicker than one by one."""
        self._look_up({path for path in map(self.repository.path_of, files) if path})

    def _look_up(self, paths: Collection[str]) -> None:
        """Learn what stands at these paths and above them, as far as no link is followed."""
        names = {name for path in paths for name in (path, *_folders(path))} - self._looked_at
        plain = {name for name in names if not {"", ".", ".."} & set(name.split("/"))}
        self._blobs |= self.repository.blobs(self.commit.commit, plain)
        self._looked_at |= names

    def has(self, file: Path) -> bool:
        """Whether the base has something at that path."""
        path = self.repository.path_of(file)
        try:
            return path is not None and self._resolved(path) is not None
        except BaseProblem:
            return True

    def current(
        self, file: Path, path: str, binding: Binding, now: Current | None
    ) -> Current | None:
        """The model that the base has at ``file``, analyzed; None where it has none.

        Args:
            file: where the model is today.
            path: its path in the lock.
            binding: how it is looked at.
            now: the same model today, if it is there.

        Raises:
            BaseProblem: there is something, and it cannot be analyzed.
        """
        place = self.repository.path_of(file)
        if place is None:
            raise BaseProblem("it lies outside the git repository")
        found = self._resolved(place)
        if found is None:
            return None
        place, blob = found
        if now is not None and _reusable(now, binding) and _same(file, blob):
            return now
        home = self.folder / hashlib.sha256(f"{place}\0{binding}".encode()).hexdigest()[:16]
        home.mkdir(exist_ok=True)
        local = home / _LOCAL_NAME
        try:
            self._fetch(place, blob, local)
            self._weights(place, local, tuned=binding.session == "tuned")
            return measure(local, path, binding)[0]
        except UnboundDimsError as error:
            names = ", ".join(printable(name) for name in error.names)
            problem = f"there it has a dimension without a size: {names}"
            raise BaseProblem(problem, f"--dim {printable(error.names[0])}=...") from None
        except MemplanError as error:
            shown = printable(error.message.replace(str(local), "the model there"))
            raise BaseProblem(shown, error.hint) from None
        except OSError as error:
            problem = f"its files cannot be put into a scratch folder: {file_problem(error)}"
            raise BaseProblem(problem) from None
        finally:
            for left in home.rglob("*"):
                if left.is_file() or left.is_symlink():
                    left.unlink()

    def _resolved(self, place: str) -> tuple[str, Blob] | None:
        """The file that stands at a path, and its path behind all links: to folders, too, and as
        the base has them."""
        at, left, links, parts = list[str](), deque(place.split("/")), 0, 0
        while left:
            part, parts = left.popleft(), parts + 1
            if parts > _MOST_PARTS:
                raise _leads_nowhere()
            if part in ("", "."):
                continue
            if part == "..":
                if not at:
                    raise _leads_nowhere()
                at.pop()
                continue
            at.append(part)
            path = "/".join(at)
            self._look_up({path, "/".join((path, *left))})
            blob = self._blobs.get(path)
            if blob is None:  # a folder, or nothing
                continue
            if blob.is_submodule:
                raise BaseProblem(
                    f"it lies in the submodule {printable(path)}, whose files are not in this "
                    "repository",
                    "run memplan check --base inside the submodule",
                )
            if not blob.is_link:
                return None if left else (path, blob)
            links += 1
            target = self._target(blob) if links <= _MOST_LINKS else "/"
            if target.startswith("/") or "\0" in target:
                raise _leads_nowhere()
            at.pop()
            left.extendleft(reversed(target.split("/")))
        return None

    def _target(self, link: Blob) -> str:
        """Where a link leads; what is no path leads out of everything."""
        if link.nbytes > _LONGEST_TARGET:
            return "/"
        return self.repository.content(link).decode(errors="surrogateescape")

    def _fetch(self, place: str, blob: Blob, local: Path) -> None:
        """Write a file of the base to ``local``."""
        content = self.repository.content(blob) if blob.nbytes <= _MOST_POINTER else b""
        pointer = _POINTER.match(content)
        if pointer is None:
            self.repository.extract(blob, local)
        elif not self.repository.smudge_large(content, pointer[1].decode(), local):
            raise BaseProblem(
                f"{printable(place)} is kept in Git LFS and was not fetched",
                f"git lfs fetch origin {self.commit.commit[:12]}",
            )

    def _weights(self, place: str, local: Path, *, tuned: bool) -> None:
        """Put beside ``local`` what its weights in other files are, or what stands for them."""
        sizes: dict[str, int] = {}
        for tensor in external_tensors(parse_file(local)):
            location = external_entry(tensor, "location") or ""
            if location and not _leads_out(location):
                sizes[location] = max(sizes.get(location, 0), _end(tensor))
        for location, nbytes in sizes.items():
            target = local.parent / location
            if target == local:  # which a model may say of itself
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if tuned:
                with target.open("wb") as stream:
                    stream.truncate(min(nbytes, _LARGEST_STAND_IN))
                continue
            beside = posixpath.join(posixpath.dirname(place), location)
            found = self._resolved(beside)
            if found is None:
                raise BaseProblem(f"its weights in {printable(location)} are not committed there")
            self._fetch(*found, target)


@contextmanager
def opened_base(ref: str, lock: Path, models: Iterable[Path]) -> Iterator[BaseModels]:
    """The files of the merge-base with ``ref``, of the repository that the lock lies in, or would
    lie in; where that is none, of the first of ``models``.

    Raises:
        UsageError: there is no repository, or no such commit.
        RuntimeUnavailableError: git is not installed, or the history is not there.
    """
    try:
        repository = repository_of(lock.parent)
    except UsageError:
        repository = repository_of(next((model.parent for model in models), lock.parent))
    commit = BaseCommit(ref, repository.merge_base(ref))
    with scratch_folder() as scratch:
        found = BaseModels(repository, commit, scratch)
        found.look_at([lock])
        try:
            found.lock = _lock_of(found, lock)
        except (BaseProblem, LockError) as error:
            reason = error.problem if isinstance(error, BaseProblem) else error.message
            reason = printable(reason.replace(str(scratch / "lock"), str(lock)))
            note = f"the lock of the base is not used: {reason}"
            found.commit = BaseCommit(ref, commit.commit, note)
        yield found


def _lock_of(base: BaseModels, lock: Path) -> Lock | None:
    place = base.repository.path_of(lock)
    found = base._resolved(place) if place is not None else None
    if found is None:
        return None
    base._fetch(*found, base.folder / "lock")
    return read_lock(base.folder / "lock")


def _reusable(now: Current, binding: Binding) -> bool:
    """Whether today's figures are those of the same file under ``binding``: a plain session may
    also look into weights that lie elsewhere."""
    entry = now.entry
    same = (entry.session, entry.provider) == (binding.session, binding.provider)
    dims = all(binding.dims.get(name) == size for name, size in now.entry.dims.items())
    return same and dims and binding.session == "tuned"


def _same(file: Path, blob: Blob) -> bool:
    """Whether a file of today is, byte by byte, what git has."""
    try:
        if file.stat().st_size != blob.nbytes:
            return False
        data = read_bytes(file)
    except OSError:
        return False
    algorithm = "sha256" if len(blob.oid) == 64 else "sha1"
    digest = hashlib.new(algorithm, b"blob %d\0" % len(data), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest() == blob.oid


def _leads_nowhere() -> BaseProblem:
    return BaseProblem("there it is a link that leads out of what is committed, or in a circle")


def _folders(path: str) -> list[str]:
    """``a`` and ``a/b`` of ``a/b/c``."""
    parts = path.split("/")
    return ["/".join(parts[:k]) for k in range(1, len(parts))]


def _leads_out(location: object) -> bool:
    """Whether a model's own words would lead out of its folder, or are no name at all; who reads it
    will refuse that."""
    if not isinstance(location, str) or "\0" in location:  # protobuf hands out what is not UTF-8
        return True
    path = posixpath.normpath(location.replace("\\", "/"))
    return path.startswith("/") or path.split("/")[0] == ".." or ":" in path


def _end(tensor: onnx.TensorProto) -> int:
    """Bytes that the file of an external tensor must have; 0 for what its reader will refuse."""
    try:
        return int(external_entry(tensor, "offset") or 0) + tensor_bytes(
            tensor.data_type, tensor.dims
        )
    except ValueError:
        return 0
