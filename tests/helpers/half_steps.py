"""Training steps in float16 and bfloat16: all in half, and as PyTorch's autocast leaves them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

import memplan
from helpers.graphs import parse as parsed

LAYERS = "abcdefij"
HALVES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def parse(text: str) -> onnx.ModelProto:
    """In the first opset whose convolutions take bfloat16."""
    return parsed('<ir_version: 10, opset_import: ["" : 22]> ' + text)


def _weights(dtype: str, names: str) -> str:
    return ", ".join(f"{dtype}[32, 32] w{name}, {dtype}[32] b{name}" for name in names)


def _parameters(names: str) -> list[str]:
    return [f"{kind}{name}" for name in names for kind in "wb"]


def _chain(weight: str) -> list[str]:
    """Layers of a product, a bias and an activation; ``weight`` makes a layer's half weight."""
    lines, last = [], "x"
    for index, name in enumerate(LAYERS):
        activation = ("Tanh", "Relu", "Gelu", "Sigmoid")[index % 4]
        lines.append(weight.format(name))
        lines.append(f"{name}0 = MatMul({last}, h{name})  {name}1 = Add({name}0, g{name})")
        lines.append(f"{name} = {activation}({name}1)")
        last = name
    return lines


def pure(dtype: str) -> onnx.ModelProto:
    """Weights, products, loss and gradients in one type."""
    return named(memplan.gradients(parse(_pure(dtype)), "loss", _parameters(LAYERS)))


def renewed(dtype: str) -> onnx.ModelProto:
    """The same with weights that are renewed where all gradients are finite."""
    model = memplan.gradients(parse(_pure(dtype)), "scaled", _parameters(LAYERS))
    return named(_updated(model, _parameters(LAYERS)))


def _pure(dtype: str) -> str:
    body = _chain("h{0} = Identity(w{0})  g{0} = Identity(b{0})")
    body += [f"off = Sub({LAYERS[-1]}, y)  q = Mul(off, off)  loss = ReduceMean <keepdims = 0> (q)"]
    body += ["scaled = Mul(loss, scale)"]
    return f"""pure ({dtype}[256, 32] x, {dtype}[256, 32] y, {dtype} scale, {dtype} lr,
        {_weights(dtype, LAYERS)}) => ({dtype} loss, {dtype} scaled) {{ {"  ".join(body)} }}"""


def convolutional(dtype: str) -> onnx.ModelProto:
    """Convolutions, batch statistics by hand, pooling and a softmax loss, all in one type."""
    body = """
      c1 = Conv <pads = [1, 1, 1, 1]> (x, k1, e1)  r1 = Relu(c1)
      p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
      c2 = Conv <pads = [1, 1, 1, 1]> (p1, k2)  r2 = LeakyRelu(c2)
      p2 = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
      f = Flatten(p2)  z = Gemm(f, w, b)
      s = LogSoftmax <axis = -1> (z)  m = Mul(s, y)
      t = ReduceSum <keepdims = 0> (m)  loss = Neg(t)"""
    text = f"""conv ({dtype}[4, 3, 16, 16] x, {dtype}[4, 10] y, {dtype}[8, 3, 3, 3] k1,
        {dtype}[8] e1, {dtype}[8, 8, 3, 3] k2, {dtype}[128, 10] w, {dtype}[10] b)
      => ({dtype} loss) {{ {body} }}"""
    return named(memplan.gradients(parse(text), "loss", ["k1", "e1", "k2", "w", "b"]))


def attention(dtype: str) -> onnx.ModelProto:
    """A block of attention with its norm in one type."""
    number = HALVES.get(dtype, TensorProto.DOUBLE)
    body = f"""
      n = LayerNormalization <axis = -1> (x, g, h)
      q0 = MatMul(n, wq)  q1 = Reshape(q0, heads)  q = Transpose <perm = [0, 2, 1, 3]> (q1)
      k0 = MatMul(n, wk)  k1 = Reshape(k0, heads)  k = Transpose <perm = [0, 2, 3, 1]> (k1)
      v0 = MatMul(n, wv)  v1 = Reshape(v0, heads)  v = Transpose <perm = [0, 2, 1, 3]> (v1)
      c = Constant <value = float {{0.35}}> ()  scale = Cast <to = {number}> (c)
      s0 = MatMul(q, k)  s1 = Mul(s0, scale)  s = Softmax <axis = -1> (s1)
      o0 = MatMul(s, v)  o1 = Transpose <perm = [0, 2, 1, 3]> (o0)  o2 = Reshape(o1, flat)
      o3 = MatMul(o2, wo)  o = Add(o3, x)
      d = Sub(o, y)  e = Mul(d, d)  loss = ReduceMean <keepdims = 0> (e)"""
    matrices = ", ".join(f"{dtype}[32, 32] w{name}" for name in "qkvo")
    text = f"""attention ({dtype}[2, 16, 32] x, {dtype}[2, 16, 32] y, {matrices},
        {dtype}[32] g, {dtype}[32] h) => ({dtype} loss)
      <int64[4] heads = {{2, 16, 4, 8}}, int64[3] flat = {{2, 16, 32}}> {{ {body} }}"""
    return named(memplan.gradients(parse(text), "loss", ["wq", "wk", "wv", "wo", "g", "h"]))


