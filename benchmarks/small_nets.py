"""Small forward networks of five families with weights, and the training steps that ``grad`` makes
of them; and a plain loop around a step, which everything else is held against. No torch needed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from memplan import GradOptions, grad
from memplan.runtime.options import session_options

HEADER = '<ir_version: 10, opset_import: ["" : 20]>\n'
_LOSS = 'loss = SoftmaxCrossEntropyLoss<reduction = "mean">(logits, labels)'
CLASSES = 5


def _weights(seed: int, shapes: Mapping[str, tuple[int, ...]]) -> list[onnx.TensorProto]:
    """Matrices of the scale of their fan-in; scales are 1, shifts 0, variances 1."""
    found = []
    for name, shape in shapes.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        if name.endswith((".scale", ".var")):
            value = np.ones(shape)
        elif len(shape) < 2:
            value = np.zeros(shape)
        else:
            value = rng.standard_normal(shape) / math.sqrt(math.prod(shape) / max(shape[:2]))
        found.append(numpy_helper.from_array(value.astype(np.float32), name))
    return found


def _network(
    inputs: str, body: str, shapes: Mapping[str, tuple[int, ...]], rows: int, seed: int
) -> onnx.ModelProto:
    declared = ", ".join(
        f"float[{', '.join(map(str, shape))}] {_plain(name)}" for name, shape in shapes.items()
    )
    text = (
        f"{HEADER}net ({inputs}, int64[{rows}] labels, {declared}) => "
        f"(float loss, float[{rows}, {CLASSES}] logits) {{ {body} {_LOSS} }}"
    )
    model = onnx.parser.parse_model(text)
    names = {_plain(name): name for name in shapes}
    kept = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    model.graph.initializer.extend(_weights(seed, shapes))
    return model


def _plain(name: str) -> str:
    return name.replace(".", "_")


def mlp(seed: int = 0) -> onnx.ModelProto:
    """Three layers."""
    shapes = {"a.weight": (12, 24), "a.bias": (24,), "b.weight": (24, 24), "b.bias": (24,)}
    shapes |= {"c.weight": (24, CLASSES), "c.bias": (CLASSES,)}
    body = """
        a0 = MatMul(x, a_weight) a1 = Add(a0, a_bias) a = Relu(a1)
        b0 = MatMul(a, b_weight) b1 = Add(b0, b_bias) b = Tanh(b1)
        c0 = MatMul(b, c_weight) logits = Add(c0, c_bias)"""
    return _network("float[32, 12] x", body, shapes, 32, seed)


def cnn(seed: int = 0) -> onnx.ModelProto:
    """Two convolutions with batch normalization."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, channels in (("a", 3), ("b", 8)):
        shapes[f"{name}.weight"] = (8, channels, 3, 3)
        shapes |= {f"{name}n.{part}": (8,) for part in ("scale", "bias", "mean", "var")}
    shapes |= {"head.weight": (8, CLASSES), "head.bias": (CLASSES,)}
    body = "".join(
        f"""
        {n}0 = Conv<pads = [1, 1, 1, 1]>({given}, {n}_weight)
        {n}1, {n}m, {n}v = BatchNormalization<training_mode = 1>
            ({n}0, {n}n_scale, {n}n_bias, {n}n_mean, {n}n_var)
        {n} = Relu({n}1)"""
        for n, given in (("a", "x"), ("b", "a"))
    )
    body += """
        pooled = GlobalAveragePool(b) flat = Flatten(pooled)
        h = MatMul(flat, head_weight) logits = Add(h, head_bias)"""
    return _network("float[4, 3, 10, 10] x", body, shapes, 4, seed)


def gpt(seed: int = 0) -> onnx.ModelProto:
    """Embeddings, one block of attention and one perceptron, each behind a normalization."""
    width, length, rows = 16, 6, 8
    shapes: dict[str, tuple[int, ...]] = {"tokens.weight": (20, width)}
    shapes["places.weight"] = (length, width)
    for name in ("q", "k", "v", "o", "up", "down"):
        shapes[f"{name}.weight"] = (width, width)
    for name in ("n1", "n2"):
        shapes |= {f"{name}.scale": (width,), f"{name}.bias": (width,)}
    shapes |= {"head.weight": (width, CLASSES), "head.bias": (CLASSES,)}
    body = """
        e0 = Gather(tokens_weight, x) e = Add(e0, places_weight)
        n1 = LayerNormalization(e, n1_scale, n1_bias)
        q = MatMul(n1, q_weight) k = MatMul(n1, k_weight) v = MatMul(n1, v_weight)
        kt = Transpose<perm = [0, 2, 1]>(k) s0 = MatMul(q, kt)
        four = Constant<value = float {4}>() s = Div(s0, four) p = Softmax(s)
        c = MatMul(p, v) o = MatMul(c, o_weight) r = Add(e, o)
        n2 = LayerNormalization(r, n2_scale, n2_bias)
        u0 = MatMul(n2, up_weight) u = Relu(u0) d = MatMul(u, down_weight) t = Add(r, d)
        m = ReduceMean<keepdims = 0>(t, axes)
        h = MatMul(m, head_weight) logits = Add(h, head_bias)"""
    body = body.replace("m = Red", "axes = Constant<value = int64[1] {1}>() m = Red")
    return _network(f"int64[{rows}, {length}] x", body, shapes, rows, seed)


