"""Gradients of convolutions and pools against finite differences, over their attributes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.drawing import quiet
from helpers.effort import tries
from helpers.gradients import check, check_on_runtime, draw, single

QUIET = quiet(tries(40))
Draw = Any
AUTO = ["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]


@dataclass(frozen=True)
class Case:
    """A kernel and how it slides; ``attributes`` as ONNX has them."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    attributes: dict[str, Any]

    @property
    def plain(self) -> bool:
        """Whether ONNX Runtime does as ONNX says.

        With ``auto_pad`` SAME, it refuses dilated convolutions, forgets the dilations of pools, and
        pads less than nothing where the kernel is smaller than the stride.
        """
        fits = all(k >= s for k, s in zip(self.kernel, self.attributes["strides"], strict=True))
        alike = fits and set(self.attributes.get("dilations", [1])) == {1}
        return alike or not self.attributes.get("auto_pad", "").startswith("SAME")


def verify(made: Any, case: Case) -> None:
    """Finite differences, and ONNX Runtime where it can."""
    (check_on_runtime if case.plain else check)(made)


@st.composite
def cases(draw_: Draw, *, dilated: bool = True, pool: bool = False) -> Case:
    """Windows that fit at least once; pads smaller than the kernel, as runtimes ask of pools."""
    rank = draw_(st.integers(1, 3))
    top = (9, 6, 4)[rank - 1]
    kernel, strides, dilations, sizes = [], [], [], []
    for _ in range(rank):
        kernel.append(draw_(st.integers(1, 3)))
        strides.append(draw_(st.integers(1, 3)))
        dilations.append(draw_(st.integers(1, 2)) if dilated else 1)
        span = (kernel[-1] - 1) * dilations[-1] + 1
        sizes.append(draw_(st.integers(span, max(top, span))))
    attributes: dict[str, Any] = {"strides": strides}
    if dilated:
        attributes["dilations"] = dilations
    auto = draw_(st.sampled_from(AUTO))
    if auto == "NOTSET":
        attributes["pads"] = [
            draw_(st.integers(0, min(2, n - 1) if pool else 2)) for n in kernel * 2
        ]
    else:
        attributes["auto_pad"] = auto
    return Case(tuple(sizes), tuple(kernel), attributes)


def groups(draw_: Draw) -> tuple[int, int, int, int]:
    """Batch, groups, channels of the input and of the output per group."""
    return tuple(draw_(st.integers(1, n)) for n in (3, 3, 2, 2))  # type: ignore[return-value]


@QUIET
@given(st.data())
def test_conv(data: st.DataObject) -> None:
    case = data.draw(cases())
    batch, group, inner, outer = groups(data.draw)
    x = draw((batch, group * inner, *case.sizes))
    weight = draw((group * outer, inner, *case.kernel), 1)
    bias = [draw((group * outer,), 2)] if data.draw(st.booleans()) else []
    verify(single("Conv", x, weight, *bias, group=group, **case.attributes), case)


@QUIET
@given(st.data())
def test_conv_transpose(data: st.DataObject) -> None:
    case = data.draw(cases())
    batch, group, inner, outer = groups(data.draw)
    attributes = dict(case.attributes)
    x = draw((batch, group * inner, *(min(n, 4) for n in case.sizes)))
    weight = draw((group * inner, outer, *case.kernel), 1)
    bias = [draw((group * outer,), 2)] if data.draw(st.booleans()) else []
    further = [
        data.draw(st.integers(0, max(s, d) - 1))
        for s, d in zip(attributes["strides"], attributes["dilations"], strict=True)
    ]
    if "auto_pad" not in attributes:
        attributes["output_padding"] = further
    sizes = natural(x.shape[2:], case, further)
    if min(sizes) < 1:
        return
    if "pads" not in attributes and data.draw(st.booleans()):
        # ONNX's shape inference gives up where the output is smaller than the input.
        attributes["output_shape"] = [
            max(n - data.draw(st.integers(0, 2)), m)
            for n, m in zip(sizes, x.shape[2:], strict=True)
        ]
    made = single("ConvTranspose", x, weight, *bias, group=group, **attributes)
    # ONNX allows more; the runtime wants less than the stride.
    small = all(n < s for n, s in zip(further, attributes["strides"], strict=True))
    (verify(made, case) if small or "pads" not in attributes else check(made))


def natural(counts: Sequence[int], case: Case, further: Sequence[int]) -> list[int]:
    """Sizes of a transposed convolution's output; without padding where that is left to fit."""
    rank = len(counts)
    pads = case.attributes.get("pads", [0] * 2 * rank)
    return [
        (counts[k] - 1) * case.attributes["strides"][k]
        + (case.kernel[k] - 1) * case.attributes["dilations"][k]
        + 1
        + (further[k] if "pads" in case.attributes else 0)
        - pads[k]
        - pads[rank + k]
        for k in range(rank)
    ]


@QUIET
@given(st.data())
def test_pools(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    case = data.draw(cases(pool=True))
    assume(case.plain)  # others are refused
    attributes = {"kernel_shape": list(case.kernel), **case.attributes}
    opset = data.draw(st.sampled_from([19, 22] if op == "AveragePool" else [13, 15, 16, 22]))
    if "auto_pad" not in attributes:
        attributes["ceil_mode"] = int(data.draw(st.booleans()) and not starts_outside(case))
    if op == "MaxPool":
        attributes["storage_order"] = data.draw(st.integers(0, 1))
    if op == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.integers(0, 1))
    shape = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), *case.sizes)
    verify(single(op, draw(shape), opset=opset, **attributes), case)


def starts_outside(case: Case) -> bool:
    """Whether the windows that ``ceil_mode`` adds begin in the padding.

    Runtimes leave those out; ONNX's shape inference counts them before opset 22.
    """
    rank = len(case.sizes)
    for k in range(rank):
        step, (before, behind) = case.attributes["strides"][k], case.attributes["pads"][k::rank]
        span = (case.kernel[k] - 1) * case.attributes["dilations"][k] + 1
        whole = case.sizes[k] + before + behind - span
        if -(-whole // step) * step >= case.sizes[k] + before:
            return True
    return False


@QUIET
@given(st.data())
def test_global_pools(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(["GlobalMaxPool", "GlobalAveragePool"]))
    rank = data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(1, 3)) for _ in range(2 + rank)]
    check_on_runtime(single(op, draw(shape)))
