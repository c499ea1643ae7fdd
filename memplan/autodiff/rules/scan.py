"""The gradient of ``Scan``: a Scan that runs the other way.

Caffe2's ``recurrent_net`` in standard operators. The backward Scan carries the gradients of the
states and the sums of the gradients of captured tensors. It reads, slice by slice, the gradients of
what the forward Scan stacks, and what is kept of its steps; it stacks the gradients of the
sequences. What is kept of a step is a further output of the forward Scan.
"""

from __future__ import annotations

import onnx
from onnx import helper

from memplan.autodiff.bodies import live_nodes, names_read
from memplan.autodiff.context import Context
from memplan.autodiff.emitter import FORWARD_KEY
from memplan.autodiff.recompute import Cell, Kept, decide
from memplan.autodiff.registry import Gradients, gradient
from memplan.autodiff.scan_body import ScanBody
from memplan.autodiff.scan_call import (
    Sequence,
    add_stacked,
    read_scan,
    scan_attributes,
    stacked_type,
)
from memplan.autodiff.types import Dim, write_type
from memplan.autodiff.value import Value
from memplan.graph.phases import KEY as PHASE_KEY
from memplan.graph.types import Phase

_END = 2**31 - 1


@gradient("Scan")
def scan(ctx: Context) -> Gradients:
    """See the module's text."""
    return _ScanGradient(ctx).run()


