"""What a model needs today, as a value that a lock can keep."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from memplan.api.analysis import ACCOUNTING_VERSION, Analysis, analyze_session
from memplan.api.check.peak import Binding, Peak, TopTensors
from memplan.api.check.traits import element_types, inputs_of, operators_of, structure
from memplan.api.open_step import open_step
from memplan.api.python_step import as_sizes
from memplan.errors import ModelError
from memplan.ir.graph import ABSENT, Graph
from memplan.ir.modules import recorded_module
from memplan.ir.roles import Role
from memplan.proto.metadata import APART, IN_PLACE, LINE_KEY, STATE, get_metadata
from memplan.proto.paths import python_step
from memplan.proto.read import read_model
from memplan.runtime.installed import installed_runtime
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import prepare
from memplan.simulate.explain import Live
from memplan.simulate.session import session_kind
from memplan.units import listed, printable

_NUMBER = re.compile(r"[0-9]+")
_MOST_LINES = 2


class UnboundDimsError(ModelError):
    """Some of the model's ``symbolic`` dimensions have no size: those in ``names``."""

    def __init__(self, path: Path, names: tuple[str, ...], symbolic: frozenset[str]) -> None:
        super().__init__(f"{path}: no size is known for dimension '{printable(names[0])}'")
        self.names = names
        self.symbolic = symbolic


def measure(
    file: Path, path: str, binding: Binding, tolerance: str | int | None = None
) -> tuple[Peak, frozenset[str]]:
    """Analyze the model in ``file`` for the entry ``path``; also its symbolic dimensions' names.

    Sizes in ``binding`` for dimensions that the model does not have are left out.

    Raises:
        UnboundDimsError: a symbolic dimension has no size.
        ModelError: the model cannot be read or a shape stays unknown.
    """
    with as_sizes(file) as local:
        return _measured(local, file, path, binding, tolerance)


def _measured(
    local: Path, file: Path, path: str, binding: Binding, tolerance: str | int | None
) -> tuple[Peak, frozenset[str]]:
    """The same of the file that ``file`` is read from."""
    model = read_model(local)
    symbolic = frozenset(symbolic_dims(model))
    unbound = tuple(sorted(symbolic - set(binding.dims)))
    if unbound:
        raise UnboundDimsError(file, unbound, symbolic)
    dims = {name: size for name, size in binding.dims.items() if name in symbolic}
    kind = session_kind(binding.session, binding.provider)
    state = (binding.state,) if binding.state else ()
    found = open_step(prepare(model, local, dims), kind, state=state)
    # A lock holds on any machine, so nothing in it may depend on the processor.
    analysis = analyze_session(found, kind, portable=True)
    tuned = kind.name == "tuned"
    of_python = python_step(path) is not None
    apart = tuned and get_metadata(found.prepared.proto).get(STATE) == APART
    peak = replace(
        _peak(analysis, path),
        tolerance=tolerance,
        state=IN_PLACE if analysis.graph.state is not None else APART if apart else None,
        torch=version("torch") if of_python else None,
        memplan=version("memplan") if of_python else None,
    )
    return peak, symbolic


def _peak(analysis: Analysis, path: str) -> Peak:
    timeline, graph, contract = analysis.timeline, analysis.graph, analysis.contract
    order = timeline.order
    return Peak(
        path=path,
        fingerprint=analysis.fingerprint,
        accounting=ACCOUNTING_VERSION,
        session=analysis.session.name,
        provider=analysis.session.provider,
        dims=dict(sorted(analysis.dims.items())),
        peak_bytes=timeline.peak_bytes,
        peak_with_workspace_bytes=timeline.peak_with_workspace_bytes,
        peak_node=analysis.peak_node,
        classes={str(name): nbytes for name, nbytes in analysis.by_class.items()},
        top=families(analysis),
        runtime=installed_runtime() or None,
        as_loaded=analysis.as_loaded if analysis.asked or not analysis.as_loaded else None,
        structure=structure(graph),
        operators=operators_of(graph),
        types=element_types(graph),
        inputs=inputs_of(graph, contract.named(Role.BATCH) if contract else ()),
        step=timeline.peak_step,
        steps=len(order),
        phase=str(analysis.phases.of[order[timeline.peak_step]]) if order else "",
        floor_bytes=analysis.floor_with_workspace_bytes,
    )


def families(analysis: Analysis) -> tuple[TopTensors, ...]:
    """The computed tensors at the peak by family, class and size, largest total first."""
    members: dict[tuple[str, str, int], list[Live]] = {}
    for live in analysis.at_peak:
        key = (family_of(live.name), str(live.tensor_class), live.nbytes)
        members.setdefault(key, []).append(live)
    found = []
    for (family, tensor_class, nbytes), alike in members.items():
        shown = alike[0].name if len(alike) == 1 else f"{family}*"
        told = [_told_by_maker(analysis.graph, live) for live in alike]
        modules, lines = zip(*told, strict=True)
        found.append(
            TopTensors(
                shown,
                tensor_class,
                len(alike),
                nbytes,
                alike[0].held_by,
                module_of_several(modules),
                listed(list(dict.fromkeys(filter(None, lines))), _MOST_LINES),
            )
        )
    return tuple(sorted(found, key=_largest_first))


def _told_by_maker(graph: Graph, live: Live) -> tuple[str, str]:
    """The module and the line that made a tensor, as far as the model tells."""
    tensor = graph.tensor_named(live.name)
    if tensor is None or tensor.producer == ABSENT:
        return "", ""
    told = graph.metadata[tensor.producer]
    return recorded_module(told) or "", told.get(LINE_KEY, "")


def module_of_several(modules: Sequence[str]) -> str:
    """Where tensors alike were made: one module, or what several are called but for their numbers;
    else nothing."""
    if len(set(modules)) == 1:
        return modules[0]
    patterns = {_NUMBER.sub("*", module) for module in modules}
    return patterns.pop() if len(patterns) == 1 else ""


def _largest_first(tensors: TopTensors) -> tuple[int, str, str, int]:
    return -tensors.total_bytes, tensors.name, tensors.tensor_class, tensors.nbytes


def family_of(name: str) -> str:
    """What tensors of one kind have in common: ``gelu``, ``gelu_3`` and ``gelu*`` are one family.

    Exporters number the tensors of an operator; the number shifts when a layer is added.
    """
    # Not by a pattern for the end: it would be tried anew at every '_*' of a name.
    pattern = _NUMBER.sub("*", name)
    while pattern.endswith("*"):
        pattern = pattern[:-2] if pattern.endswith("_*") else pattern[:-1]
    return pattern
