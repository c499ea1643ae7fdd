"""A training step as every command opens it: read, and its state where it may safely lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from memplan.api.state_modes import confirmed, settled
from memplan.processes.garbage import collector_paused
from memplan.shapes.prepare import PreparedModel, load
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.session import SessionKind


@collector_paused()
def open_step(
    step: Path | PreparedModel,
    session: SessionKind,
    dims: Mapping[str, int] | None = None,
    loss: str | None = None,
    state: Sequence[str] = (),
    *,
    partly: bool = False,
) -> OpenModel:
    """Open a step for a kind of session.

    Args:
        step: its file, or the model in it if that was prepared already.
        session: decides whether state can lie in place.
        dims: values for symbolic dimensions of a file.
        loss: name of the loss output, where the search would pick another.
        state: values of ``--state``; empty: as the file says.
        partly: of a file, see :func:`memplan.shapes.prepare.prepare`.

    Raises:
        ModelError: the model cannot be read or a shape stays unknown; or there is no state to be
            in place.
        UsageError: an unknown dimension or loss output was named, or a bad value of ``--state``.
    """
    prepared = load(step, dims or {}, partly=partly) if isinstance(step, Path) else step
    return confirmed(settled(opened(prepared, loss), session, state))
