"""``masks``: comparisons of an activation's input become comparisons of its output.

The gradient of ``Clip(x, 0, 6)`` is masked by ``x > 0`` and ``x < 6``, so exporters keep ``x`` for
the backward pass, beside ``Clip(x)`` which the next layer needs there. ``Clip(x) > 0`` and
``Clip(x) < 6`` are the same masks, and ``x`` dies where it is clipped (MONeT, Shah et al., ICLR
2021, section 3.2, and Gist, Jain et al., ISCA 2018, encode such masks; here nothing is encoded).

What lies between two bounds an activation hands on; a comparison with a constant between them tells
the same of both. Where it does not, at NaN or at a bound that is itself compared with, the graph
stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from memplan.ir.graph import Graph, Node, Tensor, TensorKind
from memplan.ir.graph_facts import Array, Facts
from memplan.passes.change import Change, facts_of, with_most
from memplan.passes.early import early_results
from memplan.passes.graph_pass import Applied, peak_did_not_rise, peak_fell
from memplan.passes.joined import joined_masks
from memplan.passes.order import in_order
from memplan.passes.surgery import ModelEdit
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline, simulate
from memplan.units import counted

_Bounds = tuple[float, float, frozenset[str] | None]
_MOST_KINDS = 16  # of activations of one tensor that are looked at
_INFINITE = float("inf")
# No type has a smaller range: where Clip has no bound, it may stop at the largest finite number.
_SMALLEST_RANGE = 65504.0
_TURNED = {
    ":Greater": ":Less",
    ":Less": ":Greater",
    ":GreaterOrEqual": ":LessOrEqual",
    ":LessOrEqual": ":GreaterOrEqual",
    ":Equal": ":Equal",
}
_RISING = frozenset({":Greater", ":GreaterOrEqual", ":Equal"})
_FALLING = frozenset({":Less", ":LessOrEqual", ":Equal"})


@dataclass(frozen=True, slots=True)
class Masks:
    """No options."""

    name: ClassVar[str] = "masks"
    summary: ClassVar[str] = "masks from the outputs of activations, so that their inputs die"

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with the comparisons that keep an input of an activation alive reading its
        output, and with one mask in place of two, as far as no peak rises by it."""
        notes = []
        found = with_most(model, timeline, _changes(model, timeline), peak_did_not_rise)
        if found is not None:
            model, timeline, count = found
            notes.append(f"{counted(count, 'input')} of activations not kept")
        if timeline.session.priority_order and not timeline.session.reuse:
            found = with_most(model, timeline, joined_masks(model), peak_did_not_rise)
            if found is not None:
                model, timeline, count = found
                notes.append(f"{counted(count, 'mask')} joined with another")
            earlier = _made_at_once(model, timeline)
            if earlier is not model:
                model = earlier
                notes.append("masks made at once")
        return Applied(model, ", ".join(notes))


def _made_at_once(model: OpenModel, timeline: Timeline) -> OpenModel:
    """The model with small results made early, in the better of two ways; itself if neither lowers
    the peak. The order search does not find it: too many masks move at once (ResNet-50, peak before
    any recomputation: 2.82 GB instead of 2.91)."""
    best, lowest = model, timeline
    for alone in (False, True):
        earlier = in_order(model, early_results(timeline, alone=alone))
        found = simulate(earlier.graph, timeline.session)
        if peak_fell(found, lowest):
            best, lowest = earlier, found
    return best


def _changes(model: OpenModel, timeline: Timeline) -> list[Change]:
    """One change for every input of an activation that would die earlier."""
    facts = facts_of(model)
    step_of = timeline.allocation.step_of
    changes: list[Change] = []
    for source in facts.graph.tensors:
        if source.kind is not TensorKind.COMPUTED or source.is_output or len(source.readers) < 2:
            continue
        instead = _rewired(facts, source, step_of)
        last = max(step_of[n] for n in source.readers)
        left = [step_of[n] for n in source.readers if n not in instead]
        if not instead or not left or max(left) >= last:
            continue
        nodes = facts.graph.nodes
        slots = {node: nodes[node].inputs.index(source.id) for node in instead}
        changes.append(partial(_read_instead, instead, slots))
    return changes


def _read_instead(instead: Mapping[int, str], slots: Mapping[int, int], edit: ModelEdit) -> None:
    """Let nodes read other tensors in one slot each."""
    for node, result in instead.items():
        edit.node(node).input[slots[node]] = result


