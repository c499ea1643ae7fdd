"""What rules build with: operators, and shapes that may be symbolic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.value import Number, Value
from memplan.errors import ModelError
from memplan.proto.nodes import operator_key
from memplan.shapes.tensor_type import Dim, Shape, TensorType

INT64 = onnx.TensorProto.INT64
_BEFORE_ALL = -(2**31)
"""The end of a slice that goes backwards to the first element."""


class Operations:
    """Operators on tensors, built by ``emitter``; the context of a rule is one."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.opset = emitter.opset
        # What the emitter does, at hand.
        self.op, self.ops = emitter.op, emitter.ops
        self.const, self.constant = emitter.const, emitter.constant
        self.tensor, self.maker = emitter.tensor, emitter.maker
        self.in_backward_part, self.beside = emitter.in_backward_part, emitter.beside

    # -- shapes --------------------------------------------------------------------------------

    def shape_of(self, value: Value) -> Value:
        """The shape as an int64 vector: a constant if it is static, else a ``Shape`` node.

        That node stands right behind the tensor's producer, so that it keeps nothing alive.
        """
        sizes = value.type.sizes
        if sizes is not None:
            return self.const(list(sizes))
        with self.beside(value):
            return self.op("Shape", value)

    def dims(self, value: Value, axes: Sequence[int]) -> Value:
        """The sizes of some axes as an int64 vector."""
        picked = [value.shape[axis] for axis in axes]
        sizes = [dim for dim in picked if isinstance(dim, int)]
        if len(sizes) == len(picked):
            return self.const(sizes)
        shape = self.shape_of(value)
        with self.beside(value):
            return self.op("Gather", shape, self.const(list(axes)), axis=0)

    def count(self, value: Value, axes: Sequence[int], dtype: int) -> Value:
        """How many elements lie along ``axes``, as a scalar of ``dtype``."""
        dims = [value.shape[axis] for axis in axes]
        sizes = [dim for dim in dims if isinstance(dim, int)]
        if len(sizes) == len(dims):
            return self.const(math.prod(sizes), dtype)
        if len(dims) == value.rank:
            with self.beside(value):
                return self.cast(self.op("Size", value), dtype)
        vector = self.dims(value, axes)
        with self.beside(value):
            return self.cast(self.reduce("ReduceProd", vector, [0], keepdims=False), dtype)

    def reshape(self, value: Value, shape: Sequence[Dim], like: Value | None = None) -> Value:
        """``value`` in another shape, of which one dimension may be symbolic.

        ``like`` is a tensor of that shape; it is needed where more dimensions are symbolic and
        not all of them are ``value``'s.
        """
        target, given = tuple(shape), value
        made = self.maker(value)
        if made is not None and made.op_type == "Reshape" and self.in_backward_part(value):
            value = self.tensor(made.input[0])
        if value.type.shape == target:
            return value
        names = [dim for dim in target if isinstance(dim, str)]
        if len(names) <= 1 and 0 not in target:
            numbers = [dim if isinstance(dim, int) else -1 for dim in target]
            wanted = self.const(numbers)
        elif like is not None:
            wanted = self.shape_of(like)
        else:
            if 0 in target or not set(names) <= {*given.shape} - {""}:
                raise ModelError(
                    f"the gradient behind '{given.name}' needs static shapes: "
                    f"no size of {target} may be 0 or unknown in {given.shape}"
                )
            parts = [
                self.const([dim])
                if isinstance(dim, int)
                else self.dims(given, [given.shape.index(dim)])
                for dim in target
            ]
            wanted = self.vector(parts)
        return self.op("Reshape", value, wanted, result=TensorType(value.dtype, target))

    def reshape_like(self, value: Value, like: Value) -> Value:
        """``value`` in the shape of ``like``."""
        return self.reshape(value, like.shape, like)

    def rows(self, value: Value, last: int) -> Value:
        """All dimensions but the last, which is known to be ``last``, as one."""
        if value.rank == 2:
            return value
        count = value.type.elements
        return self.reshape(value, (count // last if count is not None and last else "", last))

    def expand_like(self, value: Value, like: Value) -> Value:
        """``value`` broadcast to the shape of ``like``, whatever its rank turns out to be."""
        if value.type.shape is not None and value.type.shape == like.type.shape:
            return value
        result = TensorType(value.dtype, like.type.shape)
        return self.op("Expand", value, self.shape_of(like), result=result)

    def full_like(self, like: Value, content: Number = 0) -> Value:
        """A tensor of the type of ``like`` that holds one number everywhere."""
        return self.expand_like(self.const(content, like.dtype), like)

    def squeeze(self, value: Value, axes: Sequence[int]) -> Value:
        """Drop dimensions of size 1."""
        return self._axes("Squeeze", value, axes) if axes else value

    def unsqueeze(self, value: Value, axes: Sequence[int]) -> Value:
        """Insert dimensions of size 1 (positions in the result)."""
        return self._axes("Unsqueeze", value, axes) if axes else value

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        """Axis ``k`` of the result is axis ``perm[k]`` of ``value``; a view where nothing moves."""
        if list(perm) == list(range(len(perm))):
            return value
        shape = tuple(value.shape[axis] for axis in perm)
        names = [dim for dim in shape if isinstance(dim, str)]
        moving = [axis for axis in perm if value.shape[axis] != 1]
        if moving == sorted(moving) and len(names) <= 1 and 0 not in shape:
            return self.reshape(value, shape)
        source, inner = self._permuted(value)
        if [inner[axis] for axis in perm] == list(range(len(perm))):
            return source
        new, made = self.in_backward_part(value), self.maker(value)
        if source != value and new:
            return self.transpose(source, [inner[axis] for axis in perm])
        if made is not None and made.op_type == "Gemm" and len(made.input) == 2 and new:
            return self._transposed_product(made)
        return self.op("Transpose", value, perm=list(perm))

    def _transposed_product(self, made: onnx.NodeProto) -> Value:
        """(A·B)ᵀ as Bᵀ·Aᵀ; the product itself is dropped if nobody else reads it."""
        given = {item.name: item for item in made.attribute}
        flips = {name: 1 - (given[name].i if name in given else 0) for name in ("transA", "transB")}
        left, right = (self.tensor(name) for name in made.input)
        alpha = given["alpha"].f if "alpha" in given else 1.0
        return self.gemm(right, left, flips["transB"], flips["transA"], alpha)

    def gemm(
        self, left: Value, right: Value, trans_a: int = 0, trans_b: int = 0, alpha: float = 1.0
    ) -> Value:
        """``Gemm`` without a third term; a transposed operand is read before its transposition."""
        left, trans_a = self._untransposed(left, trans_a)
        right, trans_b = self._untransposed(right, trans_b)
        return self.op(
            "Gemm", left, right, alpha=alpha, transA=trans_a or None, transB=trans_b or None
        )

    def _untransposed(self, value: Value, flag: int) -> tuple[Value, int]:
        source = self.before_swap(value)
        return (value, flag) if source is None else (source, 1 - flag)

    def before_swap(self, value: Value) -> Value | None:
        """What ``value`` is with its last two axes exchanged, and no other moved; None if nothing
        in the graph is."""
        source, perm = self._permuted(value)
        swaps = value.rank > 1 and perm == _swapped(value.rank)
        return source if swaps else None

    def _permuted(self, value: Value) -> tuple[Value, list[int]]:
        """What ``value`` is a ``Transpose`` of, and the axes of that in its order; else itself."""
        made, order = self.maker(value), list(range(value.rank))
        if made is None or operator_key(made) != ":Transpose":
            return value, order
        given = next((list(item.ints) for item in made.attribute if item.name == "perm"), None)
        return self.tensor(made.input[0]), order[::-1] if given is None else given

    def swap_last(self, value: Value) -> Value:
        """The last two axes exchanged: a matrix product's other orientation."""
        return self.transpose(value, _swapped(value.rank))

    def slice(
        self,
        value: Value,
        starts: Value | list[int],
        ends: Value | list[int],
        axes: list[int],
        steps: list[int] | None = None,
        result: TensorType | None = None,
    ) -> Value:
        """``value[start:end:step]`` along some axes."""
        bounds = [self.const(b) if isinstance(b, list) else b for b in (starts, ends)]
        step = self.const(steps) if steps is not None else None
        inputs = [value, *bounds, self.const(axes), *([step] if step is not None else [])]
        return self.op("Slice", *inputs, result=result)

    def vector(self, parts: Sequence[Value]) -> Value:
        """Several int64 vectors as one; a constant if all of them are."""
        known = [self.constant(part) for part in parts]
        if all(array is not None for array in known):
            return self.const([int(n) for array in known if array is not None for n in array])
        return self.op("Concat", *parts, axis=0)

    def element(self, vector: Value, index: int) -> Value:
        """One entry of an integer vector, as an int64 vector of length 1."""
        known = self.constant(vector)
        if known is not None:
            return self.const([int(known.reshape(-1)[index])])
        return self.cast(self.slice(vector, [index], [index + 1], [0]), INT64)

    def reverse(self, value: Value, axes: Sequence[int]) -> Value:
        """``value`` in reverse order along some axes."""
        back, before = [-1] * len(axes), [_BEFORE_ALL] * len(axes)
        return self.slice(value, back, before, list(axes), back, result=value.type)

    # -- numbers -------------------------------------------------------------------------------

    def cast(self, value: Value, dtype: int) -> Value:
        """``value`` in another element type."""
        return value if value.dtype == dtype else self.op("Cast", value, to=dtype)

    def reduce(self, op: str, value: Value, axes: Sequence[int], *, keepdims: bool = True) -> Value:
        """A ``Reduce*`` over some axes (none: ``value`` itself)."""
        return self._axes(op, value, axes, keepdims=int(keepdims)) if axes else value

    def over_count(self, value: Value, whole: Value, axes: Sequence[int]) -> Value:
        """``value`` over how many elements of ``whole`` lie along ``axes``: times the reciprocal of
        that, where it is known."""
        count = self.count(whole, axes, value.dtype)
        known = self.constant(count)
        return value / count if known is None else value * (1 / max(float(known.item()), 1))

    def sum(self, value: Value, axes: Sequence[int], *, keepdims: bool = True) -> Value:
        """``ReduceSum`` over some axes."""
        return self.reduce("ReduceSum", value, axes, keepdims=keepdims)

    def _axes(self, op: str, value: Value, axes: Sequence[int], **attributes: Any) -> Value:
        return self.op(op, value, self.const(list(axes)), **attributes)

    # -- broadcasting --------------------------------------------------------------------------

    def sum_to(self, grad: Value, whole: Value, target: Value) -> Value:
        """The gradient of ``target``, which was broadcast to the shape of ``whole``.

        Sums over the axes along which ``target`` was repeated. ``grad`` may itself be smaller than
        ``whole`` and stand for what it broadcasts to; so may the result.
        """
        full, own = whole.shape, _padded(target.shape, whole.rank)
        have = _padded(grad.shape, whole.rank)
        if any(o != f and o != 1 for o, f in zip(own, full, strict=True)):
            return self._sum_to_at_run_time(grad, whole, target)
        axes = [k for k, (o, f) in enumerate(zip(own, full, strict=True)) if o != f]
        missing = [k for k in axes if have[k] == 1]
        if missing:  # what was never repeated is multiplied instead of summed
            grad = grad * self.count(whole, missing, grad.dtype)
        lead = whole.rank - target.rank
        offset = whole.rank - grad.rank
        summed = [k - offset for k in axes if k >= offset and have[k] != 1]
        surplus = [k - offset for k in range(offset, lead)]
        if summed and set(summed) == set(surplus):
            return self.sum(grad, summed, keepdims=False)
        return self.squeeze(self.sum(grad, summed), surplus)

    def _sum_to_at_run_time(self, grad: Value, whole: Value, target: Value) -> Value:
        """The same where only the run decides which axes were repeated."""
        grad = self.expand_like(grad, whole)
        shape = self.shape_of(target)
        with self.beside(target):
            lead = whole.rank - target.rank
            if lead:
                shape = self.op("Concat", self.const([1] * lead), shape, axis=0)
            ones = self.op("Equal", shape, self.const(np.asarray([1])))
            axes = self.squeeze(self.op("NonZero", ones), [0])
        kept = tuple(1 if o == 1 else o for o in _padded(target.shape, whole.rank))
        result = TensorType(grad.dtype, kept)
        total = self.op("ReduceSum", grad, axes, keepdims=1, noop_with_empty_axes=1, result=result)
        return self.squeeze(total, list(range(lead)))


def _swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _padded(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape
