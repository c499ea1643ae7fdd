"""LSTM, GRU and RNN, by expansion to ``Scan``: one per direction.

What the inputs contribute to the gates is one matrix product in front of the loop. Equations, gate
order and defaults are those of ONNX's operator documentation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.gradient_registry import expansion
from memplan.autodiff.emit.value import Value
from memplan.autodiff.loop_bodies import BodyWriter
from memplan.autodiff.scan.cells import CellWeights, Gru, Lstm, RecurrentCell, Rnn, activations
from memplan.autodiff.scan.stash import slice_type
from memplan.errors import ModelError
from memplan.proto.loop_node import Slices, scan_attributes
from memplan.shapes.tensor_type import TensorType


@expansion("LSTM")
def lstm(ctx: Context) -> Sequence[Value | None]:
    """Three activations (gates, cell, output), two states."""
    return _Expansion(ctx, Lstm, gates=4, states=2, defaults=("Sigmoid", "Tanh", "Tanh")).run()


@expansion("GRU")
def gru(ctx: Context) -> Sequence[Value | None]:
    """Two activations; the reset gate acts before or after the recurrent product."""
    return _Expansion(ctx, Gru, gates=3, states=1, defaults=("Sigmoid", "Tanh")).run()


@expansion("RNN")
def rnn(ctx: Context) -> Sequence[Value | None]:
    """Hₜ = f(Xₜ·Wᵀ + Hₜ₋₁·Rᵀ + b)."""
    return _Expansion(ctx, Rnn, gates=1, states=1, defaults=("Tanh",)).run()


def _refuse_rare(ctx: Context) -> None:
    """Refuse what hardly any exporter writes.

    Raises:
        ModelError: the layer has such a thing.
    """
    for is_here, does, part in (
        (ctx.has_attribute("clip"), "clips its gates", "attribute clip"),
        (bool(ctx.attribute("input_forget", 0)), "couples its gates", "attribute input_forget"),
        (bool(ctx.attribute("layout", 0)), "has the batch first", "attribute layout"),
        (ctx.input(7) is not None, "has peepholes", "input P"),
    ):
        if is_here:
            raise ModelError(
                f"{ctx.node.op_type} '{ctx.node.name}' {does} ({part}), which has no gradient here",
                f"remove the {part.split()[0]}, or take the operator off the path to the loss",
            )


class _Expansion:
    """An operator of this family, written out."""

    def __init__(
        self,
        ctx: Context,
        cell: type[RecurrentCell],
        gates: int,
        states: int,
        defaults: tuple[str, ...],
    ) -> None:
        self.ctx = ctx
        self.cell = cell
        self.states = states
        self.gates = gates
        self.directions = 2 if ctx.attribute("direction", "forward") == "bidirectional" else 1
        _refuse_rare(ctx)
        self.activations = activations(ctx, defaults, self.directions)
        self.x, _, r = ctx.tensors[:3]
        hidden, width = r.shape[2], self.x.shape[2]
        if not isinstance(hidden, int) or not isinstance(width, int):
            raise ModelError(
                f"the hidden or input size of {ctx.node.op_type} '{ctx.node.name}' is not known",
                "add value_info for its weights",
            )
        self.hidden, self.width = hidden, width
        self.mask = self._mask()

    def run(self) -> list[Value | None]:
        """The outputs of the operator."""
        ctx = self.ctx
        wanted = [bool(name) for name in ctx.node.output] + [False] * 3
        sides = [self._direction(k, wanted[0]) for k in range(self.directions)]
        found: list[Value | None] = []
        for k in range(1 + self.states):
            if not wanted[k]:
                found.append(None)
                continue
            axis = 1 if k == 0 else 0
            parts = [ctx.unsqueeze(side[k], [axis]) for side in sides]
            whole = parts[0] if len(parts) == 1 else ctx.op("Concat", *parts, axis=axis)
            found.append(whole)
        return found[: len(ctx.node.output)]

    def _part(self, slot: int, direction: int) -> Value | None:
        """An input of one direction: weights, bias, initial states have a leading axis of them."""
        value = self.ctx.input(slot)
        if value is None:
            return None
        if self.directions > 1:
            value = self.ctx.slice(value, [direction], [direction + 1], [0])
        return self.ctx.squeeze(value, [0])

    def _weights(self, direction: int) -> CellWeights:
        ctx, size = self.ctx, self.gates * self.hidden
        recurrent = self._part(2, direction)
        assert recurrent is not None
        bias = self._part(3, direction)
        if bias is None:
            return CellWeights(recurrent, None, None)
        first, second = (ctx.slice(bias, [k * size], [(k + 1) * size], [0]) for k in (0, 1))
        if not self.cell.keeps_bias(ctx):
            return CellWeights(recurrent, first + second, None)
        return CellWeights(recurrent, first, second)

    def _projected(self, direction: int, bias: Value | None) -> Value:
        """X·Wᵀ + b of all steps at once, [T, B, gates·hidden]."""
        ctx, size = self.ctx, self.gates * self.hidden
        weight = self._part(1, direction)
        assert weight is not None
        product = ctx.op("Gemm", ctx.rows(self.x, self.width), weight, bias, transB=1)
        shape = (*self.x.shape[:2], size)
        if sum(isinstance(dim, str) for dim in shape) <= 1:
            return ctx.reshape(product, shape)
        wanted = ctx.vector([ctx.dims(self.x, [0, 1]), ctx.const([size])])
        return ctx.op("Reshape", product, wanted, result=TensorType(product.dtype, shape))

    def _initial(self, slot: int, direction: int) -> Value:
        given = self._part(slot, direction)
        if given is not None:
            return given
        ctx = self.ctx
        kind = TensorType(self.x.dtype, (self.x.shape[1], self.hidden))
        shape = ctx.vector([ctx.dims(self.x, [1]), ctx.const([self.hidden])])
        return ctx.op("Expand", ctx.const(0, self.x.dtype), shape, result=kind)

    def _mask(self) -> Value | None:
        """Which steps belong to a sequence, [T, B, 1]; None if all have full length."""
        ctx, lengths = self.ctx, self.ctx.input(4)
        known, steps = ctx.constant(lengths), self.x.shape[0]
        if lengths is None or (known is not None and bool(np.all(known == steps))):
            return None
        count = ctx.squeeze(ctx.dims(self.x, [0]), [0])
        kind = TensorType(TensorProto.INT64, (steps,))
        times = ctx.op("Range", ctx.const(0), count, ctx.const(1), result=kind)
        mask = ctx.op("Less", ctx.unsqueeze(times, [1]), ctx.cast(lengths, TensorProto.INT64))
        return ctx.unsqueeze(mask, [2])

    def _direction(self, direction: int, sequence: bool) -> list[Value]:
        """[all H, last H, (last C)] of one direction."""
        ctx = self.ctx
        backward = direction == 1 or ctx.attribute("direction", "forward") == "reverse"
        weights = self._weights(direction)
        projected = self._projected(direction, weights.input_bias)
        initials = [self._initial(5 + k, direction) for k in range(self.states)]
        scanned = [projected, *([self.mask] if self.mask is not None else [])]
        body = self._body(initials, scanned, weights, direction, sequence)
        stem = f"{ctx.node.name}/{'reverse' if backward else 'forward'}"
        items = [Slices(value.name, 0, backward) for value in scanned]
        stacked = [Slices("", 0, backward)] if sequence else []
        types = [value.type for value in initials]
        if sequence:
            shape = (*self.x.shape[:2], self.hidden)
            types.append(TensorType(self.x.dtype, shape))
        with ctx.emitter.scope(Scope(stem)):
            found = ctx.ops(
                "Scan",
                *initials,
                *scanned,
                outputs=len(types),
                results=tuple(types),
                **scan_attributes(body, items, stacked),
            )
        finals = list(found[: self.states])
        return [found[-1] if sequence else finals[0], *finals]

    def _body(
        self,
        initials: list[Value],
        scanned: list[Value],
        weights: CellWeights,
        direction: int,
        sequence: bool,
    ) -> onnx.GraphProto:
        """One step."""
        outer = self.ctx.emitter
        emitter = Emitter(outer.opset, {}, dict(outer.constants), outer.names, outer.ir_version)
        writer = BodyWriter(emitter)
        stem = f"{self.ctx.node.name}/{'reverse' if direction else 'forward'}"
        with emitter.scope(Scope(f"{stem}/step")):
            names = ("h", "c")[: self.states]
            states = [
                writer.input(f"{stem}/{name}", value.type)
                for name, value in zip(names, initials, strict=True)
            ]
            slices = [
                writer.input(f"{stem}/{name}", slice_type(value.type, 0))
                for name, value in zip(("x", "mask"), scanned, strict=False)
            ]
            cell = self.cell(self.ctx, writer, weights, self.activations[direction], stem)
            after = cell.step(slices[0], *states)
            shown = after[0]
            if len(slices) > 1:
                mask = slices[1]
                after = [
                    emitter.op("Where", mask, new, old)
                    for new, old in zip(after, states, strict=True)
                ]
                shown = emitter.op("Where", mask, shown, 0.0) if sequence else shown
        for value in after:
            writer.output(value)
        if sequence:
            with emitter.scope(Scope(f"{stem}/y")):
                writer.output(shown)
        return writer.graph(f"{stem}/step")
