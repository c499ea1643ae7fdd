"""Gradients of Attention and RotaryEmbedding against finite differences."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.drawing import quiet
from helpers.gradients import Array, check, check_on_runtime, draw, runtime, single
from memplan.errors import ModelError

QUIET = quiet(30)


def as_rows(array: Array) -> Array:
    """batch × heads × length × size → batch × length × (heads · size)."""
    batch, heads, length, size = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


@QUIET
@given(st.data())
def test_attention(data: st.DataObject) -> None:
    batch, shared, times = (data.draw(st.integers(1, 2)) for _ in range(3))
    length, other, size, wide = (data.draw(st.integers(1, 3)) for _ in range(4))
    attributes: dict[str, Any] = {"is_causal": data.draw(st.integers(0, 1))}
    query = draw((batch, shared * times, length, size))
    key, value = draw((batch, shared, other, size), 1), draw((batch, shared, other, wide), 2)
    if data.draw(st.booleans()):
        attributes["scale"] = 0.7
    if data.draw(st.booleans()):
        attributes["softcap"] = 1.5
    mask = data.draw(st.sampled_from([None, "float", "bool"]))
    inputs: list[Array] = [query, key, value]
    if data.draw(st.booleans()):
        inputs = [as_rows(part) for part in inputs]
        attributes |= {"q_num_heads": shared * times, "kv_num_heads": shared}
    if mask == "float":
        inputs.append(draw((length, other), 3))
    if mask == "bool":
        inputs.append(np.tri(length, other, dtype=bool))
    opset = data.draw(st.sampled_from([23, 24]))
    check_on_runtime(single("Attention", *inputs, opset=opset, **attributes))


@pytest.mark.parametrize("kind", ["float", "bool"])
def test_a_mask_for_fewer_keys_than_there_are(kind: str) -> None:
    query, key, value = draw((2, 2, 3, 4)), draw((2, 2, 5, 4), 1), draw((2, 2, 5, 2), 2)
    mask = draw((3, 4), 3) if kind == "float" else np.tri(3, 4, dtype=bool)
    check_on_runtime(single("Attention", query, key, value, mask, opset=24))


def test_attention_with_a_cache() -> None:
    """Inlined as ONNX defines it; the cache has a gradient too."""
    parts = [draw((1, 2, 3, 2), k) for k in range(3)]
    past = [draw((1, 2, 2, 2), k) for k in (3, 4)]
    made = single("Attention", *parts, draw((3, 5), 5), *past, opset=23, outputs=3)
    check(made, ys=["y0"])


@QUIET
@given(st.data())
def test_rotary_embedding(data: st.DataObject) -> None:
    batch, heads, length = (data.draw(st.integers(1, 3)) for _ in range(3))
    size = 2 * data.draw(st.integers(1, 3))
    x = draw((batch, heads, length, size))
    attributes = {"interleaved": data.draw(st.integers(0, 1))}
    if data.draw(st.booleans()):
        x, attributes["num_heads"] = as_rows(x), heads
    angles = draw((5, size // 2), 1)
    caches = [np.cos(angles), np.sin(angles)]
    places = data.draw(st.lists(st.integers(0, 4), min_size=length, max_size=length))
    floats = [array.astype(np.float32) for array in (x, *caches)]
    inputs = [*floats, np.asarray([places] * batch, np.int64)]
    kinds = [onnx.TensorProto.FLOAT]
    made = single("RotaryEmbedding", *inputs, opset=23, out_dtypes=kinds, **attributes)
    # It is linear, and defined for float32 only.
    check(made, xs=["x0"], run=runtime, step=1, tolerance=1e-5)


def test_the_angles_of_rotary_embedding() -> None:
    angles = draw((1, 3, 1), 1)
    inputs = [draw((1, 1, 3, 2)), np.cos(angles), np.sin(angles)]
    kinds = [onnx.TensorProto.FLOAT]
    made = single(
        "RotaryEmbedding", *(a.astype(np.float32) for a in inputs), opset=23, out_dtypes=kinds
    )
    with pytest.raises(ModelError, match="angles"):
        check(made, run=runtime)
