"""Small training steps whose shapes are hard to plan: 64 KiB a tensor, milliseconds to run."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import onnx

import memplan
from helpers.graphs import parse
from helpers.networks import FAMILIES, training_step

SIZE, BATCH = "float[32, 32]", "float[512, 32]"


def chain(first: str, names: str, weight: str = "") -> str:
    """Two operators per name, one of which every gradient reads; ``weight``: of all layers."""
    lines, last = [], first
    for name in names:
        lines.append(f"{name}0 = MatMul({last}, {weight or f'w{name}'})  {name} = Tanh({name}0)")
        last = name
    return "  ".join(lines)


def weights(names: str) -> str:
    return ", ".join(f"{SIZE} w{name}" for name in names)


def total(last: str, loss: str = "loss") -> str:
    return f"  {loss} = ReduceSum <keepdims = 0> ({last})"


def step(
    names: str,
    body: str,
    outputs: str = "float loss",
    *,
    ys: Sequence[str] = ("loss",),
    given: str = f"{BATCH} x",
    constants: str = "",
) -> onnx.ModelProto:
    """A step with gradients by the weights of these names."""
    text = f"g ({given}, {weights(names)}) => ({outputs}) {constants} {{ {body} }}"
    return memplan.gradients(parse(text), list(ys), [f"w{name}" for name in names])


def long_skips() -> onnx.ModelProto:
    """Early tensors are read again at the end, as in a U-Net: few bottlenecks."""
    skips = """
      e0 = Add(d, c)  e1 = MatMul(e0, we)  e = Tanh(e1)
      f0 = Mul(e, b)  f1 = MatMul(f0, wf)  f = Tanh(f1)
      h0 = Add(f, a)  h1 = MatMul(h0, wh)  h = Tanh(h1)"""
    return step("abcdefh", chain("x", "abcd") + skips + total("h"))


def no_bottleneck() -> onnx.ModelProto:
    """Two streams that mix at every layer: no tensor that all gradients pass through."""
    lines, left, right = [], "x", "z"
    for k in range(5):
        lines.append(
            f"p{k} = MatMul({left}, wa)  q{k} = MatMul({right}, wb)  l{k} = Tanh(p{k})  "
            f"m{k} = Tanh(q{k})  u{k} = Add(l{k}, {right})  v{k} = Mul(m{k}, {left})"
        )
        left, right = f"u{k}", f"v{k}"
    body = "  ".join([*lines, f"s = Add({left}, {right})"])
    return step("ab", body + total("s"), given=f"{BATCH} x, {BATCH} z")


def with_dropout() -> onnx.ModelProto:
    """Random masks, which must not be drawn twice."""
    body = "  ".join(
        f"{name}0 = MatMul({last}, w{name})  {name}1 = Tanh({name}0)  "
        f"{name}, {name}m = Dropout <seed = 7> ({name}1, ratio, training)"
        for last, name in zip("xabcd", "abcde", strict=True)
    )
    constants = "<float ratio = {0.25}, bool training = {1}>"
    return step("abcde", body + total("e"), constants=constants)


def several_losses() -> onnx.ModelProto:
    """Two heads on one trunk; gradients of both are added."""
    heads = f"  r = Exp(b) {total('r', 'one')}  t = Sin(d) {total('t', 'two')}"
    ys = ("one", "two")
    return step("abcd", chain("x", "abcd") + heads, "float one, float two", ys=ys)


def shared_weights() -> onnx.ModelProto:
    """One weight in every layer: its gradients are summed over the whole backward part."""
    return step("a", chain("x", "abcdef", "wa") + total("f"))


def stashes_that_are_outputs() -> onnx.ModelProto:
    """Activations that the caller wants too: they are held anyway."""
    outputs = f"float loss, {BATCH} b, {BATCH} d0"
    return step("abcde", chain("x", "abcde") + total("e"), outputs)


def symbolic_batch() -> onnx.ModelProto:
    """Eight layers over a batch that is given later."""
    body = chain("x", "abcdefgh") + total("h")
    return step("abcdefgh", body, given='float["N", 32] x')


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
