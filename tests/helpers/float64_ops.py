"""Operators in float64, to evaluate models with.

ONNX Runtime has float32 kernels only for most of them, and ``onnx.reference`` rounds some to
float32 or is wrong for some attributes (padding and indices of pools, ranks of others). What is
computed by them is compared with ONNX Runtime in float32 (``gradients.check_on_runtime``).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

Array = npt.NDArray[Any]
Ints = Sequence[int] | None


class Erf(OpRun):
    """ONNX's own rounds to float32."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Gelu(OpRun):
    """ONNX's own goes through its Erf."""

    def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:
        if approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return (0.5 * x * (1 + np.tanh(inner)),)
        (erf,) = Erf._run(self, x / math.sqrt(2))
        return (0.5 * x * (1 + erf),)


class GatherElements(OpRun):
    """ONNX's own fails for more than 64 entries along the axis."""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        axis %= data.ndim
        within = [slice(n) for n in indices.shape]
        within[axis] = slice(None)
        indices = np.where(indices < 0, indices + data.shape[axis], indices)
        return (np.take_along_axis(data[tuple(within)], indices, axis),)


class Grid:
    """Windows over the spatial axes of a tensor: where each of their elements lies."""

    def __init__(
        self,
        sizes: Sequence[int],
        kernel: Sequence[int],
        strides: Ints,
        dilations: Ints,
        pads: Ints,
        auto_pad: str | None,
        ceil_mode: int | None = 0,
    ) -> None:
        rank = len(sizes)
        self.sizes, self.kernel = tuple(sizes), tuple(kernel)
        self.strides = tuple(strides or [1] * rank)
        self.dilations = tuple(dilations or [1] * rank)
        given = list(pads or [0] * (2 * rank))
        self.before, self.behind, self.counts = [], [], []
        for k in range(rank):
            span = (self.kernel[k] - 1) * self.dilations[k] + 1
            before, behind, step = given[k], given[rank + k], self.strides[k]
            if auto_pad == "VALID":
                before = behind = 0
            if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
                count = -(-sizes[k] // step)
                rest = max((count - 1) * step + span - sizes[k], 0)
                before = rest // 2 if auto_pad == "SAME_UPPER" else rest - rest // 2
                behind = rest - before
            whole = sizes[k] + before + behind - span
            count = whole // step + 1
            if ceil_mode and whole % step and count * step < sizes[k] + before:
                count += 1
            self.before.append(before)
            self.behind.append(behind)
            self.counts.append(count)

    def taps(self) -> Iterator[tuple[tuple[int, ...], tuple[Array, ...]]]:
        """Each element of the kernel, and where it lies, per axis, for each window."""
        for tap in itertools.product(*map(range, self.kernel)):
            yield (
                tap,
                tuple(
                    np.arange(self.counts[k]) * self.strides[k]
                    - self.before[k]
                    + tap[k] * self.dilations[k]
                    for k in range(len(tap))
                ),
            )

    def take(self, x: Array, places: Sequence[Array], fill: float) -> Array:
        """The elements at ``places`` for every window; ``fill`` outside of the tensor."""
        for axis, (where, size) in enumerate(zip(places, self.sizes, strict=True), start=2):
            inside = (where >= 0) & (where < size)
            x = np.take(x, np.clip(where, 0, size - 1), axis=axis)
            x = np.where(inside.reshape([-1] + [1] * (x.ndim - axis - 1)), x, fill)
        return x


class ConvTranspose(OpRun):
    """By definition; an odd rest of padding as in ONNX Runtime."""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Ints = None,
        group: int | None = 1,
        kernel_shape: Ints = None,
        output_padding: Ints = None,
        output_shape: Ints = None,
        pads: Ints = None,
        strides: Ints = None,
    ) -> tuple[Array]:
        rank, group = x.ndim - 2, group or 1
        steps, apart = strides or [1] * rank, dilations or [1] * rank
        further = output_padding or [0] * rank
        sizes = [
            (x.shape[2 + k] - 1) * steps[k] + (w.shape[2 + k] - 1) * apart[k] + 1 + further[k]
            for k in range(rank)
        ]
        data = x.reshape(x.shape[0], group, -1, *x.shape[2:])
        weight = w.reshape(group, -1, *w.shape[1:])
        total = np.zeros((x.shape[0], group, w.shape[1], *sizes), x.dtype)
        for tap in itertools.product(*map(range, w.shape[2:])):
            part = np.einsum("ngc...,gcm->ngm...", data, weight[(..., *tap)])
            first = [tap[k] * apart[k] for k in range(rank)]
            where = tuple(
                slice(first[k], first[k] + (x.shape[2 + k] - 1) * steps[k] + 1, steps[k])
                for k in range(rank)
            )
            total[(..., *where)] += part
        total = total.reshape(x.shape[0], -1, *sizes)
        same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
        wanted = output_shape or (
            [x.shape[2 + k] * steps[k] for k in range(rank)] if same else None
        )
        before, behind = (list(pads or [0] * 2 * rank)[k * rank :][:rank] for k in (0, 1))
        if wanted:
            rests = [max(sizes[k] - wanted[k], 0) for k in range(rank)]
            before = [n // 2 if auto_pad == "SAME_UPPER" else n - n // 2 for n in rests]
            behind = [n - m for n, m in zip(rests, before, strict=True)]
        cut = tuple(slice(before[k], sizes[k] - behind[k]) for k in range(rank))
        total = total[(..., *cut)]
        if b is not None:
            total = total + b.reshape([-1] + [1] * rank)
        return (total,)


class MaxPool(OpRun):
    """By definition; the first of equal elements wins."""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = 0,
        dilations: Ints = None,
        kernel_shape: Sequence[int] = (),
        pads: Ints = None,
        storage_order: int | None = 0,
        strides: Ints = None,
    ) -> tuple[Array, ...]:
        grid = Grid(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
        numbers = np.arange(x.size).reshape(x.shape)
        if storage_order:
            planes = int(np.prod(x.shape[:2]))
            columns = np.arange(x.size // planes).reshape(x.shape[:1:-1]).transpose()
            numbers = np.arange(planes).reshape(*x.shape[:2], *[1] * columns.ndim)
            numbers = numbers * columns.size + columns
        best = np.full((*x.shape[:2], *grid.counts), -np.inf, x.dtype)
        index = np.zeros(best.shape, np.int64)
        for _, places in grid.taps():
            part = grid.take(x, places, -np.inf)
            index = np.where(part > best, grid.take(numbers, places, 0), index)
            best = np.maximum(best, part)
        return (best, index.astype(np.int64))[: len(self.output)]


class AveragePool(OpRun):
    """By definition: windows end where the padding ends."""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = 0,
        count_include_pad: int | None = 0,
        dilations: Ints = None,
        kernel_shape: Sequence[int] = (),
        pads: Ints = None,
        strides: Ints = None,
    ) -> tuple[Array]:
        grid = Grid(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
        total, count = 0.0, 0.0
        ones = np.ones_like(x)
        for _, places in grid.taps():
            total = total + grid.take(x, places, 0.0)
            if count_include_pad:
                inside = np.ones((), bool)
                for axis, where in enumerate(places):
                    end = grid.sizes[axis] + grid.behind[axis]
                    inside = inside[..., None] & (where < end)
                count = count + inside
            else:
                count = count + grid.take(ones, places, 0.0)
        return (total / count,)


class GlobalMaxPool(OpRun):
    """By definition."""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class BatchNormalization(OpRun):
    """By definition; before opset 14, further outputs mean training."""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        mean: Array,
        var: Array,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        training_mode: int | None = 0,
    ) -> tuple[Array, ...]:
        axes, column = (0, *range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
        old, trains = (mean, var), training_mode or len(self.output) > 1
        if trains:
            mean, var = x.mean(axes), x.var(axes)
        a, m, v, b = (vector.reshape(column) for vector in (scale, mean, var, bias))
        y = a * (x - m) / np.sqrt(v + epsilon) + b
        pairs = zip(old, (mean, var), strict=True)
        running = [before * momentum + now * (1 - momentum) for before, now in pairs]
        return (y, *running, mean, var)[: len(self.output)]


class GroupNormalization(OpRun):
    """By definition, at any opset; ONNX's function computes in float32."""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        epsilon: float = 1e-5,
        num_groups: int = 1,
        stash_type: int | None = 1,
    ) -> tuple[Array]:
        groups = x.reshape(x.shape[0], num_groups, -1)
        mean, var = groups.mean(2, keepdims=True), groups.var(2, keepdims=True)
        normal = (groups - mean) / np.sqrt(var + epsilon)
        if len(scale) < x.shape[1]:
            return ((normal * scale[:, None] + bias[:, None]).reshape(x.shape),)
        column = (-1, *[1] * (x.ndim - 2))
        return (normal.reshape(x.shape) * scale.reshape(column) + bias.reshape(column),)


class MeanVarianceNormalization(OpRun):
    """By definition; ONNX's own cannot be had of this operator alone."""

    def _run(self, x: Array, axes: Sequence[int] = (0, 2, 3)) -> tuple[Array]:
        along = tuple(axes)
        deviation = np.sqrt((x**2).mean(along, keepdims=True) - x.mean(along, keepdims=True) ** 2)
        return ((x - x.mean(along, keepdims=True)) / (deviation + 1e-9),)


OPS = [
    Erf,
    Gelu,
    GatherElements,
    ConvTranspose,
    MaxPool,
    AveragePool,
    GlobalMaxPool,
    BatchNormalization,
    GroupNormalization,
    MeanVarianceNormalization,
]
