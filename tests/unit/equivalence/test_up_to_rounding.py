"""What is equal in exact arithmetic alone is not called proved: it says so, by name.

``tests/ort/test_same_kernels.py`` shows that the bits differ.
"""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from helpers.graphs import parse
from helpers.proofs import proof
from memplan.equivalence.terms import BY_STEPS, PACKED


def stored(text: str, *shape: int) -> onnx.ModelProto:
    """A graph with a weight ``w`` of that shape as a constant."""
    model = parse(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), "w"))
    return model


_PRODUCT = "g (float[4,129] x) => (float[4,8] y) <int64[2] s = {129, 8}> { %s y = %s }"


@pytest.mark.parametrize("copy", ["Identity (w)", "Reshape (w, s)", "Cast <to: int = 1> (w)"])
@pytest.mark.parametrize(
    "product", ["MatMul (x, {0})", "Gemm (x, {0})", "com.microsoft.FusedMatMul (x, {0})"]
)
def test_a_copy_of_a_constant_weight_that_goes_is_another_kernel(copy: str, product: str) -> None:
    with_copy = stored(_PRODUCT % (f"v = {copy}", product.format("v")), 129, 8)
    without = stored(_PRODUCT % ("", product.format("w")), 129, 8)
    for first, second in ((with_copy, without), (without, with_copy)):
        found = proof(first, second)
        assert (found.reason, found.proved, found.rounded) == (None, False, ("y",))
        assert found.rounding == (PACKED,)
    assert proof(with_copy, with_copy).proved
    # On CUDA the kernels pack nothing.
    assert proof(with_copy, without, provider="cuda").proved


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "proved"),
    [(4, 128, 8, True), (1, 128, 8, False), (4, 128, 1, False), (4, 129, 8, False)],
)
def test_of_a_short_product_it_is_not(rows: int, inner: int, columns: int, proved: bool) -> None:
    text = f"g (float[{rows},{inner}] x) => (float[{rows},{columns}] y) {{{{ {{0}} y = {{1}} }}}}"
    one = stored(text.format("v = Identity (w)", "MatMul (x, v)"), inner, columns)
    other = stored(text.format("", "MatMul (x, w)"), inner, columns)
    assert proof(one, other).proved == proved
    turned = "Gemm <transB: int = 1> (x, {0})"
    one = stored(text.format("v = Identity (w)", turned.format("v")), columns, inner)
    other = stored(text.format("", turned.format("w")), columns, inner)
    assert proof(one, other).proved == proved


def test_so_it_is_in_a_body() -> None:
    text = """g (bool c, float[4,200] x) => (float[4,200] z) {{ {0}
      z = If (c) <then_branch = t () => (float[4,200] a) {{ a = MatMul (x, {1}) }},
                  else_branch = e () => (float[4,200] b) {{ b = Neg (x) }}> }}"""
    one = stored(text.format("v = Identity (w)", "v"), 200, 200)
    other = stored(text.format("", "w"), 200, 200)
    found = proof(one, other)
    assert (found.reason, found.proved, found.rounding) == (None, False, (PACKED,))
    assert found.rounded == ("a",)
    assert proof(other, other).proved


def test_a_weight_that_a_caller_may_replace_is_no_constant() -> None:
    text = "g (float[1,8] x, float[8,8] w) => (float[1,8] y) {{ {0} y = MatMul (x, {1}) }}"
    models = [stored(text.format(*how), 8, 8) for how in (("v = Identity (w)", "v"), ("", "w"))]
    assert proof(*models).proved
    for model in models:
        model.ir_version = 3  # where it is the default that no caller replaces
        del model.graph.input[1]
        model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [8, 8]))
    assert not proof(*models).proved


def test_what_is_added_or_convolved_takes_a_constant_as_any_other_tensor() -> None:
    text = "g (float[4,8] x) => (float[4,8] y) {{ {0} y = Add (x, {1}) }}"
    one, other = stored(text.format("v = Identity (w)", "v"), 8), stored(text.format("", "w"), 8)
    assert proof(one, other).proved


_SCAN = """g (float[4,3,{k}] x, float[{k},{n}] w, float[3,{n}] h0)
    => (float[3,{n}] last, float[4,3,{n}] ys) {{ {outside}
  [loop] last, ys = Scan <num_scan_inputs = 1, body = s (float[3,{n}] h, float[3,{m}] t)
    => (float[3,{n}] n, float[3,{n}] o) {{ {inside} [add] n = Tanh (p) [out] o = Add (n, h) }}>
    (h0, {read}) }}"""


@pytest.mark.parametrize(
    ("inner", "columns", "proved"), [(128, 2, True), (129, 2, False), (16, 1, False)]
)
def test_a_product_that_a_loop_makes_step_by_step(inner: int, columns: int, proved: bool) -> None:
    """Kernels add up to 128 terms in one go, whatever rows stand beside them; more not."""
    sizes = {"k": inner, "n": columns}
    before, step = "q = MatMul (x, w)", "p = Identity (t)"
    outside = _SCAN.format(**sizes, m=columns, outside=before, inside=step, read="q")
    inside = _SCAN.format(**sizes, m=inner, outside="", inside="p = MatMul (t, w)", read="x")
    found = proof(outside, inside)
    assert (found.reason, found.proved) == (None, proved)
    if not proved:
        assert (found.rounded, found.rounding) == (("q",), (BY_STEPS,))
        assert found.as_json()["reasons_of_rounding"] == [BY_STEPS]
    assert proof(outside, outside).proved
    assert proof(inside, inside).proved


def test_a_pool_that_lists_its_indices_is_no_pool_that_does_not() -> None:
    text = """g (float[1,2,8,8] x) => (float[1,2,4,4] y) {{
      [pool] y{0} = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }}"""
    listed, alone, empty = (parse(text.format(names)) for names in (", i", "", ", i"))
    empty.graph.node[0].output[1] = ""
    assert proof(listed, empty).proved
    assert proof(empty, listed).proved
    found = proof(listed, alone)
    assert found.reason is not None
    assert "'pool' there, it has other outputs" in found.reason


@pytest.mark.parametrize("op", ["Greater", "GreaterOrEqual", "Equal", "Less", "LessOrEqual"])
def test_whole_numbers_above_2_to_53_are_compared_as_they_are(op: str) -> None:
    text = """g (int64[8] x) => (bool[8] y, int64[8] r) {{
      r = Clip (x, low, high) y = {op} ({read}, c) }}"""
    models = [parse(text.format(op=op, read=read)) for read in ("r", "x")]
    bounds = {"low": 2**53 + 1, "high": 2**60, "c": 2**53}
    for model in models:
        model.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value, np.int64), name)
            for name, value in bounds.items()
        )
    assert not proof(*models).proved