def autocast(dtype: str) -> onnx.ModelProto:
    """float32 weights that are cast for every product; the loss in float32 and scaled; gradients
    unscaled, and new values that are taken only where all gradients are finite."""
    number = HALVES[dtype]
    cast = f"h{{0}} = Cast <to = {number}> (w{{0}})  g{{0}} = Cast <to = {number}> (b{{0}})"
    body = [f"x = Cast <to = {number}> (batch)", *_chain(cast)]
    body += [
        f"last = Cast <to = 1> ({LAYERS[-1]})  off = Sub(last, y)  q = Mul(off, off)",
        "loss = ReduceMean <keepdims = 0> (q)  scaled = Mul(loss, scale)",
    ]
    text = f"""autocast (float[256, 32] batch, float[256, 32] y, float scale, float lr,
        {_weights("float", LAYERS)}) => (float loss, float scaled) {{ {"  ".join(body)} }}"""
    model = memplan.gradients(parse(text), "scaled", _parameters(LAYERS))
    return named(_updated(model, _parameters(LAYERS)))


def _updated(model: onnx.ModelProto, parameters: list[str]) -> onnx.ModelProto:
    """Append the update of a gradient scaler: unscale, look for what is not finite, select."""
    kept = [v for v in model.graph.output if not v.name.endswith("_grad") and v.name != "scaled"]
    lines, checks = ["half = Constant <value = float {0.5}> ()"], []
    kind = next(v for v in model.graph.input if v.name == "scale").type.tensor_type.elem_type
    same = kind == TensorProto.FLOAT
    lines.append("backoff = Identity(half)" if same else f"backoff = Cast <to = {kind}> (half)")
    for name in parameters:
        lines.append(f"u_{name} = Div({name}_grad, scale)  z_{name} = Sub(u_{name}, u_{name})")
        lines.append(f"n_{name} = ReduceSum <keepdims = 0> (z_{name})")
        checks.append(f"n_{name}")
    lines.append(f"doubt = Sum({', '.join(checks)})  bad = IsNaN(doubt)  finite = Not(bad)")
    for name in parameters:
        lines.append(f"s_{name} = Mul(u_{name}, lr)  c_{name} = Sub({name}, s_{name})")
        lines.append(f"{name}_new = Where(finite, c_{name}, {name})")
    lines.append("lower = Mul(scale, backoff)  scale_new = Where(finite, scale, lower)")
    tail = parse(f"tail () => () {{ {'  '.join(lines)} }}")
    model.graph.node.extend(tail.graph.node)
    inputs = {value.name: value for value in model.graph.input}
    del model.graph.output[:]
    model.graph.output.extend(kept)
    for name in (*parameters, "scale"):
        value = model.graph.output.add()
        value.CopyFrom(inputs[name])
        value.name = f"{name}_new"
    return model


def named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Nodes without a name get that of their first output."""
    for node in model.graph.node:
        node.name = node.name or node.output[0]
    return model


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """A bfloat16 model in float32 whose every result is rounded to bfloat16: nothing here computes
    in that type."""
    narrow, wide = TensorProto.BFLOAT16, TensorProto.FLOAT
    known = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = (*known.value_info, *known.output)
    found = {value.name for value in values if value.type.tensor_type.elem_type == narrow}
    result = onnx.ModelProto.FromString(model.SerializeToString())
    graph = result.graph
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == narrow:
            value.type.tensor_type.elem_type = wide
    for tensor in graph.initializer:
        if tensor.data_type == narrow:
            array = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    del graph.value_info[:]
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == narrow:
                attribute.i = wide
        made = [name for name in node.output if name in found]
        node.output[:] = [f"{name}__wide" if name in found else name for name in node.output]
        graph.node.append(node)
        for name in made:
            cast = helper.make_node("Cast", [f"{name}__wide"], [f"{name}__narrow"], to=narrow)
            back = helper.make_node("Cast", [f"{name}__narrow"], [name], to=wide)
            graph.node.extend([cast, back])
    return result


def drawn(model: onnx.ModelProto, dtype: str) -> dict[str, npt.NDArray[Any]]:
    """Inputs of a step, as a narrow type holds them, in float64: numbers around 0, and scales."""
    generator = np.random.default_rng(0)
    scales = {"scale": 4.0, "lr": 0.25}
    feeds: dict[str, npt.NDArray[Any]] = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        drawn = generator.standard_normal(shape) * (0.4 if len(shape) > 1 else 0.2)
        array = np.asarray(scales.get(value.name, drawn), dtype=np.float32)
        kind = helper.tensor_dtype_to_np_dtype(HALVES[dtype])
        feeds[value.name] = np.asarray(array.astype(kind), dtype=np.float64)
    return feeds


STEPS: dict[str, Callable[[str], onnx.ModelProto]] = {
    "pure": pure,
    "convolutional": convolutional,
    "attention": attention,
    "renewed": renewed,
}
"""What makes a step of one type, which it is given."""
ALL = STEPS | {"autocast": autocast}
"""And of a narrow type with float32."""
