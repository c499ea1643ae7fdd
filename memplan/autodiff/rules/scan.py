"""The gradient of ``Scan``: a Scan that runs the other way.

Caffe2's ``recurrent_net`` in standard operators. The backward Scan carries the gradients of the
states and the sums of the gradients of captured tensors. It reads, slice by slice, the gradients of
what the forward Scan stacks, and what is kept of its steps; it stacks the gradients of the
sequences. What is kept of a step is a further output of the forward Scan.
"""

from __future__ import annotations

from functools import partial

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Value
from memplan.autodiff.scan.body import Hoisted, ScanBody
from memplan.autodiff.scan.stash import ScanStash, rank_in, recomputed_nodes
from memplan.passes.loops.cell import Cell, CellPlan, constant_tensors, plan_cell
from memplan.proto.edit import live_nodes
from memplan.proto.loop_node import Slices, read_loop, scan_attributes
from memplan.proto.nodes import names_read


@gradient("Scan")
def scan(ctx: Context) -> Gradients:
    """See the module's text."""
    return _ScanGradient(ctx).run()


class _ScanGradient:
    """Builds the backward of one Scan node."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.outer = ctx.emitter
        self.call = read_loop(ctx.node, partial(rank_in, self.outer))
        self.step = ScanBody(ctx, self.call)
        self.writer = self.step.writer
        self.body = self.step.emitter
        self._inputs = self.call.state_inputs + self.call.slice_inputs
        self.stash = ScanStash(self.outer, self.call, self.body.types)

    def run(self) -> dict[str, Value | None]:
        """The gradients by outer name."""
        step, call = self.step, self.call
        if not self.writer.outputs:
            return {}
        kept = self._kept()
        scanned = [
            item.backwards(grad.name)
            for item, grad in (
                (call.stacked[k], self.ctx.grads[len(call.finals) + k]) for k in step.seeded
            )
            if grad is not None
        ]
        used = [name for name in self._inputs if name in kept.used]
        if not (scanned or used or kept.stored):  # a Scan must read something to count its steps
            used = [call.slice_inputs[0]]
        for inner in (*used, *kept.stored):
            self.writer.input(inner, self.body.types[inner], new=False)
            scanned.append(self.stash.sequence(inner))
        stacked = [call.sequences[k].backwards("") for k in step.sliced]
        outs = self._emit(recomputed_nodes(kept, self.outer), scanned, stacked)
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
                value = self.outer.tensor(self.stash.sequence(side).name)
            width = value.shape[2]
            assert isinstance(width, int)
            sides.append(self.ctx.rows(value, width))
        return self.ctx.gemm(sides[0], sides[1], 1)

    def _kept(self) -> CellPlan:
        """What the backward step reads of the forward step. What is the same at every step is
        recomputed; all else is stored."""
        nodes = live_nodes(self.body.nodes, [value.name for value in self.writer.outputs])
        made = {name for node in nodes for name in node.output}
        own = {value.name for value in self.writer.inputs}
        cell = Cell(
            nodes=list(self.call.body.node),
            inputs=self._inputs,
            needed=frozenset(names_read(nodes) - made - own),
        )
        return plan_cell(cell, constant_tensors(cell))

    def _emit(
        self, recomputed: list[onnx.NodeProto], scanned: list[Slices], stacked: list[Slices]
    ) -> tuple[Value, ...]:
        """The backward Scan; its outputs."""
        ctx, step, call = self.ctx, self.step, self.call
        inputs: list[Value] = []
        for k in step.states:
            grad = ctx.grads[k] if k < len(ctx.grads) else None
            initial = self.outer.tensor(call.initials[k])
            inputs.append(ctx.full_like(initial) if grad is None else grad)
        types = [value.type for value in inputs]
        for name in step.captured:
            inputs.append(ctx.base_of(name))
            types.append(self.outer.tensor(name).type)
        types += [self.outer.tensor(call.sequences[k].name).type for k in step.sliced]
        inputs += [self.outer.tensor(item.name) for item in scanned]
        constants = {tensor.name: tensor for tensor in call.body.initializer}
        body = self.writer.graph(f"{call.body.name}_grad", constants, recomputed)
        return self.outer.ops(
            "Scan",
            *inputs,
            outputs=len(types),
            results=tuple(types),
            **scan_attributes(body, scanned, stacked),
        )
