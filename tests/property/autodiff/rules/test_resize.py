"""Gradients of Resize against finite differences, over its modes."""

from typing import Any

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st

from helpers.drawing import quiet
from helpers.effort import tries
from helpers.gradients import check, draw, frozen, runtime, single

QUIET = quiet(tries(60))
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SCALES = [0.4, 0.5, 1.0, 1.5, 2.0, 3.0, 2.3]


@QUIET
@given(st.data())
def test_resize(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    mode = data.draw(st.sampled_from(["nearest", "linear"]))
    rank = rank if mode == "nearest" else min(rank, 2)
    spatial = [data.draw(st.integers(1, 5)) for _ in range(rank)]
    shape = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), *spatial)
    coordinates = data.draw(st.sampled_from(COORDINATES))
    opset = data.draw(st.sampled_from([13, 18, 19]))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = data.draw(st.sampled_from(NEAREST))
    scales = [data.draw(st.sampled_from(SCALES)) for _ in range(rank)]
    scales = [max(scale, 1 / n) for scale, n in zip(scales, spatial, strict=True)]
    given_scales, sizes = np.asarray([1, 1, *scales], np.float32), None
    if data.draw(st.booleans()):
        new = [max(int(n * s), 1) for n, s in zip(spatial, scales, strict=True)]
        given_scales, sizes = None, np.asarray([*shape[:2], *new], np.int64)
    inputs = [draw(shape).astype(np.float32), None, given_scales, sizes]
    kinds = [onnx.TensorProto.FLOAT]
    made = single(
        "Resize",
        *inputs[: 4 if sizes is not None else 3],
        opset=opset,
        out_dtypes=kinds,
        **attributes,
    )
    # The runtime's coordinates where a scaled size is no whole number; any step, as it is linear.
    made = frozen(made, *(["x2"] if sizes is None else []))
    check(made, run=runtime, step=1, tolerance=1e-4)