def lstm(seed: int = 0) -> onnx.ModelProto:
    """A recurrent layer over sequences, and a head on its last state."""
    steps, rows, width, hidden = 5, 6, 7, 10
    shapes: dict[str, tuple[int, ...]] = {
        "l.weight": (1, 4 * hidden, width),
        "l.recurrent": (1, 4 * hidden, hidden),
        "head.weight": (hidden, CLASSES),
        "head.bias": (CLASSES,),
    }
    body = f"""
        y, yh = LSTM<hidden_size = {hidden}>(x, l_weight, l_recurrent)
        zero = Constant<value = int64[1] {{0}}>() last = Squeeze(yh, zero)
        h = MatMul(last, head_weight) logits = Add(h, head_bias)"""
    return _network(f"float[{steps}, {rows}, {width}] x", body, shapes, rows, seed)


def unet(seed: int = 0) -> onnx.ModelProto:
    """Down, up again, and a skip between."""
    shapes: dict[str, tuple[int, ...]] = {
        "in.weight": (6, 3, 3, 3),
        "mid.weight": (12, 6, 3, 3),
        "up.weight": (12, 6, 2, 2),
        "out.weight": (6, 12, 3, 3),
        "head.weight": (6, CLASSES),
        "head.bias": (CLASSES,),
    }
    body = """
        i0 = Conv<pads = [1, 1, 1, 1]>(x, in_weight) i = Relu(i0)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(i)
        m0 = Conv<pads = [1, 1, 1, 1]>(p, mid_weight) m = Relu(m0)
        u = ConvTranspose<strides = [2, 2]>(m, up_weight)
        j = Concat<axis = 1>(i, u)
        o0 = Conv<pads = [1, 1, 1, 1]>(j, out_weight) o = Relu(o0)
        pooled = GlobalAveragePool(o) flat = Flatten(pooled)
        h = MatMul(flat, head_weight) logits = Add(h, head_bias)"""
    return _network("float[3, 3, 12, 12] x", body, shapes, 3, seed)


FAMILIES: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "mlp": mlp,
    "cnn": cnn,
    "gpt": gpt,
    "lstm": lstm,
    "unet": unet,
}


def training_step(family: str, optimizer: str = "adamw") -> onnx.ModelProto:
    """The training step of a family's network."""
    return grad(FAMILIES[family](), GradOptions(loss="loss", optimizer=optimizer)).model


def batches(model: onnx.ModelProto, count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Batches for the inputs ``x`` and ``labels`` of a network."""
    rng = np.random.default_rng(seed)
    shapes = {
        value.name: ([d.dim_value for d in value.type.tensor_type.shape.dim], value)
        for value in model.graph.input
        if value.name in ("x", "labels")
    }
    found = []
    for _ in range(count):
        batch: dict[str, np.ndarray] = {}
        for name, (shape, value) in shapes.items():
            if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
                most = CLASSES if name == "labels" else 20
                batch[name] = rng.integers(0, most, shape)
            else:
                batch[name] = rng.standard_normal(shape).astype(np.float32)
        found.append(batch)
    return found


def plain_loop(
    model: onnx.ModelProto,
    state: Mapping[str, np.ndarray],
    data: list[dict[str, np.ndarray]],
    loss: str,
    pairs: Mapping[str, str],
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and the last state of a loop that feeds everything and fetches everything, as anyone
    would write it: one thread, a tuned session."""
    options = session_options("tuned")
    options.intra_op_num_threads = 1
    session: Any = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    values, losses = dict(state), []
    for batch in data:
        found = dict(zip(names, session.run(names, {**values, **batch}), strict=True))
        losses.append(float(np.asarray(found[loss]).reshape(-1)[0]))
        values.update({given: found[output] for output, given in pairs.items()})
    return losses, values
