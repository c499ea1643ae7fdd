"""Plan → the rows of a plan file: what becomes of every tensor, and the sequence by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from memplan.ir.graph import Graph, Phase, Tensor, TensorKind
from memplan.ir.modules import NO_MODULE
from memplan.ir.phases import Phases
from memplan.planning.forms.dormant import Extended
from memplan.planning.forms.on_host import ON_HOST
from memplan.planning.plan import Plan
from memplan.planning.plan_file import (
    KEPT,
    OFFLOADED,
    REBUILT,
    RECOMPUTED,
    FormNode,
    Step,
    TensorDecision,
)
from memplan.proto.metadata import CALL_KEY
from memplan.simulate.opened import OpenModel

WORDS = {ON_HOST: OFFLOADED}
"""What a plan file calls kinds of forms, where not by their own name."""
_DIGITS = 6
"""Of seconds: estimates and measurements are not known any better."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The module of the node that makes a tensor, and the call of PyTorch; None: not told."""

    module: str | None = None
    call: str | None = None


def origins_of(model: OpenModel) -> dict[str, Origin]:
    """What a file says of its tensors, by their names, which outlive its nodes: the runtime's
    optimizer replaces nodes, drops what they say, and keeps the names of tensors."""
    graph = model.graph
    found: dict[str, Origin] = {}
    for node in graph.nodes:
        module, call = _told(model.modules[node.id]), graph.metadata[node.id].get(CALL_KEY)
        if module or call:
            origin = Origin(module, call)
            found |= {graph.tensors[t].name: origin for t in node.writes}
    return found


def _told(module: str) -> str | None:
    return None if module == NO_MODULE else module


def form_nodes(extended: Extended) -> dict[int, FormNode]:
    """The dormant nodes by what they keep or make. The last of each group makes a tensor that the
    graph has; the others stand right before it."""
    kinds = {form.encode[0]: form.kind for form in extended.forms}
    produced = {t.id for t in extended.graph.tensors if 0 <= t.producer < extended.first_dormant}
    found: dict[int, FormNode] = {}
    group: list[int] = []
    for node in extended.graph.nodes[extended.first_dormant :]:
        group.append(node.id)
        made = next((t for t in node.writes if t in produced), None)
        if made is not None:
            kind = kinds.get(group[0], REBUILT)
            name = extended.graph.tensors[made].name
            word = WORDS.get(kind, kind)
            found |= {n: FormNode(word, name, k) for k, n in enumerate(group)}
            group = []
    return found


def sequence_steps(plan: Plan) -> tuple[Step, ...]:
    """The plan's sequence by name."""
    nodes, forms = plan.extended.graph.nodes, form_nodes(plan.extended)
    return tuple(forms.get(node) or nodes[node].name for node in plan.sequence)


def tensor_rows(
    plan: Plan,
    phases: Phases,
    modules: Sequence[str],
    seconds: Sequence[float],
    chunks: Mapping[str, int],
    origins: Mapping[str, Origin],
) -> tuple[TensorDecision, ...]:
    """What becomes of every tensor that crosses from forward into backward, and of those that are
    made more than once, in the order in which they are made.

    Args:
        plan: the plan.
        phases: of the nodes that were planned.
        modules: of these nodes.
        seconds: by node id of the plan's graph, dormant nodes included.
        chunks: into how many chunks nodes went, by name.
        origins: what the file that was given says of tensors, by their names.
    """
    graph, runs = plan.extended.graph, Counter(plan.sequence)
    groups: dict[str, list[int]] = {}
    words: dict[str, str] = {}
    for node, form in form_nodes(plan.extended).items():
        if node in runs:
            groups.setdefault(form.tensor, []).append(node)
            words.setdefault(form.tensor, form.form)
    rows: list[TensorDecision] = []
    charged: set[int] = set()
    for tensor in _made(graph, dict.fromkeys(plan.sequence), plan.extended.first_dormant):
        maker = graph.nodes[tensor.producer]
        again, group = runs[maker.id] - 1, groups.get(tensor.name, [])
        if not again and not group and not _crosses(tensor, phases):
            continue
        decision, times, cost = KEPT, again, 0.0
        if maker.id not in charged:
            cost, charged = again * seconds[maker.id], charged | {maker.id}
        if group:
            decision, times = words[tensor.name], runs[group[-1]]
            cost += sum(runs[node] * seconds[node] for node in group)
        elif again:
            decision = RECOMPUTED
        origin = origins.get(tensor.name, Origin())
        rows.append(
            TensorDecision(
                tensor=tensor.name,
                node=maker.name,
                operator=maker.op,
                module=origin.module or _told(modules[maker.id]),
                nbytes=tensor.nbytes,
                decision=decision,
                times=times,
                seconds=float(f"{cost:.{_DIGITS}g}"),
                chunks=chunks.get(maker.name),
                call=origin.call,
            )
        )
    return tuple(rows)


def _made(graph: Graph, nodes: Iterable[int], first_dormant: int) -> Iterator[Tensor]:
    """What the graph's own nodes make, in their order."""
    for node in nodes:
        if node < first_dormant:
            yield from (graph.tensors[t] for t in graph.nodes[node].writes)


def _crosses(tensor: Tensor, phases: Phases) -> bool:
    """Whether a tensor goes from the forward into the backward part."""
    if tensor.kind is not TensorKind.COMPUTED:
        return False
    made = phases.of[tensor.producer]
    later = (Phase.BACKWARD, Phase.UPDATE)
    return made not in later and any(phases.of[reader] in later for reader in tensor.readers)
