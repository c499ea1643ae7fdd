"""Training graphs and what ``rewrite`` makes of them: what the edits of :mod:`edits` begin with.

Small networks that between them have what the rules of the proof are about (masks that are drawn
and packed, pools and their indices, activations that are compared, loops, chunks, state in place),
the random graphs of :mod:`graphs`, and the models of ``sample_models``.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from graphs import random_step
from hostile import parsed
from onnx import numpy_helper

import memplan
from memplan.errors import MemplanError
from memplan.units import parse_budget

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
_BUDGETS = ("min", "min", "95%", "88%", "80%", "65%")
_STRATEGIES = ("greedy", "search{iterations=3}", "search{iterations=3}", "segments")
_CHUNKS = ("none", "none", "regions", "layers", "2", "3")
_SESSIONS = (*("tuned",) * 7, "default")
_TRIES = 6
_SHARE_OF_SAMPLES, _SHARE_OF_RANDOM = 0.02, 0.45


@dataclass(frozen=True, slots=True)
class Pair:
    """A training graph, what was made of it and how; ``state``: its new values by the inputs that
    they may be written over, output → input."""

    what: str
    original: bytes
    rewritten: bytes
    state: tuple[tuple[str, str], ...] = ()


def made(r: random.Random) -> Pair:
    """A pair, the same for the same random numbers."""
    draw = r.random()
    if draw < _SHARE_OF_SAMPLES:
        path = r.choice(sorted(SAMPLES.glob("*.onnx")))
        name, model = path.stem, onnx.load(path)
    elif draw < _SHARE_OF_SAMPLES + _SHARE_OF_RANDOM:
        name, model = "random", random_step(r)
    else:
        net = r.choice(_NETS)
        name, model = net.__name__.strip("_"), _trained(net, r)
    _vary_constants(model, r)
    for _ in range(_TRIES):
        options = {
            "strategy": r.choice(_STRATEGIES),
            "session": "tuned" if draw < _SHARE_OF_SAMPLES else r.choice(_SESSIONS),
            "chunk": r.choice(_CHUNKS),
            "passes": r.choice(("all", "all", "all", "none")),
            "scan_recompute": r.choice(("", "all")),
        }
        budget = r.choice(_BUDGETS)
        pair = _rewritten(name, model, budget, options)
        if pair is not None:
            return pair
    return _rewritten(name, model, "100%", {"strategy": "none"}) or Pair(
        f"{name} as it is", model.SerializeToString(), model.SerializeToString()
    )


def _rewritten(
    name: str, model: onnx.ModelProto, budget: str, options: dict[str, str]
) -> Pair | None:
    what = f"{name} {budget} " + " ".join(f"{key}={value}" for key, value in options.items())
    try:
        effort = 2 if "search" in options["strategy"] else 0
        asked = memplan.RewriteOptions(
            parse_budget(budget), optimize="none", effort=effort, **options
        )
        found = memplan.rewrite(model, asked)
    except MemplanError:
        return None
    assert found.model is not None
    outputs = {value.name for value in model.graph.output}
    pairs = [
        (f"{value.name}{end}", value.name)
        for value in model.graph.input
        for end in ("_new", ".new")
        if f"{value.name}{end}" in outputs
    ]
    return Pair(what, model.SerializeToString(), found.model.SerializeToString(), tuple(pairs))


def _vary_constants(model: onnx.ModelProto, r: random.Random) -> None:
    """Weights that were one number throughout are drawn: else a permutation does not show."""
    numbers = np.random.default_rng(r.randrange(1 << 30))
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.size > 3 and np.ptp(array) == 0:
            drawn = numbers.standard_normal(array.shape) * 0.3
            tensor.CopyFrom(numpy_helper.from_array(drawn.astype(np.float32), tensor.name))


def _trained(net: Callable[[random.Random], str], r: random.Random) -> onnx.ModelProto:
    """The training step of a network whose result is ``y``."""
    model = parsed('<ir_version: 10, opset_import: ["" : 20]>\n' + net(r))
    _vary_constants(model, r)
    loss = "cross-entropy" if r.random() < 0.5 else "mse"
    optimizer = r.choice(("none", "sgd", "momentum", "adamw"))
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as folder:
        options = memplan.GradOptions(loss=loss, logits="y", optimizer=optimizer)
        target = Path(folder) / "step.onnx"
        memplan.grad(model, options, target)
        return onnx.load(target)


def _layers(r: random.Random) -> str:
    """Products, activations, Dropout and a head that is worth chunks."""
    rows, wide, many = r.choice((6, 35, 64)), r.choice((64, 512)), r.choice((16, 100, 400))
    act = r.choice(("Relu", "Tanh", "Gelu", "Sigmoid", "LeakyRelu"))
    return f"""layers (float[{rows},{wide}] x) => (float[{rows},{many}] y)