class _ScanGradient:
    """Builds the backward of one Scan node."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.outer = ctx.emitter
        self.call = read_scan(ctx.node, self.outer)
        self.step = ScanBody(ctx, self.call)
        self.writer = self.step.writer
        self.body = self.step.emitter
        self._inputs = self.call.state_inputs + self.call.slice_inputs
        self.roots: dict[str, str] = {}
        for node in self.call.body.node:
            if node.op_type == "Identity":
                self.roots[node.output[0]] = self._root(node.input[0])

    def run(self) -> dict[str, Value | None]:
        """The gradients by outer name."""
        step, call = self.step, self.call
        if not self.writer.outputs:
            return {}
        kept = self._kept()
        scanned = [
            Sequence(grad.name, item.axis, 1 - item.direction)
            for item, grad in (
                (call.stacked[k], self.ctx.grads[len(call.finals) + k]) for k in step.seeded
            )
            if grad is not None
        ]
        for inner in (*(n for n in self._inputs if n in kept.used), *kept.stored):
            self.writer.input(inner, self.body.types[inner], new=False)
            scanned.append(self._sequence(inner))
        stacked = [
            Sequence("", call.sequences[k].axis, 1 - call.sequences[k].direction)
            for k in step.sliced
        ]
        outs = self._emit(kept, scanned, stacked)
        names = [call.initials[k] for k in step.states] + step.captured
        names += [call.sequences[k].name for k in step.sliced]
        found: dict[str, Value | None] = {}
        for name, grad in zip(names, outs, strict=True):
            before = found.get(name)
            found[name] = grad if before is None else before + grad
        return found

    def _kept(self) -> Kept:
        """What the backward step reads of the forward step, and how it comes by it."""
        nodes = live_nodes(self.body.nodes, [value.name for value in self.writer.outputs])
        made = {name for node in nodes for name in node.output}
        own = {value.name for value in self.writer.inputs}
        cell = Cell(
            nodes=list(self.call.body.node),
            inputs=self._inputs,
            needed=frozenset(names_read(nodes) - made - own),
            stacked=frozenset(
                name for node in self.call.body.node for name in node.output if self._stacked(name)
            ),
            types=self.body.types,
        )
        return decide(cell, self.outer.scan_recompute)

    def _emit(
        self, kept: Kept, scanned: list[Sequence], stacked: list[Sequence]
    ) -> tuple[Value, ...]:
        """The backward Scan; its outputs."""
        ctx, step, call = self.ctx, self.step, self.call
        inputs: list[Value] = []
        for k in step.states:
            grad = ctx.grads[k] if k < len(ctx.grads) else None
            initial = self.outer.tensor(call.initials[k])
            inputs.append(self.outer.full_like(initial) if grad is None else grad)
        types = [value.type for value in inputs]
        for name in step.captured:
            inputs.append(ctx.base_of(name))
            types.append(self.outer.tensor(name).type)
        types += [self.outer.tensor(call.sequences[k].name).type for k in step.sliced]
        inputs += [self.outer.tensor(item.name) for item in scanned]
        constants = {tensor.name: tensor for tensor in call.body.initializer}
        body = self.writer.graph(f"{call.body.name}_grad", constants, _again(kept))
        return self.outer.ops(
            "Scan",
            *inputs,
            outputs=len(types),
            results=tuple(types),
            **scan_attributes(body, scanned, stacked),
        )

    # -- what is kept --------------------------------------------------------------------------

    def _root(self, name: str) -> str:
        """What a chain of ``Identity`` in the body starts from."""
        return self.roots.get(name, name)

    def _sequence(self, inner: str) -> Sequence:
        """A tensor of the body at all steps, read from the last step on."""
        call = self.call
        if inner in call.slice_inputs:
            item = call.sequences[call.slice_inputs.index(inner)]
            return Sequence(item.name, item.axis, 1 - item.direction)
        found = self._stacked(inner)
        if found is None and inner in call.state_inputs:
            k = call.state_inputs.index(inner)
            after = self._stacked(call.state_outputs[k])
            if after is not None:
                return self._shifted(after, call.initials[k])
        if found is None:
            found = self._stack(inner)
        return Sequence(found.name, found.axis, 1 - found.direction)

    def _stacked(self, inner: str) -> Sequence | None:
        """The output of the forward Scan that holds a tensor of its body at all steps."""
        for item, name in zip(self.call.stacked, self.call.slice_outputs, strict=False):
            if item.name and self._root(name) == self._root(inner):
                return item
        return None

    def _stack(self, inner: str) -> Sequence:
        """Make the forward Scan stack a tensor of its body."""
        call, body = self.call, self.call.body
        name = self.outer.fresh(f"{inner}/stash")
        last = {value.name for value in body.output}
        made = {out for node in body.node for out in node.output}
        source = inner
        if inner in last or inner not in made:
            source = self.outer.fresh(f"{inner}/kept")
            body.node.append(helper.make_node("Identity", [inner], [source], name=source))
        found = self.body.types[inner]
        add_stacked(call.node, name, source, write_type(found, final=True))
        self.outer.types[name] = stacked_type(found, 0, self._steps())
        self.outer.places[name] = call.node.name
        self.outer.makers[name] = call.node
        return Sequence(name, 0, 0)

    def _steps(self) -> Dim:
        item = self.call.sequences[0]
        shape = self.outer.tensor(item.name).type.shape
        return "" if shape is None else shape[item.axis]

    def _shifted(self, after: Sequence, initial: str) -> Sequence:
        """The states before all steps, from those behind them: nothing more needs to be kept."""
        whole, axis = self.outer.tensor(after.name), after.axis
        first = self.outer.unsqueeze(self.outer.tensor(initial), [axis])
        if after.direction:
            parts = [self.outer.slice(whole, [1], [_END], [axis]), first]
        else:
            parts = [first, self.outer.slice(whole, [0], [-1], [axis])]
        found = self.outer.op("Concat", *parts, axis=axis, result=whole.type)
        return Sequence(found.name, axis, 1 - after.direction)


def _again(kept: Kept) -> list[onnx.NodeProto]:
    """The nodes that run again, as nodes of the backward step."""
    clones = []
    for node in kept.again:
        clone = onnx.NodeProto.FromString(node.SerializeToString())
        clone.name = f"{node.name}/recompute"
        helper.set_metadata_props(clone, {PHASE_KEY: Phase.BACKWARD, FORWARD_KEY: node.name})
        clones.append(clone)
    return clones
