"""How a kernel slides over a tensor N × C × D1 × D2 ..., as convolutions and pools have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError
from memplan.shapes.tensor_type import Dim, Shape, TensorType

_MANY = 1 << 18  # elements
SAME = ("SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class Windows:
    """Per spatial axis: elements of the kernel, step, distance of its elements, padding."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def pointwise(self) -> bool:
        """Whether a window is one element, and none is padding."""
        return set(self.kernel) <= {1} and not any(self.before + self.behind)

    def span(self, axis: int) -> int:
        """How many places one window covers along a spatial axis."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def reach(self, axis: int, count: int) -> int:
        """How many places ``count`` windows cover together, padding included."""
        return (count - 1) * self.strides[axis] + self.span(axis)

    @property
    def mirrors(self) -> bool:
        """Whether a convolution by the reversed kernel reverses this one's products: strides are 1,
        and no window is all padding."""
        pads = zip(self.before, self.behind, strict=True)
        return set(self.strides) == {1} and all(
            max(pad) < self.span(axis) for axis, pad in enumerate(pads)
        )

    def mirrored(self) -> Windows:
        """The windows of that convolution, from this one's places back to its image."""
        reach = [self.span(axis) - 1 for axis in range(self.rank)]
        before = tuple(n - pad for n, pad in zip(reach, self.before, strict=True))
        behind = tuple(n - pad for n, pad in zip(reach, self.behind, strict=True))
        return replace(self, before=before, behind=behind)

    def filling(
        self,
        ctx: Context,
        image: Shape,
        places: Shape,
        *,
        upper: bool,
        further: Sequence[int] | None = None,
    ) -> Windows:
        """With as much padding as ``places`` windows over ``image`` need.

        ``upper``: an odd rest comes behind, else in front. ``further``: places per axis that the
        windows reach beyond their last element.

        Raises:
            ModelError: that depends on a size that is known at run time only, or is a matter of
                ONNX Runtime's kernels.
        """
        small, large = [], []
        for axis, (size, count) in enumerate(zip(image, places, strict=True)):
            rest = further[axis] if further else 0
            if isinstance(size, int) and isinstance(count, int):
                rest += self.reach(axis, count) - size
                if rest < -1 and further is None:  # its kernels begin at different elements
                    raise ModelError(
                        f"the gradient of {ctx.node.op_type} '{ctx.node.name}' needs pads instead "
                        "of auto_pad, as its strides pass over elements",
                        "write the padding that is meant as the attribute pads",
                    )
                rest = max(rest, 0)
            elif self.strides[axis] == 1 and isinstance(size, str):  # as many windows as places
                rest += self.span(axis) - 1
            else:
                raise ctx.needs("static shapes to find its padding")
            small.append(rest // 2)
            large.append(rest - rest // 2)
        sides = (small, large) if upper else (large, small)
        return replace(self, before=tuple(sides[0]), behind=tuple(sides[1]))


def windows_of(ctx: Context, kernel: Sequence[int], image: Shape, places: Shape) -> Windows:
    """The windows of the forward node.

    Args:
        ctx: the node.
        kernel: sizes of its kernel.
        image: spatial sizes of the tensor that the kernel slides over.
        places: how many windows there are along each axis.

    Raises:
        ModelError: ``auto_pad`` and a size that is known at run time only.
    """
    rank = len(kernel)
    strides = ctx.attribute("strides", list[int]()) or [1] * rank
    dilations = ctx.attribute("dilations", list[int]()) or [1] * rank
    pads = ctx.attribute("pads", list[int]()) or [0] * (2 * rank)
    auto = ctx.attribute("auto_pad", "NOTSET")
    if auto == "VALID":
        pads = [0] * (2 * rank)
    result = Windows(
        tuple(kernel), tuple(strides), tuple(dilations), tuple(pads[:rank]), tuple(pads[rank:])
    )
    if auto in SAME:
        return result.filling(ctx, image, places, upper=auto == "SAME_UPPER")
    return result


def spread(
    ctx: Context,
    grad: Value,
    weight: Value,
    windows: Windows,
    shape: Shape,
    group: int = 1,
    like: Value | None = None,
) -> Value:
    """Every element of ``grad`` times the kernel, added at the places that its window covers.

    This is the transpose of a convolution. ``shape`` is that of the result; ``like`` is a tensor of
    that shape, where spatial sizes may be symbolic.
    """
    if group == 1 and _unfolds_less(grad, weight, windows):
        return _spread_by_convolution(ctx, grad, weight, windows, shape)
    behind, further, loose = [], [], []
    for axis, (size, count) in enumerate(zip(shape[2:], grad.shape[2:], strict=True)):
        rest, step = windows.behind[axis], windows.strides[axis]
        if isinstance(size, int) and isinstance(count, int):
            rest = windows.reach(axis, count) - windows.before[axis] - size
        elif step > 1:  # how far the last window is from the end is not known: at most step - 1
            rest = 1 - step
            loose.append(2 + axis)
        behind.append(max(rest, 0))
        further.append(max(-rest, 0))
    result = ctx.op(
        "ConvTranspose",
        grad,
        weight,
        strides=list(windows.strides),
        dilations=list(windows.dilations),
        pads=[*windows.before, *behind],
        output_padding=further if any(further) else None,
        group=group if group != 1 else None,
        result=None if loose else TensorType(grad.dtype, shape),
    )
    if not loose:
        return result
    assert like is not None
    return ctx.slice(result, [0] * len(loose), ctx.dims(like, loose), loose, result=like.type)


def _unfolds_less(grad: Value, weight: Value, windows: Windows) -> bool:
    """Whether a convolution of ``grad`` by the reversed kernel is faster than a transposed one.

    ONNX Runtime's transposed convolution writes the product with every element of the kernel, then
    adds them up on one thread; a convolution copies windows of ``grad`` into panels, on all, but
    its product is narrower. Measured on two cores, it takes 0.3 to 0.95 of the time where the
    first are many and the image is large for its channels.
    """
    sizes = [dim for dim in grad.shape[2:] if isinstance(dim, int)]
    if windows.rank > 2 or len(sizes) < windows.rank or not windows.mirrors:
        return False
    pixels, marks, channels = prod(sizes), _size(weight, 0), _size(weight, 1)
    written = channels * prod(windows.kernel) * pixels
    many = windows.pointwise or (channels >= marks and written >= _MANY)
    return many and pixels >= 2 * marks


def _spread_by_convolution(
    ctx: Context, grad: Value, weight: Value, windows: Windows, shape: Shape
) -> Value:
    """By the kernel in reverse order, with channels exchanged: strides are 1."""
    other = windows.mirrored()
    return ctx.op(
        "Conv",
        grad,
        _turned(ctx, weight, windows),
        dilations=list(windows.dilations),
        pads=[*other.before, *other.behind],
        result=TensorType(grad.dtype, shape),
    )


def correlate(
    ctx: Context, image: Value, marks: Value, windows: Windows, weight: Value, group: int
) -> Value:
    """For each element of the kernel, what ``image`` has there times ``marks``, over all windows.

    That is the gradient of a convolution's weight (``image`` its input, ``marks`` the gradient of
    its output), or, the other way round, of a transposed convolution's. It is a convolution itself,
    with the windows' strides as dilations, in a form that the sizes allow:

    - channels of the image as a further axis that the kernel slides over, the last one, so that
      the runtime copies windows in runs of channels; where the marks have fewer channels, they are
      the image, and less is copied;
    - samples as groups, where there are groups; the weight's gradient of each sample is made, then
      all are added;
    - both transposed (three spatial axes, groups in batches of a size that is not known).
    """
    if windows.pointwise and group == 1:
        return _pointwise(ctx, image, marks, windows, weight)
    if windows.rank <= 2 and group == 1:
        if _size(weight, 1) > _size(weight, 0) and windows.mirrors:
            return _exchanged(ctx, image, marks, windows)
        return _over_channels(ctx, image, marks, windows)
    count = image.shape[0]
    if windows.rank <= 2 and isinstance(count, int):
        return _by_samples(ctx, image, marks, windows, weight, count * group)
    return _transposed(ctx, image, marks, windows, weight, group)


def _pointwise(ctx: Context, image: Value, marks: Value, windows: Windows, weight: Value) -> Value:
    """A matrix product, for kernels of one element."""
    for axis, stride in enumerate(windows.strides):
        k, count = 2 + axis, marks.shape[2 + axis]
        if stride > 1 or image.shape[k] != count:
            kept = TensorType(image.dtype, (*image.shape[:k], count, *image.shape[k + 1 :]))
            end = ctx.dims(marks, [k]) * stride
            image = ctx.slice(image, [0], end, [k], [stride], result=kept)
    left, right = _rows(ctx, marks, _size(weight, 0)), _rows(ctx, image, _size(weight, 1))
    return ctx.reshape(ctx.gemm(left, right, 0, 1), weight.shape, weight)


def _size(value: Value, axis: int) -> int:
    size = value.shape[axis]
    assert isinstance(size, int)
    return size


def _rows(ctx: Context, value: Value, channels: int) -> Value:
    """Channels × everything else."""
    known = value.type.elements
    turned = ctx.transpose(value, [1, 0, *range(2, value.rank)])
    return ctx.reshape(turned, (channels, known // channels if known else ""))


def _by_samples(
    ctx: Context, image: Value, marks: Value, windows: Windows, weight: Value, groups: int
) -> Value:
    rows, channels, count = _size(weight, 0), _size(weight, 1), _size(image, 0)
    whole = ctx.reshape(image, (1, groups, channels, *image.shape[2:]))
    kernel = ctx.reshape(marks, (count * rows, 1, 1, *marks.shape[2:]))
    found = _convolved(ctx, whole, kernel, windows, image, marks, groups, spare=1)
    apart = ctx.reshape(found, (count, *weight.shape))
    return ctx.sum(apart, [0], keepdims=False)


def _over_channels(ctx: Context, image: Value, marks: Value, windows: Windows) -> Value:
    rank = image.rank
    whole = ctx.unsqueeze(ctx.transpose(image, [0, *range(2, rank), 1]), [0])
    kernel = ctx.unsqueeze(ctx.transpose(marks, [1, 0, *range(2, rank)]), [rank])
    found = _convolved(ctx, whole, kernel, windows, image, marks, 1, spare=1, last=True)
    return ctx.transpose(ctx.squeeze(found, [0]), [0, rank - 1, *range(1, rank - 1)])


def _exchanged(ctx: Context, image: Value, marks: Value, windows: Windows) -> Value:
    """With the two tensors exchanged, which gives the kernel in reverse order: strides are 1."""
    return _turned(ctx, _over_channels(ctx, marks, image, windows.mirrored()), windows)


def _turned(ctx: Context, weight: Value, windows: Windows) -> Value:
    """A kernel in reverse order, with channels exchanged."""
    axes = [2 + axis for axis, size in enumerate(windows.kernel) if size > 1]
    turned = ctx.transpose(weight, [1, 0, *range(2, weight.rank)])
    return ctx.reverse(turned, axes) if axes else turned


def _transposed(
    ctx: Context, image: Value, marks: Value, windows: Windows, weight: Value, group: int
) -> Value:
    order = [1, 0, *range(2, image.rank)]
    kernel = ctx.transpose(marks, order)
    channels = weight.shape[1]
    whole = image
    if group > 1:
        sizes = [ctx.dims(image, [k]) for k in range(image.rank)]
        parts = [ctx.const([n]) for n in (group, channels) if isinstance(n, int)]
        inner = TensorType(image.dtype, (image.shape[0], group, channels, *image.shape[2:]))
        shape = ctx.vector([sizes[0], *parts, *sizes[2:]])
        whole = ctx.op("Reshape", image, shape, result=inner)
        whole = ctx.transpose(whole, [2, 1, 0, *range(3, image.rank + 1)])
        shape = ctx.vector([parts[1], ctx.const([-1]), *sizes[2:]])
        outer = TensorType(image.dtype, (channels, "", *image.shape[2:]))
        whole = ctx.op("Reshape", whole, shape, result=outer)
    else:
        whole = ctx.transpose(whole, order)
    return ctx.transpose(_convolved(ctx, whole, kernel, windows, image, marks, group), order)


def _convolved(
    ctx: Context,
    whole: Value,
    kernel: Value,
    windows: Windows,
    image: Value,
    marks: Value,
    groups: int,
    spare: int = 0,
    *,
    last: bool = False,
) -> Value:
    """``kernel`` over ``whole``, strides and dilations exchanged, cut to the weight's size.

    ``spare`` spatial axes are no axes of the windows: the first ones, or the ``last``.
    """
    behind, cut = [], []
    front, back = (0, spare) if last else (spare, 0)
    shape: list[Dim] = [whole.shape[0], kernel.shape[0], *whole.shape[2 : 2 + front]]
    for axis in range(windows.rank):
        size, count = image.shape[2 + axis], marks.shape[2 + axis]
        pad, places, step = windows.behind[axis], windows.kernel[axis], windows.dilations[axis]
        if isinstance(size, int) and isinstance(count, int):
            unused = size + windows.before[axis] + pad - windows.reach(axis, count)
            pad, more = max(pad - unused, 0), max(unused - pad, 0) // step
            shape.append(places + more)
        else:
            more = windows.strides[axis] - 1
            shape.append("" if more else places)
        behind.append(pad)
        if more:
            cut.append(axis)
    shape += whole.shape[whole.rank - back :]
    found = ctx.op(
        "Conv",
        whole,
        kernel,
        strides=[*[1] * front, *windows.dilations, *[1] * back],
        dilations=[*[1] * front, *windows.strides, *[1] * back],
        pads=[*[0] * front, *windows.before, *[0] * spare, *behind, *[0] * back],
        group=groups if groups != 1 else None,
        result=TensorType(whole.dtype, tuple(shape)),
    )
    if not cut:
        return found
    axes = [2 + front + axis for axis in cut]
    for axis in cut:
        shape[2 + front + axis] = windows.kernel[axis]
    ends = [windows.kernel[axis] for axis in cut]
    kept = TensorType(found.dtype, tuple(shape))
    return ctx.slice(found, [0] * len(cut), ends, axes, result=kept)
