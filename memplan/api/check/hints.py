"""Exact commands for a report, as they work in the current folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from memplan.api.check.peak import Binding
from memplan.errors import UsageError
from memplan.proto.metadata import IN_PLACE
from memplan.proto.paths import python_step
from memplan.units import printable, shell_word

DEFAULT_LOCK = "memplan.lock"
DEFAULTS = Binding({}, "tuned", "cpu")
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def seen_from_here(path: Path) -> Path:
    """``path`` relative to the current folder, so that no report depends on the machine."""
    if not path.is_absolute():
        return path
    return Path(os.path.relpath(path))


def shown(path: Path) -> str:
    """A path as seen from here, on one line."""
    return printable(str(seen_from_here(path)))


def key_of(file: Path, lock: Path) -> str:
    """The path of ``file`` as an entry of ``lock``: relative to its folder, with ``/``.

    Raises:
        UsageError: it is not Unicode.
    """
    folder = lock.parent
    try:
        key = os.path.relpath(os.path.abspath(file), os.path.abspath(folder))
        if key.split(os.sep)[0] == os.pardir:
            # Through a symbolic link, '..' leads elsewhere than the text suggests. The file
            # itself may be a link (git-annex, DVC): its own name is the one to keep.
            target = os.path.join(os.path.realpath(file.parent), file.name)
            key = os.path.relpath(target, os.path.realpath(folder))
        key.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the name of {printable(str(file))} is not Unicode", "rename the model"
        ) from None
    return Path(key).as_posix()


def accept_command(
    lock: Path,
    file: Path,
    binding: Binding | None = None,
    unbound: Iterable[str] = (),
    locked: Binding = DEFAULTS,
) -> str:
    """The command that records ``file`` in ``lock``.

    ``binding`` is what to record, where it is not what the lock has (``locked``; the defaults for
    a model that is not in it); ``unbound`` dimensions are still to be given a size.
    """
    words = ["memplan", "check", "--update"]
    seen = str(seen_from_here(lock))
    if seen != DEFAULT_LOCK:
        words += ["--lock", seen]
    words.append(_argument(file))
    if binding is not None:
        words += binding_options(binding, locked)
    # A size that only a person knows is left open, and not quoted: it is to be replaced.
    return _joined(words) + "".join(f" --dim {shell_word(d)}=..." for d in unbound)


def fit_command(file: Path, budget_bytes: int, binding: Binding, *, chunks: bool = False) -> str:
    """The command that rewrites ``file`` to a budget, with ``chunks`` if need be."""
    words = ["memplan", "rewrite", _argument(file), "--budget", exact_size(budget_bytes)]
    words += ["--chunk", "auto"] if chunks else []
    words += ["--dry-run"] if python_step(file) is not None else []
    return _joined([*words, *binding_options(binding)])


def binding_options(binding: Binding, base: Binding = DEFAULTS) -> list[str]:
    """The options that make ``base`` into ``binding``."""
    words: list[str] = []
    for name, size in sorted(binding.dims.items()):
        if base.dims.get(name) != size:
            words += ["--dim", f"{name}={size}"]
    if binding.session != base.session:
        words += ["--session", binding.session]
    if binding.provider != base.provider:
        words += ["--provider", binding.provider]
    if binding.state != base.state:
        words += ["--state", binding.state or IN_PLACE]
    return words


def exact_size(nbytes: int) -> str:
    """A size that reads back as the same number of bytes: ``775MiB`` or plain bytes."""
    text = str(nbytes)
    for unit in _UNITS:
        if not nbytes or nbytes % 1024:
            break
        nbytes //= 1024
        text = f"{nbytes}{unit}"
    return text


def _argument(file: Path) -> str:
    """A file name that is not mistaken for an option."""
    text = str(file)
    return f"./{text}" if text.startswith("-") else text


def _joined(words: Iterable[str]) -> str:
    return " ".join(shell_word(word) for word in words)
