"""The body of a ``Scan``, differentiated: one step of the backward loop."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from memplan.autodiff.activity import find_activity
from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.emitter import Scope
from memplan.autodiff.emit.operations import Operations
from memplan.autodiff.emit.value import Value
from memplan.autodiff.forward.expand import Expanded, emitter_for, expand_all
from memplan.autodiff.loop_bodies import (
    BodyWriter,
    body_model,
    restored,
    separate_outputs,
)
from memplan.autodiff.reverse import ReversePass
from memplan.autodiff.scan.stash import input_types, kept_as
from memplan.ir.graph import Phase
from memplan.proto.loop_node import LoopNode
from memplan.proto.metadata import PHASE_KEY
from memplan.proto.nodes import free_names


@dataclass(frozen=True, slots=True)
class Hoisted:
    """The gradient of the outer tensor ``name`` is Σ leftᵀ·right over the steps.

    An entry is the number of a slice, whose gradients those are, or an input of the forward body.
    """

    name: str
    left: int | str
    right: int | str


class ScanBody:
    """One backward step.

    Its inputs are, in this order: gradients of the states ``states`` (their numbers), sums of the
    gradients of the outer tensors ``captured``, gradients of the stacked outputs ``seeded`` (their
    numbers); what the caller adds (kept tensors of the step) comes behind. Its outputs are the
    gradients and sums in the same order, then gradients of the slices ``sliced`` (their numbers).
    Gradients that one matrix product behind the loop gives are ``hoisted`` instead of summed.
    The forward body is changed as rules want it.
    """

    def __init__(self, ctx: Context, call: LoopNode) -> None:
        self.call = call
        self.name = ctx.node.name
        outer = ctx.emitter
        mark = f"{self.name}:"
        separate_outputs(call.body, outer)
        model = body_model(outer, call.body, input_types(call, outer))
        captured = [name for name in free_names(call.body) if name in ctx.needed]
        formal = zip(ctx.node.input, self._formal(), strict=True)
        xs = {*captured, *(inner for name, inner in formal if name in ctx.needed)}
        xs = {name for name in xs if name}
        types = emitter_for(model, xs, None, mark).types
        self.inner_types = types
        ys = {
            inner
            for k, inner in enumerate(call.slice_outputs)
            if self._grad(ctx, len(call.finals) + k) is not None
        }
        self._grow_below(list(model.graph.node), xs)
        self.states = self._grow_above(ctx, list(model.graph.node), xs, ys)
        seen = expand_all(model, ys, xs, outer.names, mark, portable=outer.portable)
        self.emitter = seen.emitter
        self.writer = BodyWriter(self.emitter)
        self.hoisted: list[Hoisted] = []
        active = seen.activity.tensors
        self.captured = [name for name in captured if name in active]
        self.sliced = [k for k, name in enumerate(call.slice_inputs) if name in active & xs]
        self.seeded = [
            k
            for k, name in enumerate(call.slice_outputs)
            if name in active and self._grad(ctx, len(call.finals) + k) is not None
        ]
        with self.emitter.scope(Scope(f"{self.name}/grad", {PHASE_KEY: Phase.BACKWARD})):
            found = self._reverse(seen)
            self._hoist(found)
            self._finish(found)
        restored(seen.model, call.body, self.emitter)

    def _formal(self) -> tuple[str, ...]:
        return self.call.state_inputs + self.call.slice_inputs

    @staticmethod
    def _grad(ctx: Context, output: int) -> Value | None:
        return ctx.grads[output] if output < len(ctx.grads) else None

    def _grow_below(self, nodes: list[onnx.NodeProto], xs: set[str]) -> None:
        """Add states that depend on what is wanted, at this step or an earlier one."""
        states = list(zip(self.call.state_inputs, self.call.state_outputs, strict=True))
        grown = True
        while grown:
            grown = False
            for before, after in states:
                if before in xs or not self.inner_types[before].is_float:
                    continue
                if after in find_activity(nodes, self.inner_types, {after}, xs).tensors:
                    xs.add(before)
                    grown = True

    def _grow_above(
        self, ctx: Context, nodes: list[onnx.NodeProto], xs: set[str], ys: set[str]
    ) -> list[int]:
        """States that carry a gradient: they lead to an output that brings one in, at this step or
        a later one. ``ys`` grows by them."""
        call = self.call
        found: set[int] = set()
        grown = True
        while grown:
            grown = False
            active = find_activity(nodes, self.inner_types, ys, xs).tensors
            for k, (before, after) in enumerate(
                zip(call.state_inputs, call.state_outputs, strict=True)
            ):
                comes = before in active or self._grad(ctx, k) is not None
                if k not in found and before in xs and comes:
                    found.add(k)
                    ys.add(after)
                    grown = True
        return sorted(found)

    def _reverse(self, seen: Expanded) -> dict[str, Value]:
        """The gradients of the body's inputs and captured tensors at one step."""
        types, write, call = self.emitter.types, self.writer.input, self.call
        carried = [
            write(f"{call.state_inputs[k]}_grad", types[call.state_inputs[k]]) for k in self.states
        ]
        self.sums = [write(f"{name}_sum", types[name]) for name in self.captured]
        seeds = {call.state_outputs[k]: grad for k, grad in zip(self.states, carried, strict=True)}
        for k in self.seeded:
            inner = call.slice_outputs[k]
            part = write(f"{inner}_grad", types[inner])
            seeds[inner] = seeds[inner] + part if inner in seeds else part
        found: dict[str, Value] = {}
        xs = [n for n in (*self._formal(), *self.captured) if n in seen.activity.tensors]
        ReversePass(seen, xs, found.__setitem__).run(seeds)
        return found

    def _hoist(self, found: dict[str, Value]) -> None:
        """Take gradients out of the loop that need nothing but what is stacked anyway."""
        slots = {
            found[n].name: k
            for k, n in enumerate(self.call.slice_inputs)
            if k in self.sliced and n in found
        }
        for name, total in list(zip(self.captured, self.sums, strict=True)):
            made = self.emitter.maker(found[name]) if name in found else None
            if made is None or made.op_type != "Gemm" or len(made.input) != 2:
                continue
            given = {a.name: onnx.helper.get_attribute_value(a) for a in made.attribute}
            flags = given.get("transA", 0), given.get("transB", 0), given.get("alpha", 1.0)
            sides = [slots.get(n, n if n in self._formal() else None) for n in made.input]
            left, right = sides
            if flags != (1, 0, 1.0) or left is None or right is None or not self._aligned(sides):
                continue
            self.hoisted.append(Hoisted(name, left, right))
            self.captured.remove(name)
            self.sums.remove(total)
            unused = next(v for v in self.writer.inputs if v.name == total.name)
            self.writer.inputs.remove(unused)

    def _aligned(self, sides: list[int | str | None]) -> bool:
        """Whether two sequences have their steps along axis 0, in the same order."""
        items = [
            self.call.sequences[side] if isinstance(side, int) else kept_as(self.call, str(side))
            for side in sides
        ]
        widths = [
            self.inner_types[side if isinstance(side, str) else self.call.slice_inputs[side or 0]]
            for side in sides
        ]
        flat = all(
            t.shape is not None and len(t.shape) == 2 and isinstance(t.shape[1], int)
            for t in widths
        )
        axes, orders = {item.axis for item in items}, {item.reversed_ for item in items}
        return flat and axes == {0} and len(orders) == 1

    def _finish(self, found: dict[str, Value]) -> None:
        """The outputs of the backward step."""
        for k in self.states:
            self.writer.output(self._or_zero(found, self.call.state_inputs[k]))
        for name, total in zip(self.captured, self.sums, strict=True):
            self.writer.output(self._added(total, found[name]) if name in found else total)
        for k in self.sliced:
            self.writer.output(self._or_zero(found, self.call.slice_inputs[k]))

    def _or_zero(self, found: dict[str, Value], name: str) -> Value:
        grad = found.get(name)
        return (
            Operations(self.emitter).full_like(self.emitter.tensor(name)) if grad is None else grad
        )

    def _added(self, total: Value, grad: Value) -> Value:
        """``total + grad``; a matrix product adds by itself."""
        made = self.emitter.maker(grad)
        readers = sum(grad.name in node.input for node in self.emitter.nodes)
        if made is None or made.op_type != "Gemm" or len(made.input) != 2 or readers:
            return total + grad
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in made.attribute}
        left, right = (self.emitter.tensor(name) for name in made.input)
        return self.emitter.op("Gemm", left, right, total, **attributes)
