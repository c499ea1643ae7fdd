"""Small training steps whose shapes are hard to plan: 64 KiB a tensor, milliseconds to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import onnx

import memplan
from helpers.graphs import parse
from helpers.networks import FAMILIES, training_step

SIZE, BATCH = "float[32, 32]", "float[512, 32]"


def chain(first: str, names: str) -> str:
    """Two operators per name, one of which every gradient reads."""
    lines, last = [], first
    for name in names:
        lines.append(f"{name}0 = MatMul({last}, w{name})  {name} = Tanh({name}0)")
        last = name
    return "  ".join(lines)


def weights(names: str) -> str:
    return ", ".join(f"{SIZE} w{name}" for name in names)


def step(inputs: str, outputs: str, body: str, ys: list[str], xs: list[str]) -> onnx.ModelProto:
    text = f"g ({inputs}) => ({outputs}) {{ {body} }}"
    return memplan.gradients(parse(text), ys, xs)


def long_skips() -> onnx.ModelProto:
    """Early tensors are read again at the end, as in a U-Net: few bottlenecks."""
    body = (
        chain("x", "abcd")
        + """
      e0 = Add(d, c)  e1 = MatMul(e0, we)  e = Tanh(e1)
      f0 = Mul(e, b)  f1 = MatMul(f0, wf)  f = Tanh(f1)
      h0 = Add(f, a)  h1 = MatMul(h0, wh)  h = Tanh(h1)
      loss = ReduceSum <keepdims = 0> (h)"""
    )
    names = "abcdefh"
    return step(
        f"{BATCH} x, {weights(names)}", "float loss", body, ["loss"], [f"w{n}" for n in names]
    )


def no_bottleneck() -> onnx.ModelProto:
    """Two streams that mix at every layer: no tensor that all gradients pass through."""
    lines, left, right = [], "x", "z"
    for k in range(5):
        lines.append(
            f"p{k} = MatMul({left}, wa)  q{k} = MatMul({right}, wb)  l{k} = Tanh(p{k})  "
            f"m{k} = Tanh(q{k})  u{k} = Add(l{k}, {right})  v{k} = Mul(m{k}, {left})"
        )
        left, right = f"u{k}", f"v{k}"
    lines.append(f"s = Add({left}, {right})  loss = ReduceSum <keepdims = 0> (s)")
    return step(
        f"{BATCH} x, {BATCH} z, {SIZE} wa, {SIZE} wb",
        "float loss",
        "  ".join(lines),
        ["loss"],
        ["wa", "wb"],
    )


def with_dropout() -> onnx.ModelProto:
    """Random masks, which must not be drawn twice."""
    body = "  ".join(
        f"{name}0 = MatMul({last}, w{name})  {name}1 = Tanh({name}0)  "
        f"{name}, {name}m = Dropout <seed = 7> ({name}1, ratio, training)"
        for last, name in zip("xabcd", "abcde", strict=True)
    )
    model = f"""g ({BATCH} x, {weights("abcde")}) => (float loss)
      <float ratio = {{0.25}}, bool training = {{1}}>
      {{ {body}  loss = ReduceSum <keepdims = 0> (e) }}"""
    return memplan.gradients(parse(model), "loss", [f"w{name}" for name in "abcde"])


def several_losses() -> onnx.ModelProto:
    """Two heads on one trunk; gradients of both are added."""
    body = (
        chain("x", "abcd")
        + """
      r = Exp(b)  one = ReduceSum <keepdims = 0> (r)
      t = Sin(d)  two = ReduceSum <keepdims = 0> (t)"""
    )
    return step(
        f"{BATCH} x, {weights('abcd')}",
        "float one, float two",
        body,
        ["one", "two"],
        [f"w{n}" for n in "abcd"],
    )


def shared_weights() -> onnx.ModelProto:
    """One weight in every layer: its gradients are summed over the whole backward part."""
    body = "  ".join(
        f"{name}0 = MatMul({last}, w)  {name} = Tanh({name}0)"
        for last, name in zip("xabcde", "abcdef", strict=True)
    )
    return step(
        f"{BATCH} x, {SIZE} w",
        "float loss",
        f"{body}  loss = ReduceSum <keepdims = 0> (f)",
        ["loss"],
        ["w"],
    )


def stashes_that_are_outputs() -> onnx.ModelProto:
    """Activations that the caller wants too: they are held anyway."""
    body = chain("x", "abcde") + "  loss = ReduceSum <keepdims = 0> (e)"
    return step(
        f"{BATCH} x, {weights('abcde')}",
        f"float loss, {BATCH} b, {BATCH} d0",
        body,
        ["loss"],
        [f"w{n}" for n in "abcde"],
    )


def symbolic_batch() -> onnx.ModelProto:
    """Eight layers over a batch that is given later."""
    body = chain("x", "abcdefgh") + "  loss = ReduceSum <keepdims = 0> (h)"
    model = parse(f'g (float["N", 32] x, {weights("abcdefgh")}) => (float loss) {{ {body} }}')
    return memplan.gradients(model, "loss", [f"w{n}" for n in "abcdefgh"])


STEPS = (
    long_skips,
    no_bottleneck,
    with_dropout,
    several_losses,
    shared_weights,
    stashes_that_are_outputs,
)


ALL_STEPS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    **{make.__name__: make for make in STEPS},
    **{family: partial(training_step, family) for family in FAMILIES},
}
"""These, and a step with an optimizer of every family of networks."""


def saved_step(make: Callable[[], onnx.ModelProto], folder: Path) -> Path:
    """A step in a file."""
    path = folder / "step.onnx"
    onnx.save(make(), path)
    return path
