"""Layers of :mod:`drafts`: operators that give elements another place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from drafts import Draft
from layers import layer, some


@layer("Reshape")
def reshape(d: Draft, op: str) -> None:
    x = d.pick()
    shape = list(d.arrays[x].shape)
    target = d.r.sample(shape, len(shape))
    if 0 not in shape and d.maybe(0.5):
        target = [math.prod(shape[:2]), *shape[2:]] if d.maybe(0.5) else [math.prod(shape)]
    if d.maybe(0.4):
        target.insert(d.r.randint(0, len(target)), 1)
    zero = some(d, allowzero=(0, 1)) if d.opset >= 14 else {}
    if 0 in shape:
        zero = {"allowzero": 1}
    elif target and d.maybe(0.5):
        target[d.r.randrange(len(target))] = -1
    if not zero.get("allowzero"):
        target = [0 if n == m and d.maybe(0.4) else n for n, m in zip(target, shape, strict=False)]
        if not target and math.prod(shape) != 1:
            target = [-1]
    d.add(op, [x, d.ints(target)], **zero)


@layer("Flatten")
def flatten(d: Draft, op: str) -> None:
    x = d.pick()
    rank = d.arrays[x].ndim
    least = -rank if d.opset >= 11 else 0
    d.add(op, [x], **({} if d.maybe(0.3) and rank else {"axis": d.r.randint(least, rank)}))


@layer("Squeeze")
def squeeze(d: Draft, op: str) -> None:
    x = d.pick(lambda s: 1 in s, [1, *d.shape(2)])
    shape = d.arrays[x].shape
    ones = [k for k, n in enumerate(shape) if n == 1]
    chosen = d.r.sample(ones, d.r.randint(1, len(ones)))
    signs = [k - len(shape) if d.maybe(0.4) and d.opset >= 11 else k for k in chosen]
    d.with_axes(op, x, None if d.maybe(0.3) else signs, 13)


@layer("Unsqueeze")
def unsqueeze(d: Draft, op: str) -> None:
    x, count = d.ranked(0, 3), d.r.choice((1, 2))
    rank = d.arrays[x].ndim + count
    axes = d.r.sample(range(rank), count)
    axes = [k - rank if d.maybe(0.4) and d.opset >= 11 else k for k in axes]
    d.with_axes(op, x, axes if d.opset >= 13 else sorted(axes), 13)


@layer("Expand")
def expand(d: Draft, op: str) -> None:
    x = d.ranked(0, 4)
    shape = [d.r.choice((1, 2, 3)) if n == 1 else d.r.choice((1, n)) for n in d.arrays[x].shape]
    if d.maybe(0.3):
        shape = list(d.arrays[x].shape)
    elif d.maybe(0.3):
        shape = [d.r.choice((1, 2)), *shape]
    elif d.maybe(0.3):
        shape = shape[1:]
    d.add(op, [x, d.ints(shape)])


@layer("Tile")
def tile(d: Draft, op: str) -> None:
    x = d.ranked(1, 4)
    d.add(op, [x, d.ints([d.r.choice((1, 1, 2, 3)) for _ in d.arrays[x].shape])])


@layer("Concat")
def concat(d: Draft, op: str) -> None:
    x = d.ranked(1, 4)
    shape = list(d.arrays[x].shape)
    axis = d.axis(len(shape)) if d.opset >= 11 else d.r.randrange(len(shape))
    parts = [x]
    for _ in range(d.r.choice((0, 1, 1, 2))):
        shape[axis] = d.r.choice((1, 2, 2, 0 if d.maybe(0.1) else 1))
        parts.append(x if d.maybe(0.4) else d.of(shape))
    d.r.shuffle(parts)
    d.add(op, parts, axis=axis)


@layer("Split")
def split(d: Draft, op: str) -> None:
    x = d.ranked(1, 4)
    rank = d.arrays[x].ndim
    axis = d.axis(rank) if d.opset >= 11 else d.r.randrange(rank)
    size = d.arrays[x].shape[axis]
    given: dict[str, Any] = {} if axis == 0 and d.maybe(0.5) else {"axis": axis}
    count = d.r.choice((1, 2, 2, 3))
    if d.opset >= 18 and d.maybe(0.5) and -(-size // count) * (count - 1) < size:
        d.add(op, [x], count, num_outputs=count, **given)
        return
    if size % count == 0 and d.opset < 18 and d.maybe(0.4):
        d.add(op, [x], count, **given)
        return
    ends = sorted(d.r.randint(0, size) for _ in range(count - 1))
    parts = np.diff([0, *ends, size]).tolist()
    if d.opset < 13:
        d.add(op, [x], count, split=parts, **given)
    else:
        d.add(op, [x, d.ints(parts)], count, **given)


@layer("Slice")
def slices(d: Draft, op: str) -> None:
    x = d.ranked(1, 4)
    rank = d.arrays[x].ndim
    axes = d.axes(rank, 1)
    named = d.maybe(0.7)
    if not named:
        axes = list(range(len(axes)))
    starts, ends, steps = [], [], []
    for axis in axes:
        n = d.arrays[x].shape[axis]
        step = d.r.choice((1, 1, 1, 2, -1, -2)) if d.opset >= 10 else 1
        low = d.r.choice((0, 0, 1, -1, -n, -n - 3, n - 1))
        high = d.r.choice((n, n, n + 5, 2**31 - 1, 2**63 - 1, -1, n - 1))
        if step < 0:
            low = d.r.choice((-1, n - 1, n + 4, 2**31 - 1))
            high = d.r.choice((0, -n - 1, -(2**31), -(2**63), -n - 5))
        starts.append(low)
        ends.append(high)
        steps.append(step)
    if d.opset < 10:
        d.add(op, [x], starts=starts, ends=ends, axes=axes if named else None)
        return
    inputs = [x, d.ints(starts), d.ints(ends), d.ints(axes) if named else ""]
    if set(steps) != {1} or d.maybe(0.4):
        inputs.append(d.ints(steps))
    d.add(op, inputs)


@layer("Pad")
def pad(d: Draft, op: str) -> None:
    x = d.full(1, 4)
    shape = d.arrays[x].shape
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if d.opset >= 19 else [])]
    given = {} if d.maybe(0.3) else {"mode": d.r.choice(modes)}
    axes = d.axes(len(shape), 1) if d.opset >= 18 and d.maybe(0.5) else list(range(len(shape)))
    pads = []
    for axis in axes * 2:
        most = shape[axis] - 1 if given.get("mode", "constant") != "constant" else 2
        least = -1 if shape[axis] > 2 else 0
        pads.append(d.r.randint(least, max(least, min(most, 2))) if d.maybe(0.7) else 0)
    if d.opset < 11:
        d.add(op, [x], pads=pads, **given)
        return
    value = d.r.choice(("", "", d.of(())))
    inputs = [x, d.ints(pads), value]
    if axes != list(range(len(shape))):
        inputs.append(d.ints(axes))
    d.add(op, inputs, **given)


@layer("Trilu")
def triangle(d: Draft, op: str) -> None:
    x = d.ranked(2, 4)
    inputs = [x] if d.maybe(0.4) else [x, d.ints(d.r.choice((0, 1, -1, 5, -5)))]
    d.add(op, inputs, **some(d, upper=(0, 1)))


@layer("DepthToSpace", "SpaceToDepth")
def blocks(d: Draft, op: str) -> None:
    b = d.r.choice((1, 2))
    n, c, h, w = (d.r.choice((1, 2)) for _ in range(4))
    shape = (n, c * b * b, h, w) if op == "DepthToSpace" else (n, c, h * b, w * b)
    mode = some(d, mode=("DCR", "CRD")) if op == "DepthToSpace" and d.opset >= 11 else {}
    d.add(op, [d.of(shape)], blocksize=b, **mode)
