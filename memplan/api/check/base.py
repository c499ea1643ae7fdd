"""The models of another commit: what ``check --base`` compares with.

1. The commit is the one at which HEAD and the named one parted, so that what others did since is
   not counted as a change of this branch.
2. A model is taken out of git into a scratch folder and analyzed by this very memplan: figures of
   two memory models are never compared.
3. A model whose file is the same as today's is not analyzed again.
4. Weights in other files are never read for tuned sessions; files of their size, with nothing in
   them, stand for them. A plain session is loaded by the runtime and gets the real ones.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from memplan.api.check.lock import Lock, read_lock
from memplan.api.check.measure import UnboundDimsError, measure
from memplan.api.check.peak import Binding, Peak
from memplan.api.python_step import capture_sizes, captured_sizes
from memplan.errors import MemplanError, ModelError, UsageError
from memplan.processes.git import Blob, Repository, repository_of
from memplan.processes.scratch import scratch_folder
from memplan.proto.external import external_end, external_location, external_tensors
from memplan.proto.paths import file_problem, on_disk, opened_file, python_step, read_bytes
from memplan.proto.read import parse_file
from memplan.units import printable

_LOCAL_NAME = "memplan-base.onnx"
_LARGEST_STAND_IN = 1 << 50
_POINTER = b"version https://git-lfs"


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

    @property
    def place(self) -> str:
        """What the base is, to stand behind a figure."""
        return f"at the merge-base with {printable(self.ref)}, {self.short}"


@dataclass(slots=True)
class BaseModels:
    """The files of a commit, as far as they were asked for."""

    repository: Repository
    commit: BaseCommit
    folder: Path
    lock: Lock | None = None
    _blobs: dict[str, Blob | None] = field(default_factory=dict)

    def look_at(self, files: Iterable[Path]) -> None:
        """Ask git for several files at once, which is quicker than one by one."""
        self._look_up({path for path in map(self._path_of, files) if path})

    def _path_of(self, file: Path) -> str | None:
        return self.repository.path_of(on_disk(file))

    def _look_up(self, paths: set[str]) -> None:
        if wanted := paths - self._blobs.keys():
            self._blobs |= self.repository.blobs(self.commit.commit, wanted)

    def has(self, file: Path) -> bool:
        """Whether the base has something at that path."""
        path = self._path_of(file)
        return path is not None and self._blob(path) is not None

    def _blob(self, path: str) -> Blob | None:
        self._look_up({path})
        return self._blobs[path]

    def find(self, path: str) -> Blob | None:
        """What the base has at a path in the repository; None where it has nothing.

        Raises:
            ModelError: the file belongs to another repository, and is nothing to this one.
            RuntimeUnavailableError: there is a file, and git cannot read it.
        """
        blob = self._blob(path)
        if blob is None and (inner := self.repository.submodule_of(self.commit.commit, path)):
            raise ModelError(
                f"it lies in the submodule {printable(inner)}, whose files are not in this "
                "repository",
                "run memplan check --base inside the submodule",
            )
        return blob

    def current(self, file: Path, path: str, binding: Binding, now: Peak | None) -> Peak | None:
        """The model that the base has at ``file``, analyzed; None where it has none.

        Args:
            file: where the model is today.
            path: its path in the lock.
            binding: how it is looked at.
            now: the same model today, if it is there.

        Raises:
            ModelError: there is something, and it cannot be analyzed.
        """
        place = self._path_of(file)
        if place is None:
            raise ModelError("it lies outside the git repository")
        blob = self.find(place)
        if blob is None:
            return None
        step = python_step(file)
        reusable = now is not None and _reusable(now, binding)
        if reusable and (_same(file, blob) if step is None else self._same_sources(*step)):
            return now
        with TemporaryDirectory(dir=self.folder) as home:
            local = Path(home, _LOCAL_NAME)
            try:
                if step is None:
                    self.fetch(place, blob, local)
                    self._weights(place, local, tuned=binding.session == "tuned")
                else:
                    self._capture(Path(home, "tree"), place, step[1], local)
                return measure(local, path, binding)[0]
            except UnboundDimsError as error:
                names = ", ".join(printable(name) for name in error.names)
                problem = f"there it has a dimension without a size: {names}"
                raise ModelError(problem, f"--dim {printable(error.names[0])}=...") from None
            except MemplanError as error:
                shown = printable(error.message.replace(str(local), "the model there"))
                raise ModelError(shown, error.hint) from None
            except OSError as error:
                problem = f"its files cannot be put into a scratch folder: {file_problem(error)}"
                raise ModelError(problem) from None

    def fetch(self, place: str, blob: Blob, local: Path) -> None:
        """Write a file of the base to ``local``.

        Raises:
            ModelError: it is not to be had.
        """
        if not blob.oid:
            problem = "there it is a link that leads out of what is committed, or in a circle"
            raise ModelError(problem)
        self.repository.extract(place, blob, local)
        with opened_file(local) as stream:
            if stream.read(len(_POINTER)) == _POINTER:
                raise ModelError(
                    f"{printable(place)} is kept in Git LFS and was not fetched",
                    f"git lfs install; git lfs fetch origin {self.commit.commit[:12]}",
                )

    def _same_sources(self, script: Path, function: str) -> bool:
        """Whether all that a step of PyTorch is made from is today what the base has."""
        with captured_sizes(script, function) as today:
            places = {file: self.repository.path_of(Path(file)) for file in today.sources}
        self._look_up({place for place in places.values() if place})
        for file, place in places.items():
            blob = self._blob(place) if place is not None else None
            # What is in no commit is read here and there.
            if blob is not None and not _same(Path(file), blob):
                return False
        return True

    def _capture(self, tree: Path, place: str, function: str, local: Path) -> None:
        """Capture a step of PyTorch from the files of the base."""
        tree.mkdir()
        self.repository.export(self.commit.commit, tree)
        here, root = Path.cwd(), self.repository.root
        folder = tree / here.relative_to(root) if here.is_relative_to(root) else here
        found = capture_sizes(tree / place, function, local, folder)
        ours = [file for file in found.sources if Path(file).is_relative_to(root)]
        if ours:
            raise ModelError(
                f"its code there imports {ours[0]} of this checkout, not of the base",
                "compare with the lock: a package that is installed from the checkout, or is on "
                "PYTHONPATH, is there once only",
            )

    def _weights(self, place: str, local: Path, *, tuned: bool) -> None:
        """Put beside ``local`` what its weights in other files are, or what stands for them."""
        sizes: dict[str, int] = {}
        for tensor in external_tensors(parse_file(local)):
            location = external_location(tensor, local)
            sizes[location] = max(sizes.get(location, 0), external_end(tensor))
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
            blob = self.find(beside)
            if blob is None:
                raise ModelError(f"its weights in {printable(location)} are not committed there")
            self.fetch(beside, blob, target)


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
        local, place = scratch / "lock", repository.path_of(lock)
        try:
            blob = found.find(place) if place is not None else None
            if place is not None and blob is not None:
                found.fetch(place, blob, local)
                found.lock = read_lock(local)
        except MemplanError as error:
            reason = printable(str(error).replace(str(local), str(lock)))
            note = f"the lock of the base is not used: {reason}"
            found.commit = BaseCommit(ref, commit.commit, note)
        yield found


def _reusable(now: Peak, binding: Binding) -> bool:
    """Whether today's figures are those of the same file under ``binding``: a plain session may
    also look into weights that lie elsewhere."""
    same = (now.session, now.provider) == (binding.session, binding.provider)
    dims = all(binding.dims.get(name) == size for name, size in now.dims.items())
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
