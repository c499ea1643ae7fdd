"""``analyze``: a file, a session kind, dims → what every byte of the peak is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from memplan.api.floor_sentence import FloorReport, floor_report
from memplan.api.open_step import open_step
from memplan.api.python_step import as_sizes
from memplan.api.source import Model, shown_path
from memplan.api.state_modes import contract_of, state_report
from memplan.api.summary import Summary
from memplan.api.versions import runtime_json, version_notes
from memplan.errors import MemplanError, RuntimeUnavailableError
from memplan.ir.contract import Contract
from memplan.ir.graph import Graph, Phase
from memplan.ir.phases import Phases, count_phases
from memplan.ops.cost import device_for
from memplan.ops.faults import fault_notes, faults
from memplan.ops.float_types import unsupported_kernels, unsupported_notes
from memplan.ops.sharp_edges import edge_notes, sharp_edges
from memplan.passes.loops.loop_pairs import RecurrentPair, find_pairs
from memplan.planning.plain.as_loaded import as_loaded, changes_at_load, narrow_types
from memplan.processes.garbage import collector_paused
from memplan.proto.model_checks import host_copies
from memplan.proto.opset import REFUSED
from memplan.runtime.installed import NAME
from memplan.shapes.tensor_type import FLOATS
from memplan.simulate.devices import fallback_notes, fallbacks_json
from memplan.simulate.explain import Explainer, Live, Stash, TensorClass
from memplan.simulate.floor import Floor, structural_floor
from memplan.simulate.opened import OpenModel, on_devices
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.state_memory import bind_state, unbound
from memplan.simulate.step_work import StepWork, step_work
from memplan.simulate.timeline import LaterRuns, Timeline, later_runs, removable_casts, simulate
from memplan.units import counted, format_bytes, shell_word

SCHEMA = "memplan.analysis/1"
# Raised whenever the memory model changes, so that a lock never reads that as a regression.
ACCOUNTING_VERSION = 6
NO_BACKWARD = "the graph has no backward part, so there is nothing to recompute"
_LOOPS_AS_THEY_ARE = (
    "the floor counts loops as they are; if their steps store less "
    "(rewrite --scan-recompute) it may be lower"
)


@dataclass(frozen=True, repr=False)
class Analysis(Summary):
    """The answer of ``analyze``. Byte counts as in interface.md: resident and dynamic.

    ``structural_floor`` is certified. ``recurrent`` are forward loops with the backward loops that
    read what they stacked.

    ``as_loaded``: the nodes are those that a session of this kind holds once it has loaded the
    file; else the file's own, which the session may change. ``inexact`` are the assumptions for
    which a run may take more or less. ``asked`` is the runtime that was asked, empty where the
    file's own nodes are what a session runs. ``contract``: what inputs and outputs are to training.
    ``uncounted``: tensors whose sizes no figure contains.
    """

    path: Path
    fingerprint: str
    session: SessionKind
    dims: Mapping[str, int]
    timeline: Timeline
    phases: Phases
    modules: tuple[str, ...]
    structural_floor: Floor
    by_class: Mapping[TensorClass, int]
    at_peak: tuple[Live, ...]
    stashes: tuple[Stash, ...]
    assumptions: tuple[str, ...]
    recurrent: tuple[RecurrentPair, ...] = ()
    as_loaded: bool = True
    inexact: tuple[str, ...] = ()
    asked: str = ""
    contract: Contract | None = None
    uncounted: int = 0

    @cached_property
    def floor(self) -> FloorReport:
        """The floor, what could lower it, and where the next one lies."""
        pairs = self.contract.new_values if self.contract else {}
        tuned = self.session.name == "tuned"
        floor = self.structural_floor
        return floor_report(floor, self.graph, self.timeline, pairs if tuned else {})

    @property
    def floor_bytes(self) -> int:
        """The floor of tensors alone, without kernel workspace, resident bytes included."""
        return self.timeline.resident_bytes + self.structural_floor.nbytes

    @property
    def floor_with_workspace_bytes(self) -> int:
        """The floor that a budget is held against, resident bytes included."""
        return self.timeline.resident_bytes + self.structural_floor.with_workspace

    @property
    def floor_reason(self) -> str:
        """What pins it."""
        return self.structural_floor.loaded.describe(self.graph)

    @property
    def later(self) -> LaterRuns | None:
        """What every run after the first takes in a session with a memory pattern; else None."""
        return later_runs(self.timeline) if self.session.patterns else None

    def with_state_in_place(self) -> Timeline | None:
        """The same step with its state bound (:mod:`memplan.simulate.state_memory`).

        None where there is none to bind, where it is bound, and for plain sessions.
        """
        pairs = self.contract.new_values if self.contract else {}
        timeline, tuned = self.timeline, self.session.name == "tuned"
        if not pairs or not tuned or self.graph.state is not None:
            return None
        loss = self.phases.loss
        known = "" if loss is None else self.graph.tensors[loss].name
        provider = self.session.provider
        graph = bind_state(self.graph, pairs, timeline.order, provider, loss=known)
        return simulate(graph, self.session, timeline.devices)

    @property
    def graph(self) -> Graph:
        """The analyzed graph."""
        return self.timeline.graph

    @property
    def peak_node(self) -> str:
        """Name of the node that runs at the peak."""
        timeline = self.timeline
        return self.graph.nodes[timeline.order[timeline.peak_step]].name if timeline.order else ""

    @property
    def peak_place(self) -> str:
        """Where the peak with workspace is: step, phase and node, and how much of it is that."""
        timeline = self.timeline
        step, order = timeline.peak_with_workspace_step, timeline.order
        place = f"at step {step}/{len(order)}"
        if order:
            node = order[step]
            place += f" ({self.phases.of[node]}: {self.graph.nodes[node].name})"
        if timeline.lifted:
            workspace = format_bytes(int(timeline.workspace[step]))
            place += f", {workspace} of it workspace of that kernel, predicted only"
        return place

    @property
    def explainer(self) -> Explainer:
        """Whose bytes are in memory when."""
        return Explainer(self.timeline, self.phases, self.modules)

    @property
    def work(self) -> StepWork:
        """Launches and bytes moved per step, and their time on a device of this kind."""
        return step_work(self.timeline, device_for(self.session.provider))

    @property
    def stashes_by_module(self) -> dict[str, list[Stash]]:
        """Stashes per module, the module with the most bytes first."""
        found: dict[str, list[Stash]] = {}
        for stash in self.stashes:
            found.setdefault(stash.module, []).append(stash)
        return dict(sorted(found.items(), key=lambda item: -sum(s.nbytes for s in item[1])))

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        timeline = self.timeline
        result: dict[str, object] = {
            "schema": SCHEMA,
            "model": {
                "path": str(self.path),
                "nodes": len(self.graph.nodes),
                "tensors": len(self.graph.tensors),
                "fingerprint": self.fingerprint,
            },
            "session": self.session.name,
            "provider": self.session.provider,
            "dims": dict(self.dims),
            "accounting_version": ACCOUNTING_VERSION,
            "peak_bytes": timeline.peak_bytes,
            "peak_with_workspace_bytes": timeline.peak_with_workspace_bytes,
            "resident_bytes": timeline.resident_bytes,
            "dynamic_peak_bytes": timeline.dynamic_peak_bytes,
            "peak_step": timeline.peak_step,
            "peak_node": self.peak_node,
            "peak_with_workspace_step": timeline.peak_with_workspace_step,
            "steps": len(timeline.order),
            "floor_bytes": self.floor_bytes,
            "floor_with_workspace_bytes": self.floor_with_workspace_bytes,
            "floor_reason": self.floor_reason,
            **self.floor.as_json(),
            "phases": {str(k): v for k, v in count_phases(self.phases).items()},
            "by_class": {str(k): v for k, v in self.by_class.items()},
            "at_peak": [_live_json(live) for live in self.at_peak],
            "work": self.work.as_json(),
            "stash_bytes": sum(stash.nbytes for stash in self.stashes),
            "stash_by_module": {
                module: sum(stash.nbytes for stash in stashes)
                for module, stashes in self.stashes_by_module.items()
            },
            "recurrent": [pair.as_json() for pair in self.recurrent],
            "assumptions": list(self.assumptions),
            "as_loaded": self.as_loaded,
            "exact": not self.inexact,
            "runtime": runtime_json(self.session.provider),
        }
        state = state_report(self.graph)
        if state is not None:
            result["state"] = state.as_json()
        bound = self.with_state_in_place()
        if bound is not None:
            result["with_state_in_place"] = {
                "peak_bytes": bound.peak_bytes,
                "peak_with_workspace_bytes": bound.peak_with_workspace_bytes,
            }
        later = self.later
        if later is not None:
            result["later_runs"] = {
                "peak_bytes": later.peak_bytes,
                "peak_with_workspace_bytes": later.peak_with_workspace_bytes,
            }
        devices = timeline.devices
        if devices is not None:
            result["cpu_nodes"] = fallbacks_json(devices)
            result["host_dynamic_peak_bytes"] = (
                0 if timeline.host is None else int(timeline.host.max(initial=0))
            )
        return result


def _live_json(live: Live) -> dict[str, object]:
    return {
        "name": live.name,
        "nbytes": live.nbytes,
        "class": str(live.tensor_class),
        "producer": live.producer,
        "birth": live.birth,
        "death": live.death,
        "held_by": live.held_by,
        "module": live.module,
    }


def analyze(
    path: Model,
    dims: Mapping[str, int] | None = None,
    *,
    session: str = "tuned",
    provider: str = "cpu",
    loss: str | None = None,
    state: str | Sequence[str] = (),
) -> Analysis:
    """Predict the memory of one training step of the model in ``path``.

    Args:
        path: an ONNX training graph: a path or a ``ModelProto``.
        dims: values for symbolic dimensions.
        session: ``tuned`` or ``default``.
        provider: ``cpu`` or ``cuda``.
        loss: name of the loss output, where the search would pick another.
        state: where new weights and moments lie: ``in-place``, ``apart``, or pairs ``OUT=IN``
            (:mod:`memplan.api.state_modes`).

    Raises:
        ModelError: the model cannot be read or a shape stays unknown; or there is no state to be
            in place.
        UsageError: an unknown dimension, loss output, session or provider was named.
    """
    kind = session_kind(session, provider)
    asked = (state,) if isinstance(state, str) else tuple(state)
    with as_sizes(path) as file:
        model = open_step(file, kind, dims, loss, asked, partly=True)
        analysis = analyze_session(model, kind, loss)
    return replace(analysis, path=shown_path(path))


@collector_paused()
def analyze_open(model: OpenModel, session: SessionKind, *, held: bool = False) -> Analysis:
    """The same for a model that is already open, with its own nodes.

    ``held``: they are what a session holds once it has loaded the file.
    """
    if session.name == "default":
        model = replace(model, graph=unbound(model.graph))
    timeline = simulate(model.graph, session, model.devices)
    explainer = Explainer(timeline, model.phases, model.modules)
    prepared = model.prepared
    pairs = find_pairs(prepared.bound, prepared.types, model.graph, model.phases)
    changes = () if held else _change_notes(model, session)
    provider = (*_provider_notes(model, session), *version_notes(session.provider))
    wrong, failing = ((), ()) if held else runtime_faults(model, session.provider)
    shapes = (note for note in prepared.assumptions if REFUSED not in note)
    contract = contract_of(model)
    return Analysis(
        path=model.prepared.path,
        fingerprint=model.prepared.fingerprint,
        session=session,
        dims=model.prepared.dims,
        timeline=timeline,
        phases=model.phases,
        modules=model.modules,
        structural_floor=structural_floor(model.graph, timeline),
        by_class=explainer.by_class(timeline.peak_step),
        at_peak=tuple(explainer.at_peak()),
        stashes=tuple(explainer.stashes()),
        assumptions=(
            *(contract.notes if model.graph.state is not None else ()),
            *prepared.assumptions,
            *fallback_notes(model.devices),
            *timeline.assumptions,
            *changes,
            *provider,
            *failing,
            *wrong,
            *no_backward_notes(model),
            *([_LOOPS_AS_THEY_ARE] if pairs else []),
        ),
        recurrent=pairs,
        contract=contract,
        uncounted=len(prepared.uncounted),
        as_loaded=not changes,
        inexact=(*changes, *shapes, *timeline.bounds, *provider, *failing),
    )


def analyze_session(
    model: OpenModel, session: SessionKind, loss: str | None = None, *, portable: bool = False
) -> Analysis:
    """Analyze what a session of the kind holds of a model once it has loaded it.

    Where that may differ from the file, the runtime is asked: it loads the file and runs nothing.
    Where it cannot be asked, the file's own nodes are analyzed, and the assumptions say so.

    Args:
        model: a file that was opened.
        session: its kind.
        loss: name of the loss output, where the search would pick another.
        portable: without layouts that depend on the processor: the same figures on any machine
            with this version of the runtime.
    """
    own = on_devices(model, session, loss)
    if not changes_at_load(model.graph, session):
        return analyze_open(own, session)
    try:
        held = as_loaded(model, session, loss, portable=portable)
    except (RuntimeUnavailableError, MemplanError) as error:
        analysis = analyze_open(own, session)
        note = f"the runtime could not be asked how it loads the file: {error.message}"
        return replace(
            analysis,
            assumptions=(*analysis.assumptions, note),
            inexact=(*analysis.inexact, note),
        )
    analysis = analyze_open(held.model, held.kind, held=True)
    wrong, failing = runtime_faults(own, session.provider)
    return replace(
        analysis,
        session=session,
        fingerprint=model.prepared.fingerprint,
        asked=f"{NAME} {held.runtime}",
        assumptions=(*analysis.assumptions, *failing, *wrong),
        inexact=(*analysis.inexact, *failing),
    )


def runtime_faults(model: OpenModel, provider: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What ONNX Runtime computes wrongly of a file, and what it cannot run, each in sentences."""
    prepared = model.prepared
    edges = sharp_edges(prepared.bound, prepared.types)
    failing = unsupported_kernels(prepared.bound, provider, prepared.types)
    devices = model.devices
    faulty = faults(model.graph, provider, devices.host_nodes) if devices is not None else ()
    return edge_notes(edges, provider), (
        *unsupported_notes(failing, provider),
        *fault_notes(list(faulty), provider),
    )


