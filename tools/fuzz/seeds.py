"""Models that mutants are made of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import memplan

_LARGEST = 200_000
_TEXTS = {
    "step": """
<ir_version: 10, opset_import: ["" : 18]>
step (float[8,16] x, float[8,4] y) => (float loss, float[16,4] w_grad)
<float[16,4] w = {0.5}, float two = {2}>
{
  h = MatMul (x, w)
  a = Relu (h)
  d = Sub (a, y)
  s = Mul (d, d)
  loss = ReduceMean <keepdims: int = 0> (s)
  dd = Mul (d, two)
  alive = Greater (h, two)
  mask = Cast <to: int = 1> (alive)
  dh = Mul (dd, mask)
  xt = Transpose <perm: ints = [1, 0]> (x)
  w_grad = MatMul (xt, dh)
}
""",
    "shapes": """
<ir_version: 10, opset_import: ["" : 18]>
shapes (float[N,16,8] x) => (float[M,K] z)
<int64[1] minus = {-1}, int64 one = {1}, int64[1] zero = {0}>
{
  s = Shape (x)
  n = Gather <axis: int = 0> (s, one)
  u = Unsqueeze (n, zero)
  t = Concat <axis: int = 0> (u, minus)
  r = Reshape (x, t)
  z = Softmax <axis: int = -1> (r)
}
""",
    "image": """
<ir_version: 10, opset_import: ["" : 17]>
image (float[2,3,16,16] x) => (float[2,4] y)
<float[4,3,3,3] w = {0.1}, float[4] b = {0}, float[4] scale = {1}, float[4] mean = {0},
 float[4] var = {1}, int64[2] flat = {2, -1}, float[4,256] v = {0.1}, float[4] c = {0.5}>
{
  h = Conv <kernel_shape: ints = [3, 3], pads: ints = [1, 1, 1, 1]> (x, w, b)
  n = BatchNormalization (h, scale, b, mean, var)
  a = LeakyRelu (n)
  p = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]> (a)
  f = Reshape (p, flat)
  y = Gemm <transB: int = 1> (f, v, c)
}
""",
    "text": """
<ir_version: 10, opset_import: ["" : 18]>
text (int64[2,6] ids) => (float[2,6,10] logits)
<float[10,8] table = {0.1}, float[8] scale = {1}, float[8] bias = {0}, float[8,10] head = {0.1},
 int64[2] sizes = {4, 4}>
{
  e = Gather <axis: int = 0> (table, ids)
  n = LayerNormalization <axis: int = -1> (e, scale, bias)
  q, k = Split <axis: int = -1> (n, sizes)
  kt = Transpose <perm: ints = [0, 2, 1]> (k)
  s = MatMul (q, kt)
  p = Softmax <axis: int = -1> (s)
  m = MatMul (p, n)
  logits = MatMul (m, head)
}
""",
    "bodies": """
<ir_version: 10, opset_import: ["" : 18]>
bodies (float[5,4] x, float[4] start, bool flag) => (float[4] last, float[5,4] all, float[4] z)
<int64 trips = {3}, bool going = {1}>
{
  last, all = Scan <num_scan_inputs: int = 1, body = step (float[4] s, float[4] e)
      => (float[4] t, float[4] o) { t = Add (s, e) o = Tanh (t) }> (start, x)
  looped = Loop <body = turn (int64 i, bool c, float[4] v) => (bool d, float[4] w)
      { d = Identity (c) w = Mul (v, v) }> (trips, going, last)
  z = If (flag) <then_branch = yes () => (float[4] a) { a = Exp (looped) },
                 else_branch = no () => (float[4] b) { b = Neg (looped) }>
}
""",
    "recurrent": """
<ir_version: 10, opset_import: ["" : 18]>
recurrent (float[5,2,3] x) => (float[5,1,2,4] y, float[1,2,4] h)
<float[1,16,3] w = {0.1}, float[1,16,4] r = {0.1}, float[1,32] b = {0}>
{ y, h = LSTM <hidden_size: int = 4> (x, w, r, b) }
""",
    "functions": """
<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
functions (float[4,4] x) => (float[4,4] y)
{ h = local.twice (x) y = local.twice (h) }
<domain: "local", opset_import: ["" : 18]>
twice (a) => (b) { c = Tanh (a) b = Add (c, a) }
""",
    "fused": """
<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
fused (float[4,8] x, float[8,4] w, float[4] b) => (float[4,4] y)
<float[4,4] g>
{
  h = com.microsoft.FusedMatMul <transA: int = 0> (x, w)
  g = com.microsoft.BiasGelu (h, b)
  y = Dropout (g)
}
""",
}


def built_in() -> dict[str, bytes]:
    """Small models that have a little of everything, and training graphs of some of them."""
    models = {name: _parsed(text) for name, text in _TEXTS.items()}
    steps = {f"{name} step": training_step(models[name]) for name in _TRAINED}
    steps["deep step"] = training_step(_parsed(_deep(8)))
    models |= steps
    return {name: model.SerializeToString() for name, model in models.items()}


_TRAINED = ("image", "text", "recurrent", "functions")


def training_step(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, the sum of its last output as the loss, and the gradients of its float inputs and
    weights."""
    outputs = [value.name for value in model.graph.output]
    axes = {"keepdims": 0}
    model.graph.node.append(helper.make_node("ReduceSum", outputs[-1:], ["sum_of_all"], **axes))
    model.graph.output.add(name="sum_of_all").type.tensor_type.elem_type = TensorProto.FLOAT
    constants = [tensor for tensor in model.graph.initializer if tensor.data_type == 1]
    inputs = [value for value in model.graph.input if value.type.tensor_type.elem_type == 1]
    names = [value.name for value in (*constants, *inputs)]
    return memplan.gradients(model, "sum_of_all", names)


def _deep(layers: int) -> str:
    """A chain whose activations are most of what is taken."""
    body = "\n".join(
        f"  a{k} = MatMul (h{k}, w)\n  b{k} = Tanh (a{k})\n  h{k + 1} = Mul (b{k}, b{k})"
        for k in range(layers)
    )
    return f"""
<ir_version: 10, opset_import: ["" : 18]>
deep (float[64,16] h0) => (float[64,16] h{layers})
<float[16,16] w = {{0.1}}>
{{
{body}
}}
"""


def _parsed(text: str) -> onnx.ModelProto:
    """The model; one number for an initializer stands for all of its elements."""
    model = onnx.parser.parse_model(text)
    for tensor in model.graph.initializer:
        content = numpy_helper.to_array(tensor) if not tensor.float_data else tensor.float_data
        full = np.resize(np.asarray(content), tuple(tensor.dims))
        kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        tensor.CopyFrom(numpy_helper.from_array(full.astype(kind), tensor.name))
    return model


def from_folder(folder: Path) -> dict[str, bytes]:
    """The small ``.onnx`` files of a folder."""
    files = (path for path in sorted(folder.rglob("*.onnx")) if path.stat().st_size < _LARGEST)
    return {path.stem: path.read_bytes() for path in files}


def node_tests() -> dict[str, bytes]:
    """The node tests of the installed onnx package; it takes half a minute to make them."""
    return dict(_node_tests())


def _node_tests() -> Iterator[tuple[str, bytes]]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            if case.model is not None and case.model.ByteSize() < _LARGEST:
                yield case.name, case.model.SerializeToString()
