"""Pairs of files that fooled earlier versions of ``validate``: a right one and a wrong one.

Each pair differs where one draw of small numbers, one run, one tolerance or one word of the file
itself would not show it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from helpers.graphs import parse


@dataclass(frozen=True)
class Pair:
    """``parts``: the parts of the validation that find the wrong file."""

    original: onnx.ModelProto
    rewritten: onnx.ModelProto
    parts: frozenset[str]


PAIRS: dict[str, Callable[[], Pair]] = {}


def pair(*parts: str) -> Callable[[Callable[[], tuple[onnx.ModelProto, onnx.ModelProto]]], None]:
    """List a pair under its function's name."""

    def decorate(make: Callable[[], tuple[onnx.ModelProto, onnx.ModelProto]]) -> None:
        PAIRS[make.__name__] = lambda: Pair(*make(), frozenset(parts))

    return decorate


def recorded(model: onnx.ModelProto, **values: object) -> onnx.ModelProto:
    """With what ``rewrite`` would have noted in the file."""
    for key, value in values.items():
        model.metadata_props.add(key=f"memplan.{key}", value=json.dumps(value))
    return model


def constants(model: onnx.ModelProto, **values: np.ndarray) -> onnx.ModelProto:
    """With more initializers."""
    for name, value in values.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


@pair("construction", "outputs")
def the_learning_rate_is_ignored() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A scalar that is 1 does not show."""
    head = "g (float[64, 64] w, float[64, 64] g, float lr) => (float[64, 64] w_new)"
    return (
        parse(f"{head} {{ s = Mul(g, lr)  w_new = Sub(w, s) }}"),
        parse(f"{head} {{ w_new = Sub(w, g) }}"),
    )


@pair("construction", "outputs")
def the_step_counter_is_ignored() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Adam's bias correction at step 1 is that of any step."""
    head = "g (float[64] g, int64 step) => (float[64] y) <float beta = {0.9}, float one = {1}>"
    return (
        parse(
            f"{head} {{ f = Cast<to = 1>(step)  p = Pow(beta, f)  c = Sub(one, p)  y = Div(g, c) }}"
        ),
        parse(f"{head} {{ c = Sub(one, beta)  y = Div(g, c) }}"),
    )


@pair("construction", "outputs")
def a_clip_is_a_relu() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Small numbers never reach the upper bound."""
    head = "g (float[64, 64] x) => (float[64, 64] y) <float lo = {0}, float hi = {6}>"
    return (
        parse(f"{head} {{ y = Clip(x, lo, hi) }}"),
        parse(f"{head} {{ y = Relu(x) }}"),
    )


@pair("construction")
def everything_is_nan() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The runs cannot see it, whatever is drawn: NaN is NaN."""
    head = "g (float[16, 16] x, float[16, 16] w) => (float[16, 16] y) <float m = {-1}>"
    body = "a = Abs(x)  n = Mul(a, m)  l = Log(n)"
    return (
        parse(f"{head} {{ {body}  y = MatMul(l, w) }}"),
        parse(f"{head} {{ {body}  y = MatMul(w, l) }}"),
    )


def _deep(last: str) -> onnx.ModelProto:
    layers = "  ".join(f"h{k + 1} = MatMul(h{k}, w)" for k in range(120))
    return parse(
        "g (float[16, 16] h0, float[16, 16] w) => (float[16, 16] y) "
        f"{{ {layers}  y = {last}(h120) }}"
    )


@pair("construction", "outputs")
def everything_underflows() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """120 layers of small weights."""
    return _deep("Identity"), _deep("Abs")


@pair("construction", "outputs")
def a_large_counter_is_off_by_one() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """2^60 and 2^60 + 1 are one number in float64."""
    head = "g (int64[8] s) => (int64[8] y)"
    return (
        parse(f"{head} <int64[1] big = {{{2**60}}}> {{ y = Add(s, big) }}"),
        parse(f"{head} <int64[1] big = {{{2**60 + 1}}}> {{ y = Add(s, big) }}"),
    )