<float[{wide},64] a = {{0.1}}, float[64] b = {{0.1}}, float[64] s = {{1}},
 float[64,{many}] c = {{0.1}}, float[64,64] e = {{0.1}}, float ratio = {{0.25}}, bool yes = {{1}}>
{{
  h = MatMul (x, a)
  i = Add (h, b)
  j = {act} (i)
  k, mask = Dropout <seed: int = {r.randrange(9)}> (j, ratio, yes)
  l = MatMul (k, e)
  m = Add (l, j)
  n = LayerNormalization (m, s, b)
  y = MatMul (n, c)
}}"""


def _images(r: random.Random) -> str:
    """Convolutions, statistics, pools whose indices a gradient reads, clipped activations."""
    side, channels = r.choice((8, 12)), r.choice((3, 8))
    pool = r.choice(
        (
            "p, q = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]> (a)",
            "p = MaxPool <kernel_shape: ints = [3, 3], strides: ints = [2, 2], "
            "pads: ints = [0, 0, 1, 1]> (a)",
            "p = AveragePool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]> (a)",
        )
    )
    act = r.choice(("Relu (h)", "Clip (h, zero, six)", "LeakyRelu (h)", "HardSwish (h)"))
    return f"""images (float[4,{channels},{side},{side}] x) => (float[4,10] y)
<float[8,{channels},3,3] w = {{0.1}}, float[8] b = {{0.1}}, float[8] s = {{1}}, float[8] t = {{0}},
 float[8,8,1,1] v = {{0.1}}, float[{2 * side * side},10] c = {{0.1}}, float zero = {{0}},
 float six = {{0.5}}, int64[2] flat = {{4, -1}}>
{{
  g = Conv <pads: ints = [1, 1, 1, 1]> (x, w, b)
  h = InstanceNormalization (g, s, t)
  a = {act}
  {pool}
  u = Conv (p, v)
  o = Relu (u)
  f = Reshape (o, flat)
  y = MatMul (f, c)
}}"""


def _recurrent(r: random.Random) -> str:
    """A recurrent layer, which trains as a pair of Scans."""
    op = r.choice(("GRU", "LSTM", "RNN"))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    steps, rows, wide, hidden = r.choice((5, 12)), r.choice((2, 4)), r.choice((8, 64)), 16
    return f"""recurrent (float[{steps},{rows},{wide}] x) => (float[{rows},10] y)
<float[1,{gates * hidden},{wide}] w = {{0.1}}, float[1,{gates * hidden},{hidden}] u = {{0.1}},
 float[1,{2 * gates * hidden}] b = {{0.1}}, float[{hidden},10] c = {{0.1}}, int64[1] first = {{0}}>
{{
  s, t = {op} <hidden_size: int = {hidden}> (x, w, u, b)
  h = Squeeze (t, first)
  y = MatMul (h, c)
}}"""


def _attention(r: random.Random) -> str:
    """Attention with Dropout and a mask."""
    rows, wide = r.choice((8, 16)), r.choice((16, 64))
    return f"""attention (float[2,{rows},{wide}] x) => (float[2,{rows},20] y)
<float[{wide},{wide}] q = {{0.1}}, float[{wide},{wide}] k = {{0.1}}, float[{wide},20] c = {{0.1}},
 float[{wide}] s = {{1}}, float[{wide}] b = {{0}}, float ratio = {{0.5}}, bool yes = {{1}},
 float low = {{-1e9}}, float some = {{-0.5}}>
{{
  n = LayerNormalization (x, s, b)
  a = MatMul (n, q)
  d = MatMul (n, k)
  e = Transpose <perm: ints = [0, 2, 1]> (d)
  f = MatMul (a, e)
  hidden = Less (f, some)
  g = Where (hidden, low, f)
  p = Softmax (g)
  o, m = Dropout <seed: int = 3> (p, ratio, yes)
  z = MatMul (o, n)
  t = Add (z, x)
  y = MatMul (t, c)
}}"""


def _lookup(r: random.Random) -> str:
    """Rows that are looked up, largest elements and where they are."""
    return """lookup (int64[4,6] x, float[4,6,16] w) => (float[4,6,12] y)
<float[40,16] table = {0.1}, float[16,12] c = {0.1}, float[12] b = {0.1}, int64[1] three = {3}>
{
  e = Gather (table, x)
  a = Mul (e, w)
  v, i = TopK <axis: int = -1> (a, three)
  t = ReduceSum <keepdims: int = 1> (v, three_axes)
  u = Add (a, t)
  l = MatMul (u, c)
  y = Add (l, b)
}""".replace("int64[1] three = {3}", "int64[1] three = {3}, int64[1] three_axes = {2}")


_NETS: tuple[Callable[[random.Random], str], ...] = (
    *(_layers, _layers, _images, _images, _recurrent, _attention, _attention, _lookup),
)
