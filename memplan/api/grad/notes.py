"""What a user should know of a training graph that is valid all the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from memplan.autodiff.backward import GradientSink
from memplan.autodiff.counter_dropouts import Counted
from memplan.autodiff.optimizers.updates import Updates
from memplan.autodiff.parameters import PLACES
from memplan.autodiff.statistics import Statistics
from memplan.options import GradOptions
from memplan.units import counted

_SHARED = {("MatMul", 1), ("Gemm", 1), ("Gather", 0), ("PRelu", 1)}
"""Operators and slots of weights that several layers may well read, as that of tied embeddings."""


def notes_of(
    graph: onnx.GraphProto,
    options: GradOptions,
    wrt: Sequence[str],
    sink: GradientSink,
    statistics: Statistics,
    masks: Counted,
) -> tuple[str, ...]:
    """All of them, of a flat forward graph and of what was made of it."""
    return (
        *statistics.notes,
        *_on_logits(graph, options.loss, options.logits),
        *_on_sharing(graph, wrt),
        *_on_kinds(sink),
        *notes_on_holding(sink),
        *masks.notes,
    )


def _on_sharing(graph: onnx.GraphProto, wrt: Sequence[str]) -> Iterator[str]:
    """Weights that several layers read as their own: exporters merge initializers of equal
    values, which at the start of a training many are."""
    readers: dict[str, list[str]] = {name: [] for name in wrt}
    products = {name for node in graph.node if node.op_type == "MatMul" for name in node.output}
    for node in graph.node:
        slots = PLACES.get(node.op_type, frozenset())
        if node.op_type == "Add" and products.intersection(node.input):
            slots = frozenset({0, 1})  # the bias of a linear layer
        for slot in slots:
            own = slot < len(node.input) and (node.op_type, slot) not in _SHARED
            if own and node.input[slot] in readers:
                readers[node.input[slot]].append(node.op_type)
    shared = {name: ops for name, ops in readers.items() if len(ops) > 1}
    if shared:
        name, ops = max(shared.items(), key=lambda item: len(item[1]))
        yield (
            f"{counted(len(shared), 'tensor')} with several layers each ('{name}': "
            f"{counted(len(ops), ops[0] + ' node')}), trained as one; if these are different "
            "layers, the exporter merged equal weights (torch.onnx.export: optimize=False)"
        )


def _on_logits(graph: onnx.GraphProto, loss: str, logits: str | None) -> Iterator[str]:
    """Cross-entropy takes logits: where it is given probabilities, softmax is taken twice."""
    if loss != "cross-entropy" or logits is None:
        return
    for node in graph.node:
        if logits in node.output and node.op_type in ("Softmax", "Sigmoid"):
            yield (
                f"--logits {logits}: this is the output of a {node.op_type}, and "
                f"cross-entropy takes the softmax again; its input '{node.input[0]}' may be meant"
            )


def _on_kinds(sink: GradientSink) -> Iterator[str]:
    """An optimizer that is for some tensors alone leaves the others to another one."""
    if not isinstance(sink, Updates):
        return
    kinds = [member.optimizer.name for member in sink.members.values()]
    for kind in sorted(set(kinds)) if len(set(kinds)) > 1 else ():
        yield f"{counted(kinds.count(kind), 'tensor')} updated by {kind}"


def notes_on_holding(sink: GradientSink) -> Iterator[str]:
    """What needs all gradients together has a price in memory."""
    if isinstance(sink, Updates) and sink.scale is not None:
        yield (
            "a step whose gradients are not all finite is skipped: they are all held until the end "
            "of the backward part, and every new value is chosen by a Where"
        )
    elif isinstance(sink, Updates) and sink.optimizer.clip_norm:
        yield (
            "clip_norm needs all gradients before the first update: they are all held until the "
            "end of the backward part (clip_value does not need that)"
        )
