"""A file that was read, with its graph and phases: what every command begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from memplan.ir.build_graph import build_graph
from memplan.ir.contract import find_contract
from memplan.ir.graph import Graph
from memplan.ir.modules import modules
from memplan.ir.phases import Phases, find_phases
from memplan.processes.garbage import collector_paused
from memplan.proto.metadata import IN_PLACE, STATE, get_metadata
from memplan.providers import on_host
from memplan.shapes.prepare import PreparedModel, load
from memplan.simulate.devices import Devices, place
from memplan.simulate.run_order import placed_order, tuned_order
from memplan.simulate.session import SessionKind
from memplan.simulate.state_memory import Pairs, bind_state, names_of, unbound


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A file that was read, with its graph and phases.

    ``devices``: where everything is; its graph then holds the copies between them too.
    """

    prepared: PreparedModel
    graph: Graph
    phases: Phases
    modules: tuple[str, ...]
    devices: Devices | None = None


@collector_paused()
def open_model(
    path: Path,
    dims: Mapping[str, int] | None = None,
    loss: str | None = None,
    *,
    partly: bool = False,
) -> OpenModel:
    """Read ``path``, build its graph and find its phases.

    ``partly``: see :func:`memplan.shapes.prepare.prepare`.

    Raises:
        ModelError: the model cannot be read or a shape stays unknown.
        UsageError: an unknown dimension or loss output was named.
    """
    return opened(load(path, dims or {}, partly=partly), loss)


def opened(prepared: PreparedModel, loss: str | None = None) -> OpenModel:
    """The same for a model that was already prepared."""
    graph = build_graph(prepared.bound, prepared.types)
    metadata = get_metadata(prepared.proto)
    phases = find_phases(graph, loss, metadata)
    model = OpenModel(prepared, graph, phases, modules(graph, phases))
    if metadata.get(STATE) != IN_PLACE:
        return model
    return with_state(model, find_contract(graph, phases, metadata).new_values)


def with_state(
    model: OpenModel,
    pairs: Pairs,
    refused: Mapping[str, str] | None = None,
    *,
    loss_first: bool = True,
) -> OpenModel:
    """The model with the memory of its new values given by the caller, as a tuned session runs it.

    Args:
        model: a model that was opened.
        pairs: graph output → the input whose next value it is.
        refused: outputs that must not be in place, and why.
        loss_first: whether nothing is written over before the loss is known.
    """
    graph, loss = unbound(model.graph), model.phases.loss
    known = graph.tensors[loss].name if loss is not None and loss_first else ""
    bound = bind_state(graph, pairs, tuned_order(graph), refused=refused, loss=known)
    return replace(model, graph=bound)


def placed(own: Graph, session: SessionKind) -> tuple[Graph, Devices]:
    """A graph as a session on a GPU holds it, its state in place where it was and still may be."""
    graph, devices = place(unbound(own), session.provider)
    state = own.state
    if state is not None:
        order = placed_order(graph, session, devices)
        pairs = names_of(own)
        graph = bind_state(graph, pairs, order, session.provider, state.refused, state.loss)
    return graph, devices


def on_devices(model: OpenModel, session: SessionKind, loss: str | None = None) -> OpenModel:
    """The model as a session on a GPU holds it: fallbacks, copies, host tensors; else the same."""
    if on_host(session.provider) or model.devices is not None:
        return model
    graph, devices = placed(model.graph, session)
    if not devices.copies:
        return replace(model, graph=graph, devices=devices)
    phases = find_phases(graph, loss, get_metadata(model.prepared.proto))
    return OpenModel(model.prepared, graph, phases, modules(graph, phases), devices)
