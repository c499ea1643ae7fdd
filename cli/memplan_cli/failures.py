"""A failure as two lines on stderr: what is wrong, and what to do."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Sequence

import click

from memplan.units import printable
from memplan_cli.standard_files import STDERR, silence

# What the system refuses whoever asks: full or failing disks, closed files, too many files.
_SYSTEM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EBADF}
_SYSTEM |= {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE}


def tell(message: str, hint: str = "") -> None:
    """Write ``error: ...`` and, if there is one, ``hint: ...``."""
    try:
        click.echo(f"error: {_on_one_line(message)}", err=True)
        if hint:
            click.echo(f"hint: {_on_one_line(hint)}", err=True)
    except OSError:  # nobody can be told; the exit code is what is left
        silence(STDERR)


def refused_by_system(error: BaseException) -> tuple[str, str] | None:
    """Message and hint for what is neither our bug nor the user's mistake; None for all else."""
    if isinstance(error, MemoryError):
        what = str(error).removeprefix("Unable to allocate ")
        asked = f": {what} was asked for" if what else ""
        return f"out of memory{asked}", "use smaller sizes or a smaller batch, or more memory"
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError) and _folder_is_gone():
        return "the current folder no longer exists", "change to another one"
    if error.errno not in _SYSTEM:
        return None
    where = f" ({error.filename})" if error.filename else ", or its output is closed or full"
    return f"the system refuses: {error.strerror}{where}", "-vv shows at what"


def _folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def is_interrupt(error: BaseException) -> bool:
    """Whether a Ctrl-C is behind the error: compiled code reports one as a ``SystemError``."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _on_one_line(text: str) -> str:
    """Libraries explain in several lines; names in a model may hold anything."""
    return printable(" ".join(part.strip() for part in text.splitlines() if part.strip()))


def show_traceback(arguments: Sequence[str]) -> None:
    """With ``-vv`` among ``arguments``: where the failure that is being handled comes from."""
    if "-vv" in arguments or arguments.count("-v") > 1:
        for line in traceback.format_exc().splitlines():
            click.echo(printable(line), err=True)
