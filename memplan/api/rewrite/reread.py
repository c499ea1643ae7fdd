"""The rewritten file, read as a stranger would: what is promised of it must be what it says itself.

The planner knows shapes and phases of tensors from the file that it began with. Here the new bytes
are parsed, and everything is found anew, as ``analyze`` does it.
"""

from __future__ import annotations

import onnx

from memplan.api.open_step import open_step
from memplan.errors import ModelError
from memplan.planning.verify import Rejected
from memplan.processes.garbage import collector_paused
from memplan.proto.read import reread
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import PreparedModel, prepare
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind
from memplan.simulate.state_memory import unbound
from memplan.simulate.timeline import Timeline, simulate
from memplan.units import counted

_NAMED = 3


@collector_paused()
def ensure_readable(
    model: onnx.ModelProto,
    before: PreparedModel,
    promised: Timeline,
    session: SessionKind,
    loss: str | None,
) -> None:
    """Check that the new model, opened with nothing but its bytes, takes what is promised of it.

    Args:
        model: the rewritten model, with its metadata.
        before: what was planned; external data lies beside it, and its dimensions are bound alike.
        promised: the simulation that the report is made of.
        session: the kind of session that it is for.
        loss: name of the loss output, where the search would pick another.

    Raises:
        Rejected: it cannot be read, a tensor is not counted, or the figures differ. That is our
            bug, and nothing is written.
    """
    try:
        found = _opened_anew(model, before, session, loss)
    except ModelError as error:
        raise Rejected(f"the new file cannot be read again: {error.message}") from None
    _check_counted(found.prepared, before)
    graph = unbound(found.graph) if session.name == "default" else found.graph
    timeline = simulate(graph, session)
    peaks = timeline.peak_with_workspace_bytes, promised.peak_with_workspace_bytes
    if peaks[0] != peaks[1] or timeline.resident_bytes != promised.resident_bytes:
        raise Rejected(
            f"the new file takes {peaks[0]:,} B when it is read again, not {peaks[1]:,} B"
        )


def _opened_anew(
    model: onnx.ModelProto, before: PreparedModel, session: SessionKind, loss: str | None
) -> OpenModel:
    fresh = reread(model, before.path, before.beside)
    known = symbolic_dims(fresh)
    dims = {name: size for name, size in before.dims.items() if name in known}
    prepared = prepare(fresh, before.path, dims, before.beside, partly=True)
    return open_step(prepared, session, loss=loss)


def _check_counted(found: PreparedModel, before: PreparedModel) -> None:
    """What was counted to the byte must be so now."""
    if found.uncounted:
        raise Rejected(
            f"the new file does not tell the size of {_some(found.uncounted)} when it is read again"
        )
    if found.bounded and not before.bounded:
        raise Rejected(
            f"the new file tells only a bound of the size of {_some(found.bounded)} when it is "
            "read again"
        )


def _some(names: tuple[str, ...]) -> str:
    return f"{counted(len(names), 'tensor')} ({', '.join(names[:_NAMED])})"
