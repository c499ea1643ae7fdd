"""Graphs for passes, and what a pass makes of them."""

import onnx

from helpers.graphs import TUNED, open_text
from memplan.passes.manager import (
    run_passes,
)
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import simulate


def applied(text: str | onnx.ModelProto, *passes: object) -> OpenModel:
    """The model in ``text`` behind ``passes``."""
    model = open_text(text)
    return run_passes(passes, model, simulate(model.graph, TUNED))[-1].model  # type: ignore[arg-type]


def nodes(model: OpenModel) -> str:
    """Names of the nodes in order."""
    return " ".join(node.name for node in model.graph.nodes)


def dotted(text: str) -> str:
    """onnx.parser knows no dots in names: they are underlines there."""
    return text.replace('"', "").replace(".", "_") if "." in text else text


STEP = dotted("""
g (float[4, 8] x, float[8, 8] enc.w, float[8, 8] dec.w, float[8, 8] enc.w.m, float[8, 8] dec.w.m,
   float count)
  => (float loss, float[8, 8] enc.w.new, float[8, 8] dec.w.new, float[8, 8] enc.w.m.new,
      float[8, 8] dec.w.m.new, float count.new)
<float one = {1}, int64[2] shape = {4, 8}>
{
  [enc] h = MatMul(x, "enc.w") [act] r = Relu(h) [dec] p = MatMul(r, "dec.w")
  [loss] loss = ReduceSum <keepdims: int = 0>(p)
  [seed] g = Expand(loss, shape) [gd] gd = Gemm <transA: int = 1>(r, g)
  [gr] gr = Gemm <transB: int = 1>(g, "dec.w") [sign] s = Sign(r) [gh] gh = Mul(gr, s)
  [ge] ge = Gemm <transA: int = 1>(x, gh)
  [tick] "count.new" = Add(count, one)
  [me] "enc.w.m.new" = Add("enc.w.m", ge) [de] de = Div("enc.w.m.new", "count.new")
  [ue] "enc.w.new" = Sub("enc.w", de)
  [md] "dec.w.m.new" = Add("dec.w.m", gd) [dd] dd = Div("dec.w.m.new", "count.new")
  [ud] "dec.w.new" = Sub("dec.w", dd)
}
""")
TWO_WIDE = """g (float[1, 256] x) => (float[1, 256] y) <int64[1] axes = {0}>
    { [p] a = Concat <axis: int = 0>(x, x, x, x) [q] b = Concat <axis: int = 0>(x, x, x, x)
      [r] c = ReduceMax <keepdims: int = 1>(a, axes) [s] d = ReduceMax <keepdims: int = 1>(b, axes)
      [t] y = Add(c, d) }"""
