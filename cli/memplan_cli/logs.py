"""What memplan logs, on stderr: nothing by default, INFO with ``-v``, DEBUG with ``-vv``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import click

from memplan.units import printable

_DEBUG_FROM = 2


class _Stderr(logging.Handler):
    """Writes a record to what is stderr now, on one line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it."""
        click.echo(printable(f"{record.name}: {record.getMessage()}"), err=True)


@contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Show the records of the ``memplan`` loggers while a command runs.

    Without ``-v`` nothing is shown: not even warnings, which reports say in their own words.
    """
    logger = logging.getLogger("memplan")
    handler = _Stderr() if verbose else logging.NullHandler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    if verbose:
        logger.setLevel(logging.DEBUG if verbose >= _DEBUG_FROM else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
