"""Node by node: what ONNX defines stays, what it does not is replaced by its lowering.

Types are found on the way, so each lowering knows those of its inputs although the file states them
only in part. New nodes stand where the foreign one stood, and shapes are taken where their tensors
are made, so that nothing is kept for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.gradient_registry import entry_for as gradient_entry
from memplan.autodiff.emit.value import Value
from memplan.autodiff.forward.annotate import Annotator, constants_of
from memplan.autodiff.lowering.lowering_registry import (
    LoweringEntry,
    entry_for,
    is_foreign,
    operator_of,
)
from memplan.errors import MemplanError, ModelError
from memplan.proto.edit import copied, rename_reads
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import all_nodes, domain_of, names_read
from memplan.proto.opset import default_opset
from memplan.shapes.tensor_type import UNKNOWN, TensorType
from memplan.shapes.training_ops import differentiated

OPTIMIZERS = ("AdamWOptimizer", "SGDOptimizerV2")
"""Operators on sequences of all parameters: what optimizer models are made of."""
LOSSES = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})
"""Function operators that no runtime has a kernel for: their expansions are leaner than ONNX's."""
# What a lowering meets in a node that no definition of ours has looked at before.
_ODD = (AssertionError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError)


class PlacedNode(NamedTuple):
    """A node, and the node of the file that it stands for: None if it is that node itself, empty if
    it is new."""

    node: onnx.NodeProto
    origin: str | None


def require_lowerings(model: onnx.ModelProto, further: Collection[str] = ()) -> None:
    """Check that every foreign operator has a lowering, or is one of ``further``.

    Raises:
        ModelError: all of those that have none, with how often and where.
    """
    opset = default_opset(model)
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for outer, node in ((n, inner) for n in model.graph.node for inner in all_nodes([n])):
        inside = node is not outer
        if not is_foreign(node, opset) or node.op_type in further:
            continue
        if inside or entry_for(node, opset) is None:
            domain = domain_of(node)
            what = f"{domain}:{operator_of(node)}" if domain else operator_of(node)
            what += " in a body" if inside else ""
            counts[what] += 1
            first.setdefault(what, node.name)
    if counts:
        shown = ", ".join(
            f"{what} ({count}x, first '{first[what]}')" for what, count in counts.most_common()
        )
        hint = "compute these by standard operators before the gradient graph is built"
        if any(op in what for what in counts for op in OPTIMIZERS):
            hint = "of an optimizer: give the training model, and this one by --optimizer-model"
        raise ModelError(f"no lowering to standard operators is known for: {shown}", hint)


class Walk:
    """Replaces what ONNX does not define: :meth:`run`, then :meth:`nodes`.

    ``emitter`` knows the type of every tensor, and may be given more nodes in between. ``renamed``
    are its tensors that have got a name of the file, ``replaced`` counts the foreign operators.
    """

    def __init__(self, model: onnx.ModelProto, further: Mapping[str, LoweringEntry]) -> None:
        """
        Args:
            model: named nodes, of which :func:`require_lowerings` holds; it is not changed.
            further: lowerings by operator that are of this one file.
        """
        graph = self.graph = model.graph
        self.further = further
        self.opset = default_opset(model)
        constants = constants_of(graph, ())
        self.annotator = Annotator(model, constants)
        self.annotator.start()
        taken = {*defined_names(graph), *(node.name for node in graph.node)}
        self.original = frozenset(taken)
        self.emitter = Emitter(
            self.opset, self.annotator.types, constants, NameAuthority(taken), model.ir_version
        )
        self.needed = names_read(graph.node) | {value.name for value in graph.output}
        self.renamed: dict[str, str] = {}
        self.replaced: Counter[str] = Counter()
        self.lowered: set[str] = set()

    def run(self) -> None:
        """Lower every node.

        Raises:
            ModelError: a node cannot be lowered, or its inputs do not fit it.
        """
        for node in self.graph.node:
            if is_foreign(node, self.opset):
                entry = self.further.get(node.op_type) or entry_for(node, self.opset)
                assert entry is not None
                self.replaced[operator_of(node)] += 1
                self._lower(node, entry)
            elif node.op_type in LOSSES:
                found = gradient_entry(node)
                assert found is not None
                assert found.expansion is not None
                self._lower(node, LoweringEntry(found.expansion, 2))
            else:
                self._keep(node)
        self.annotator.finish()

    def nodes(self) -> Iterator[PlacedNode]:
        """All nodes in order, under the names of the file's tensors."""
        for node, origin in self._in_order():
            rename_reads(node, self.renamed)
            node.output[:] = [self.renamed.get(name, name) for name in node.output]
            yield PlacedNode(node, origin)

    def named(self, value: Value) -> str:
        """The name that a tensor of the emitter has in the file."""
        return self.renamed.get(value.name, value.name)

    def _in_order(self) -> Iterator[tuple[onnx.NodeProto, str | None]]:
        behind = self.emitter.behind
        yield from ((node, "") for node in behind.get("", ()))
        for node in self.graph.node:
            if node.name not in self.lowered:
                yield copied(node), None
            yield from ((new, node.name) for new in behind.get(node.name, ()))
        yield from ((node, "") for node in self.emitter.nodes)

    def _keep(self, node: onnx.NodeProto) -> None:
        self.annotator.visit(node)
        for name in filter(None, node.output):
            self.emitter.places[name] = node.name
            self.emitter.makers[name] = node

    def _lower(self, node: onnx.NodeProto, entry: LoweringEntry) -> None:
        """Put the lowering's nodes at the place of ``node``, under the names of its outputs."""
        self.lowered.add(node.name)
        if len([name for name in node.input[: entry.inputs] if name]) < entry.inputs:
            raise ModelError(
                f"{node.op_type} '{node.name}' lacks inputs: it needs {entry.inputs}",
                "export the model again; the file is damaged or was edited",
            )
        emitter = self.emitter
        asked = copied(node)
        asked.output[:] = [name if name in self.needed else "" for name in node.output]
        for name in filter(None, asked.output):
            self.annotator.note(name, self._by_name(name))
        with emitter.scope(Scope(node.name)), emitter.placed_behind(node.name):
            try:
                values = entry.function(Context(emitter, asked))
            except ModelError:
                raise
            except (MemplanError, *_ODD) as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise ModelError(
                    f"{node.op_type} '{node.name}' cannot be lowered: {reason}",
                    "its inputs or attributes do not fit its definition",
                ) from None
            for name, value in zip(asked.output, values, strict=False):
                if name and value is not None:
                    self._give(name, value)
        lost = [name for name in asked.output if name and name not in emitter.places]
        if lost:
            raise ModelError(
                f"{node.op_type} '{node.name}': its output '{lost[0]}' has no lowering",
                "it is one that its definition does not have",
            )

    def _by_name(self, name: str) -> TensorType:
        base = differentiated(name)
        return self.emitter.types.get(base, UNKNOWN) if base is not None else UNKNOWN

    def _give(self, name: str, value: Value) -> None:
        """Let ``value`` be the tensor ``name`` of the file."""
        emitter = self.emitter
        taken = value.name in self.original or value.name in self.renamed
        constant = emitter.constant(value)
        fed = value.name in emitter.inputs
        if taken or (emitter.maker(value) is None and not fed):
            (value,) = emitter.ops("Identity", value, outputs=1)
        self.renamed[value.name] = name
        self.annotator.note(name, value.type)
        emitter.places[name] = emitter.places.get(value.name, "")
        if not fed:
            emitter.makers[name] = emitter.makers[value.name]
        if constant is not None:
            emitter.constants[name] = constant