def no_backward_notes(model: OpenModel) -> tuple[str, ...]:
    """For a graph without a backward part: that there is none, and the command that makes one."""
    if {Phase.BACKWARD, Phase.UPDATE}.intersection(model.phases.of):
        return ()
    return (f"{NO_BACKWARD}; {grad_command(model)} makes one",)


def grad_command(model: OpenModel) -> str:
    """The ``memplan grad`` to type for a forward graph, with the names of its outputs."""
    graph, path = model.graph, model.prepared.path
    outputs = [graph.tensors[t] for t in graph.outputs]
    loss = model.phases.loss
    if loss is not None:
        what = f"--loss {shell_word(graph.tensors[loss].name)}"
    else:
        floats = [t.name for t in outputs if t.dtype in FLOATS and t.shape]
        what = f"--loss cross-entropy --logits {shell_word((floats or ['NAME'])[0])}"
    step = path.with_name(f"{path.stem}.step.onnx")
    return f"memplan grad {shell_word(str(path))} -o {shell_word(str(step))} {what}"


def _change_notes(model: OpenModel, session: SessionKind) -> tuple[str, ...]:
    """Where a session may hold other nodes than those that are analyzed."""
    if not changes_at_load(model.graph, session):
        return ()
    if session.name == "default":
        return (
            "default session: order and buffer reuse of the file's own nodes are simulated; what "
            "ONNX Runtime fuses when it loads the file is not in the figures",
        )
    pairs = removable_casts(model.graph)
    notes = []
    if pairs:
        notes.append(
            f"{counted(len(pairs), 'pair')} of Casts may be removed when ONNX Runtime loads the "
            f"model ({pairs[0]}); counted as if they stayed"
        )
    if narrow_types(model.graph, session):
        notes.append(
            "float16 and bfloat16: ONNX Runtime puts Casts around nodes that have no such kernel "
            "on the CPU; they are not in the figures"
        )
    return tuple(notes)


def _provider_notes(model: OpenModel, session: SessionKind) -> tuple[str, ...]:
    """What a file alone cannot tell of a provider."""
    if session.provider != "cuda":
        if not (copies := host_copies(model.prepared.proto)):
            return ()
        return (
            f"the CPU provider does not run this file: {counted(copies, 'node')} copy tensors to "
            "the host or back (--provider cuda); host copies are counted like any tensor",
        )
    return (
        "cuda: cuDNN and cuBLAS workspaces are not known in advance and count as 0; the "
        "tables were measured without a GPU",
    )