def _rewired(facts: Facts, source: Tensor, step_of: tuple[int, ...]) -> Mapping[int, str]:
    """Comparisons of ``source`` with a constant → the tensor that may stand for it there."""
    graph = facts.graph
    readers = [graph.nodes[n] for n in dict.fromkeys(source.readers)]
    tests = [node for node in readers if node.key in _TURNED and source.id in node.inputs]
    activations = _activations(facts, source, readers, step_of) if tests else []
    found: dict[int, str] = {}
    for test in tests:
        for activation, bounds in activations:
            # Before it in the file, too: a plain session runs nodes in another order.
            earlier = activation.id < test.id and step_of[activation.id] < step_of[test.id]
            if earlier and _tells(facts, test, source, bounds):
                found[test.id] = graph.tensors[activation.outputs[0]].name
                break
    return found


def _activations(
    facts: Facts, source: Tensor, readers: Sequence[Node], step_of: tuple[int, ...]
) -> list[tuple[Node, _Bounds | None]]:
    """The first readers of each kind that hand ``source`` on within bounds (None: ``Abs``)."""
    first: dict[_Bounds | None, Node] = {}
    for node in sorted(readers, key=lambda node: step_of[node.id]):
        if not node.outputs or not facts.graph.tensors[node.outputs[0]].counted:
            continue
        bounds = None if node.key == ":Abs" else _bounds(facts, node, source)
        if node.key != ":Abs" and bounds is None:
            continue
        if not _variadic(node) or _keeps_shape(facts, node, source):
            first.setdefault(bounds, node)
        if len(first) == _MOST_KINDS:
            break
    return [(node, bounds) for bounds, node in first.items()]


def _tells(facts: Facts, test: Node, source: Tensor, bounds: _Bounds | None) -> bool:
    """Whether ``test`` says the same of ``source`` and of what is made of it within ``bounds``
    (None: ``Abs``)."""
    slot = test.inputs.index(source.id)
    constant = facts.value(test, 1 - slot)
    op = test.key if slot == 0 else _TURNED[test.key]
    if constant is None or not constant.size:
        return False
    if bounds is None:
        return op == ":Equal" and not np.any(constant)
    low, high, kept = bounds
    if kept is not None and op not in kept:
        return False
    least, most = constant.min().item(), constant.max().item()  # NaN fails every test below
    above = low <= least if op in (":Greater", ":LessOrEqual") else low < least
    below = most <= high if op in (":Less", ":GreaterOrEqual") else most < high
    return bool(above and below)


def _variadic(node: Node) -> bool:
    return node.key in (":Max", ":Min")


def _bounds(facts: Facts, node: Node, source: Tensor) -> _Bounds | None:
    """Between what an activation hands its input on, and which comparisons are false of all that
    NaN may become (None: NaN stays NaN); None for other operators."""
    if node.inputs[0] != source.id and not _variadic(node):
        return None
    slope = node.attributes.get("alpha")
    if node.key == ":Relu":
        return 0.0, _INFINITE, _RISING
    if node.key == ":LeakyRelu":
        # 0 times infinity is NaN.
        rises = not isinstance(slope, float) or 0 < slope < _INFINITE
        return (0.0, _INFINITE, None) if rises else None
    if node.key == ":ThresholdedRelu":
        start = slope if isinstance(slope, float) else 1.0
        return (start, _INFINITE, _RISING) if start >= 0 else None
    if node.key == ":Clip":
        low = _clip_bound(facts, node, 1, "min", -_SMALLEST_RANGE)
        high = _clip_bound(facts, node, 2, "max", _SMALLEST_RANGE)
        return None if low is None or high is None else (low, high, None)
    if _variadic(node):
        limits = _limits(facts, node, source)
        if limits is None:
            return None
        return (
            (limits[0], _INFINITE, _RISING)
            if node.key == ":Max"
            else (-_INFINITE, limits[1], _FALLING)
        )
    return None


def _clip_bound(
    facts: Facts, node: Node, slot: int, attribute: str, missing: float
) -> float | None:
    if facts.absent(node, slot):
        given = node.attributes.get(attribute, missing)
        return given if isinstance(given, float) else None
    value = facts.value(node, slot)
    return None if value is None or value.size != 1 else float(value.reshape(-1)[0])


def _limits(facts: Facts, node: Node, source: Tensor) -> tuple[float, float] | None:
    """The highest and the lowest element of the constants that ``source`` is held against."""
    values: list[Array] = []
    for slot, tensor in enumerate(node.inputs):
        value = facts.value(node, slot)
        if tensor == source.id:
            continue
        if value is None or not value.size or np.any(np.isnan(value)):
            return None
        values.append(value)
    if not values or len(values) != len(node.inputs) - 1:
        return None
    return max(float(v.max()) for v in values), min(float(v.min()) for v in values)


def _keeps_shape(facts: Facts, node: Node, source: Tensor) -> bool:
    """Whether ``source`` is not broadcast to the shape of a constant."""
    graph: Graph = facts.graph
    if facts.exact and graph.tensors[node.outputs[0]].shape == source.shape:
        return True
    others = [facts.value(node, k) for k, t in enumerate(node.inputs) if t != source.id]
    return all(value is not None and value.shape == () for value in others)
