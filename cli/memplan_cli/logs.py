"""What memplan logs, on stderr: nothing by default, INFO with ``-v``, DEBUG with ``-vv``."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import click

from memplan.units import printable

_TRACEBACKS = 2


class _Stderr(logging.Handler):
    """Writes a record to what is stderr now, on one line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it."""
        click.echo(printable(f"{record.name}: {record.getMessage()}"), err=True)


@contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Show the records of the ``memplan`` loggers, and from ``-vv`` on the traceback of a failure.

    Without ``-v`` nothing is shown: not even warnings, which reports say in their own words.
    """
    logger = logging.getLogger("memplan")
    handler = _Stderr() if verbose else logging.NullHandler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    if verbose:
        logger.setLevel(logging.DEBUG if verbose >= _TRACEBACKS else logging.INFO)
    try:
        yield
    except Exception:
        if verbose >= _TRACEBACKS:
            for line in traceback.format_exc().splitlines():
                click.echo(printable(line), err=True)
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
