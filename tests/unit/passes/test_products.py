"""Gradients of weights with a factor transposed ahead: which, how, and what is said of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from helpers.graphs import TUNED, open_text, parse
from helpers.plans import outputs_of
from helpers.proofs import proof
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.equivalence.terms import TURNED
from memplan.passes.manager import PassManager, PassStep
from memplan.passes.products import Products
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

# The peak is where h and p are there with e, so that a copy beside a gradient does not raise it.
STEP = """g (float[{n}, {a}] x, float[{n}, {b}] y, float[{n}, 2048] big)
  => (float[{a}, {b}] d, float s)
{{ [e] e = Tanh(big) [h] h = Exp(e) [p] p = Mul(h, e)
   [s] s = ReduceSum <keepdims: int = 0>(p) [d] d = {product} }}"""
GEMM = "Gemm <transA: int = 1, alpha: float = 0.5>(x, y)"
FUSED = "com.microsoft.FusedMatMul <transA: int = 1, alpha: float = 0.5>(x, y)"


def ran(rows: int, columns: int, product: str = GEMM, n: int = 520) -> PassStep:
    model = open_text(STEP.format(n=n, a=rows, b=columns, product=product))
    (step,) = PassManager([Products()]).run(model, simulate(model.graph, TUNED))
    return step


def kinds(step: PassStep) -> list[str]:
    return [node.key.partition(":")[2] for node in step.model.graph.nodes if node.id > 3]


@pytest.mark.parametrize("product", [GEMM, FUSED])
@pytest.mark.parametrize(
    ("rows", "columns", "n", "behind"),
    [(320, 640, 520, 0), (320, 320, 512, 0), (640, 320, 520, 1), (640, 320, 512, 0)],
)
def test_a_wide_gradient_is_the_same_bits(
    rows: int, columns: int, n: int, behind: int, product: str
) -> None:
    step = ran(rows, columns, product, n)
    kind = "Gemm" if product == GEMM else "FusedMatMul"
    assert kinds(step) == ["Transpose", kind, *["Transpose"] * behind]
    assert step.note == "1 product of 1"
    before = open_text(STEP.format(n=n, a=rows, b=columns, product=product)).prepared
    after = step.model.prepared.proto
    found = prove(reference_side(before), Side(after, before.folder))
    assert (found.reason, found.proved, found.rounded) == (None, False, ("d",))
    assert found.rounding == (TURNED,)
    feeds = {
        name: np.random.default_rng(k).standard_normal(shape).astype(np.float32)
        for k, (name, shape) in enumerate(
            {"x": (n, rows), "y": (n, columns), "big": (n, 2048)}.items()
        )
    }
    first, second = (outputs_of(each, feeds)[0] for each in (before.proto, after))
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("rows", "columns", "product", "n"),
    [
        (319, 640, GEMM, 512),
        (640, 319, GEMM, 512),
        (320, 640, GEMM, 255),
        (320, 640, "Gemm <transB: int = 1>(xt, y)", 512),
        (640, 320, "Gemm <transA: int = 1, transB: int = 1>(x, yt)", 520),
    ],
)
def test_what_gains_nothing_is_left_alone(rows: int, columns: int, product: str, n: int) -> None:
    text = STEP.format(n=n, a=rows, b=columns, product=product)
    text = text.replace("[d]", "[xt] xt = Transpose(x) [yt] yt = Transpose(y) [d]")
    model = open_text(text.replace("transB: int = 1>(xt, y)", "transB: int = 1>(xt, yt)"))
    (step,) = PassManager([Products()]).run(model, simulate(model.graph, TUNED))
    assert not step.changed


def test_a_copy_that_would_raise_the_peak_is_not_made() -> None:
    text = "g (float[512, 320] x, float[512, 320] y) => (float[320, 320] d) {{ [d] d = {} }}"
    model = open_text(text.format(GEMM))
    (step,) = PassManager([Products()]).run(model, simulate(model.graph, TUNED))
    assert not step.changed


def test_other_providers_keep_theirs() -> None:
    model = open_text(STEP.format(n=512, a=320, b=640, product=GEMM))
    timeline = simulate(model.graph, session_kind("tuned", "cuda"))
    (step,) = PassManager([Products()]).run(model, timeline)
    assert (step.changed, step.note) == (False, "measured on the CPU alone")


PRODUCT = "g (float[9, 4] x, float[9, 5] y, float[4, 5] c) => (float[4, 5] d) {{ {} }}"


def product(how: str) -> onnx.ModelProto:
    return parse(PRODUCT.format(how))


@pytest.mark.parametrize(
    "how",
    [
        "t = Transpose(x) d = Gemm(t, y)",
        "t = Transpose(x) d = MatMul(t, y)",
        "t = Transpose(y) u = Gemm(t, x) d = Transpose(u)",
        "t = Transpose(y) d = Gemm <transA: int = 1, transB: int = 1>(x, t)",
    ],
)
def test_the_same_product_is_equal_up_to_rounding(how: str) -> None:
    found = proof(product("d = Gemm <transA: int = 1>(x, y)"), product(how))
    assert (found.reason, found.proved, found.rounding) == (None, False, (TURNED,))


@pytest.mark.parametrize(
    "how",
    [
        "t = Transpose(x) d = Gemm <alpha: float = 0.5>(t, y)",
        "t = Transpose(x) d = Gemm(t, y, c)",
        "t = Transpose(x) u = Tanh(t) d = Gemm(u, y)",
        "t = Transpose(y) u = Gemm <alpha: float = 0.5>(t, x) d = Transpose(u)",
        "w = Gemm <transA: int = 1>(x, y) d = Gemm <transA: int = 1>(x, y, w)",
    ],
)
def test_another_product_is_refuted(how: str) -> None:
    found = proof(product("d = Gemm <transA: int = 1>(x, y)"), product(how))
    assert found.reason is not None


def test_a_transposed_product_is_not_the_product() -> None:
    text = "g (float[9, 4] x, float[9, 4] y) => (float[4, 4] d) {{ {} }}"
    first = parse(text.format("d = Gemm <transA: int = 1>(x, y)"))
    other = parse(text.format("t = Transpose(y) d = Gemm(t, x)"))
    assert proof(first, other).reason is not None


def test_what_is_added_is_not_transposed_with_the_product() -> None:
    text = "g (float[9, 4] x, float[9, 4] y, float[4, 4] c) => (float[4, 4] d) {{ {} }}"
    first = parse(text.format("d = Gemm <transA: int = 1>(x, y, c)"))
    other = parse(text.format("t = Transpose(y) u = Gemm(t, x, c) d = Transpose(u)"))
    assert proof(first, other).reason is not None
