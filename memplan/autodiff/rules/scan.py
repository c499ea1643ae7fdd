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
from memplan.autodiff.projections import Projection, find_projection
from memplan.autodiff.recompute import Cell, Kept, decide
from memplan.autodiff.registry import Gradients, gradient
from memplan.autodiff.scan_body import Hoisted, ScanBody
from memplan.autodiff.scan_call import (
    Sequence,
    add_stacked,
    read_scan,
    scan_attributes,
    slice_type,
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
        self.read: dict[str, Sequence] = {}

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
        projections = self._projections(kept)
        for found in projections.values():
            source = found.source
            kind = slice_type(self.outer.tensor(source.name).type, source.axis)
            self.writer.input(found.formal, kind, new=False)
            scanned.append(Sequence(source.name, source.axis, 1 - source.direction))
        used = [n for n in self._inputs if n in kept.used and n not in projections]
        for inner in (*used, *kept.stored):
            self.writer.input(inner, self.body.types[inner], new=False)
            scanned.append(self._sequence(inner))
        stacked = [
            Sequence("", call.sequences[k].axis, 1 - call.sequences[k].direction)
            for k in step.sliced
        ]
        again = [*(item.node for item in projections.values()), *_again(kept)]
        outs = self._emit(again, scanned, stacked)
        names = [call.initials[k] for k in step.states] + step.captured
        names += [call.sequences[k].name for k in step.sliced]
        result: dict[str, Value | None] = {}
        for name, grad in zip(names, outs, strict=True):
            before = result.get(name)
            result[name] = grad if before is None else before + grad
        for item in step.hoisted:
            before = result.get(item.name)
            grad = self._product(item, outs[len(outs) - len(step.sliced) :])
            result[item.name] = grad if before is None else before + grad
        return result

    def _product(self, item: Hoisted, slices: tuple[Value, ...]) -> Value:
        """The sum of matrix products over all steps, as one product."""
        sides = []
        for side in (item.left, item.right):
            if isinstance(side, int):
                value = slices[self.step.sliced.index(side)]
            else:
                value = self.outer.tensor(self._sequence(side).name)
            width, count = value.shape[2], value.type.elements
            assert isinstance(width, int)
            rows = count // width if count is not None and width else ""
            sides.append(self.outer.reshape(value, (rows, width)))
        return self.outer.gemm(sides[0], sides[1], 1)

    def _projections(self, kept: Kept) -> dict[str, Projection]:
        """Slices that only a step run again reads, and that are made again, too."""
        if self.outer.scan_recompute.text != "all":
            return {}
        names = [n for n in self.call.slice_inputs if n in kept.used and n not in kept.needed]
        found = {name: find_projection(self.outer, self.call.kept_as(name), name) for name in names}
        return {name: item for name, item in found.items() if item is not None}

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
                name
                for node in self.call.body.node
                for name in node.output
                if self.call.stacked_as(name)
            ),
            types=self.body.types,
        )
        return decide(cell, self.outer.scan_recompute)

    def _emit(
        self, again: list[onnx.NodeProto], scanned: list[Sequence], stacked: list[Sequence]
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
        body = self.writer.graph(f"{call.body.name}_grad", constants, again)
        return self.outer.ops(
            "Scan",
            *inputs,
            outputs=len(types),
            results=tuple(types),
            **scan_attributes(body, scanned, stacked),
        )

    # -- what is kept --------------------------------------------------------------------------

    def _sequence(self, inner: str) -> Sequence:
        """A tensor of the body at all steps, read from the last step on."""
        if inner not in self.read:
            self.read[inner] = self._new_sequence(inner)
        return self.read[inner]

    def _new_sequence(self, inner: str) -> Sequence:
        call = self.call
        found = call.kept_as(inner)
        if not found.name:
            found = self._stack(inner, found)
        elif inner in call.state_inputs and call.stacked_as(inner) is None:
            found = self._shifted(found, call.initials[call.state_inputs.index(inner)])
        return Sequence(found.name, found.axis, 1 - found.direction)

    def _stack(self, inner: str, place: Sequence) -> Sequence:
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
        item = Sequence(name, 0, place.direction)
        add_stacked(call, item, source, write_type(found, final=True))
        self.outer.types[name] = stacked_type(found, 0, self._steps())
        self.outer.places[name] = call.node.name
        self.outer.makers[name] = call.node
        return item

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
        return Sequence(found.name, axis, after.direction)


def _again(kept: Kept) -> list[onnx.NodeProto]:
    """The nodes that run again, as nodes of the backward step."""
    clones = []
    for node in kept.again:
        clone = onnx.NodeProto.FromString(node.SerializeToString())
        clone.name = f"{node.name}/recompute"
        helper.set_metadata_props(clone, {PHASE_KEY: Phase.BACKWARD, FORWARD_KEY: node.name})
        clones.append(clone)
    return clones