@pair("construction", "outputs", "memory")
def a_gradient_is_zeroed_beside_a_spike() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The largest element is no measure of the others."""
    spike = np.zeros(1024, np.float32)
    spike[0] = 1e5
    head = "g (float[1024] x) => (float[1024] y)"
    return (
        constants(parse(f"{head} {{ y = Add(x, spike) }}"), spike=spike),
        constants(parse(f"{head} {{ z = Sub(x, x)  y = Add(z, spike) }}"), spike=spike),
    )


@pair("construction", "memory")
def the_peak_rises() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """No budget is recorded."""
    head = "g (float[64, 64] x) => (float[64, 64] y)"
    return (
        parse(f"{head} {{ a = Sin(x)  b = Cos(a)  y = Relu(b) }}"),
        parse(
            f"{head} {{ a = Sin(x)  c = Concat<axis = 0>(a, a, a)  s, t, u = Split"
            "<axis = 0, num_outputs = 3>(c)  z = Sub(s, u)  b = Cos(a)  d = Add(b, z)"
            "  y = Relu(d) }"
        ),
    )


@pair("construction", "outputs", "memory")
def an_output_has_another_type() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Equal values, float64 instead of float32."""
    return (
        parse("g (float[64] x) => (float[64] y) { y = Neg(x) }"),
        parse("g (float[64] x) => (double[64] y) { z = Neg(x)  y = Cast<to = 11>(z) }"),
    )


@pair("interface")
def outputs_are_said_to_be_removed() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """By the file's own word."""
    return (
        parse(
            "g (float[64] x) => (float[64] y, float[64] g1, float[64] g2) "
            "{ y = Neg(x)  g1 = Exp(x)  g2 = Sin(x) }"
        ),
        recorded(
            parse("g (float[64] x) => (float[64] y) { y = Neg(x) }"),
            removed_outputs=["g1", "g2"],
        ),
    )


def _branches(other: str) -> onnx.ModelProto:
    return parse(
        "g (float[8, 8] x, bool training) => (float[8, 8] y) { y = If (training) <"
        f"then_branch = a () => (float[8, 8] t) {{ t = Neg(x) }}, "
        f"else_branch = b () => (float[8, 8] e) {{ e = {other}(x) }}> }}"
    )


@pair("construction", "outputs")
def the_branch_that_is_not_taken_is_wrong() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """One value of a flag takes one branch."""
    return _branches("Relu"), _branches("Exp")


@pair("construction", "outputs")
def the_branch_that_is_taken_is_wrong() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The same under a negated flag."""

    def negated(other: str) -> onnx.ModelProto:
        model = _branches(other)
        model.graph.node[0].input[0] = "off"
        flag = onnx.helper.make_node("Not", ["training"], ["off"], name="not")
        nodes = [
            flag,
            *(onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node),
        ]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        return model

    return negated("Relu"), negated("Exp")


def _convolution() -> onnx.ModelProto:
    return parse(
        "g (float[1, 8, 64, 64] x, float[8, 8, 3, 3] w) => (float[1, 8, 64, 64] y) "
        "{ y = Conv<pads = [1, 1, 1, 1]>(x, w) }"
    )


@pair("memory")
def workspace_is_over_the_budget() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """It is in no measured figure."""
    return _convolution(), recorded(_convolution(), budget_bytes=300_000, session="tuned")


def _growing() -> onnx.ModelProto:
    return parse(
        "g (float[4096] x) => (float[1] y) <int64[1] ax = {0}> {"
        "a = Concat<axis = 0>(x, x)  b = Concat<axis = 0>(a, a)  c = Concat<axis = 0>(b, b)"
        "  d = ReduceSum(c, ax)  e = ReduceSum(d, ax)  y = Neg(e) }"
    )


@pair("memory")
def later_runs_are_over_the_budget() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """From its second run on a plain session holds a block."""
    return _growing(), recorded(_growing(), budget_bytes=220_000, session="default")


_UPDATES = 20_000


def noisy(factor: float) -> onnx.ModelProto:
    """A sum that threads race for and that cancels, and a second output that repeats."""
    generator = np.random.default_rng(0)
    return constants(
        parse(
            f"g (float[{_UPDATES}, 1] x) => (float[8, 1] noise, float[{_UPDATES}, 1] y) "
            "<float minus = {-1}> {"
            "n = Mul(x, minus)  xx = Concat<axis = 0>(x, n)  ii = Concat<axis = 0>(idx, idx)"
            '  noise = ScatterND<reduction = "add">(zeros, ii, xx)  y = Mul(x, factor) }'
        ),
        idx=generator.integers(0, 8, (_UPDATES, 1)).astype(np.int64),
        zeros=np.zeros((8, 1), np.float32),
        factor=np.asarray(factor, np.float32),
    )


@pair("construction", "outputs")
def the_noise_of_one_output_excuses_all() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """``y`` is 0 throughout."""
    return noisy(1), noisy(0)
