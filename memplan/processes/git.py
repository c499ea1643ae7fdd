"""The only door of git: which commit two branches have in common, and the files in it.

Nothing is checked out and nothing in the repository changes, so nothing is left in it either when
memplan is killed, and several may look at once. No hook is run; files come through the filters that
the user set up for the repository (Git LFS, most of all), as in a checkout.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from memplan.errors import RuntimeUnavailableError, UsageError

_QUIET = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
_QUIET |= {"GIT_LITERAL_PATHSPECS": "1"}  # a name may begin with a colon
_ASTRAY = re.compile(rb"(?:symlink|dangling|loop|notdir) ([0-9]+)\n")
_SHALLOW_HINT = (
    "fetch the history: git fetch --unshallow (actions/checkout: fetch-depth: 0; GitLab: "
    'GIT_DEPTH: "0")'
)


@dataclass(frozen=True, slots=True)
class Blob:
    """What a commit has at a path, behind all links: ``oid`` and ``nbytes`` of the content. No
    ``oid``: a link leads out of what is committed, to nothing or in a circle."""

    oid: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository with files; ``root`` is the folder that paths in it are relative to."""

    root: Path

    def merge_base(self, ref: str) -> str:
        """The commit at which HEAD and ``ref`` parted.

        Raises:
            UsageError: there is no such commit, or the two have none in common.
            RuntimeUnavailableError: the history that would tell is not there.
        """
        if not ref or ref.startswith("-") or "\0" in ref:
            raise UsageError(f"--base {ref!r} is not a commit", "give a branch, a tag or a hash")
        if self._line("rev-parse", "--verify", "--quiet", "HEAD^{commit}") is None:
            raise UsageError("--base: the repository has no commit yet", "commit something first")
        commit = self._line("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if commit is None:
            raise self._no_commit(ref)
        found = self._line("merge-base", "HEAD", commit)
        if found is not None:
            return found
        if self._is_shallow():
            raise RuntimeUnavailableError(
                f"--base {ref}: this clone is shallow and holds no commit that {ref} and HEAD "
                "have in common",
                _SHALLOW_HINT,
            )
        raise UsageError(
            f"--base {ref}: it has no commit in common with HEAD", "give another branch"
        )

    def _no_commit(self, ref: str) -> UsageError | RuntimeUnavailableError:
        if self._line("rev-parse", "--verify", "--quiet", f"origin/{ref}^{{commit}}") is not None:
            return UsageError(f"--base {ref}: unknown commit", f"--base origin/{ref}")
        if self._is_shallow():
            return RuntimeUnavailableError(
                f"--base {ref}: this clone is shallow and holds no such commit", _SHALLOW_HINT
            )
        return UsageError(f"--base {ref}: unknown commit", "git branch --all lists the branches")

    def _is_shallow(self) -> bool:
        return self._line("rev-parse", "--is-shallow-repository") == "true"

    def path_of(self, file: Path) -> str | None:
        """The path of ``file`` in the repository; None where it lies outside.

        Links on the way to the repository are followed, those in it are not: another commit may
        have others there. So the path may hold ``..``, of what they lead to.
        """
        left = deque(file.relative_to(file.anchor).parts)
        place = os.path.realpath(file.anchor or os.curdir)
        while left and left[0] == os.pardir:
            left.popleft()
            place = os.path.dirname(place)
        while not Path(place).is_relative_to(self.root):
            if not left:
                return None
            place = os.path.realpath(os.path.join(place, left.popleft()))
        return "/".join((*Path(place).relative_to(self.root).parts, *left))

    def blobs(self, commit: str, paths: Iterable[str]) -> dict[str, Blob | None]:
        """What ``commit`` has at these paths, links followed as it has them; None for folders and
        for what does not exist, or is not here (:meth:`submodule_of`)."""
        names = {path: os.fsencode(f"{commit}:{path}") for path in paths}
        # Names end at NUL only where one of them holds a line end: git before 2.38 has no -z.
        end = b"\0" if any(b"\n" in name for name in names.values()) else b"\n"
        options = ("--batch-check", "--follow-symlinks", *(["-z"] if end == b"\0" else []))
        done = self._run("cat-file", *options, given=b"".join(n + end for n in names.values()))
        if done.returncode:
            raise _failed(_said(done))
        found, left = dict[str, Blob | None](), done.stdout
        for path, name in names.items():
            if (astray := _ASTRAY.match(left)) is not None:
                found[path], left = Blob("", 0), left[astray.end() + int(astray[1]) + 1 :]
            elif left.startswith(name):
                found[path], left = None, left[len(name) + len(b" missing\n") :]
            else:
                line, _, left = left.partition(b"\n")
                oid, kind, nbytes = line.decode().split()
                found[path] = Blob(oid, int(nbytes)) if kind == "blob" else None
        return found

    def submodule_of(self, commit: str, path: str) -> str:
        """The submodule of ``commit`` in which a path lies that :meth:`blobs` does not find; empty:
        in none.

        Raises:
            RuntimeUnavailableError: there is a file, and its content is not here.
        """
        parts = path.split("/")
        names = ["/".join(parts[: k + 1]) for k in range(len(parts)) if ".." not in parts[: k + 1]]
        done = self._run("ls-tree", "-z", "--full-tree", commit, "--", *names)
        if done.returncode:
            raise _failed(_said(done))
        for line in filter(None, os.fsdecode(done.stdout).split("\0")):
            facts, _, name = line.partition("\t")
            kind = facts.split()[1]
            if kind == "commit":
                return name
            if kind == "blob" and name == path:
                raise _failed(f"the content of {name} is missing")
        return ""

    def extract(self, path: str, blob: Blob, file: Path) -> None:
        """Write a blob to ``file`` as a checkout would at ``path``.

        Raises:
            RuntimeUnavailableError: it is not here and cannot be fetched, or a filter failed.
        """
        with file.open("wb") as stream:
            done = self._run(
                "cat-file", "--filters", f"--path={path}", blob.oid, output=stream.fileno()
            )
        if done.returncode:
            raise _failed(_said(done))

    def export(self, commit: str, folder: Path) -> None:
        """Write all files of ``commit`` into ``folder`` as a checkout would, but for what Git LFS
        keeps. The index for it lies there as well.

        Raises:
            RuntimeUnavailableError: a file is not here and cannot be fetched, or a filter failed.
        """
        variables = {"GIT_INDEX_FILE": str(folder / ".git-index"), "GIT_LFS_SKIP_SMUDGE": "1"}
        for arguments in (
            ("read-tree", commit),
            ("checkout-index", "--all", f"--prefix={folder}{os.sep}"),
        ):
            done = _git(self.root, *arguments, variables=variables)
            if done.returncode:
                raise _failed(_said(done))

    def _line(self, *arguments: str) -> str | None:
        """The one line that git answers; None where it fails."""
        done = self._run(*arguments)
        lines = os.fsdecode(done.stdout).splitlines()
        return lines[0] if done.returncode == 0 and lines else None

    def _run(
        self, *arguments: str, output: int = subprocess.PIPE, given: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return _git(self.root, *arguments, output=output, given=given)


def repository_of(folder: Path) -> Repository:
    """The repository that ``folder`` lies in.

    Raises:
        UsageError: it lies in none.
        RuntimeUnavailableError: git is not installed.
    """
    done = _git(folder, "rev-parse", "--show-toplevel")
    root = os.fsdecode(done.stdout).rstrip("\n")
    if done.returncode == 0 and root:
        return Repository(Path(os.path.realpath(root)))
    said = _said(done)
    if "dubious ownership" in said:
        raise RuntimeUnavailableError(
            f"git does not trust this repository: {said}",
            "git config --global --add safe.directory FOLDER",
        )
    raise UsageError(
        f"--base: {folder} is not in the work tree of a git repository",
        "run it where the models are committed, or leave --base out",
    )


def _git(
    folder: Path,
    *arguments: str,
    output: int = subprocess.PIPE,
    given: bytes | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            stdout=output,
            stderr=subprocess.PIPE,
            input=given if given is not None else b"",
            env={**os.environ, **_QUIET, **(variables or {})},
        )
    except FileNotFoundError:
        raise RuntimeUnavailableError("--base: git is not installed", "install git") from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").splitlines()
    return lines[0].removeprefix("fatal: ").removeprefix("error: ") if lines else ""


def _failed(said: str) -> RuntimeUnavailableError:
    return RuntimeUnavailableError(
        f"git cannot read a file of the base: {said}",
        "git fsck tells what is missing; git lfs fetch gets what is kept in Git LFS",
    )
