"""Small networks of five families with weights, the training steps that ``grad`` makes of them,
batches, and a plain loop around a step."""

import math
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from helpers.sessions import session
from memplan import GradOptions, grad

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
    """Three linear layers."""
    rows = 32
    shapes: dict[str, tuple[int, ...]] = {}
    body, last, width = "", "x", 12
    for name, op in (("a", "Relu"), ("b", "Tanh")):
        shapes |= {f"{name}.weight": (width, 24), f"{name}.bias": (24,)}
        body += f"{name}0 = MatMul({last}, {name}_weight) {name}1 = Add({name}0, {name}_bias) "
        body += f"{name} = {op}({name}1) "
        last, width = name, 24
    shapes |= {"z.weight": (24, CLASSES), "z.bias": (CLASSES,)}
    body += f"z0 = MatMul({last}, z_weight) logits = Add(z0, z_bias)"
    return _network(f"float[{rows}, 12] x", body, shapes, rows, seed)


def cnn(seed: int = 0) -> onnx.ModelProto:
    """Two convolutions with batch normalization."""
    rows, width = 4, 8
    shapes: dict[str, tuple[int, ...]] = {}
    body, last, channels = "", "x", 3
    for n in "ab":
        shapes[f"{n}.weight"] = (width, channels, 3, 3)
        shapes |= {f"{n}n.{part}": (width,) for part in ("scale", "bias", "mean", "var")}
        body += f"""
            {n}0 = Conv<pads = [1, 1, 1, 1]>({last}, {n}_weight)
            {n}1, {n}m, {n}v = BatchNormalization<training_mode = 1>
                ({n}0, {n}n_scale, {n}n_bias, {n}n_mean, {n}n_var)
            {n} = Relu({n}1)"""
        last, channels = n, width
    shapes |= {"head.weight": (width, CLASSES), "head.bias": (CLASSES,)}
    body += f"""
        pooled = GlobalAveragePool({last}) flat = Flatten(pooled)
        hh = MatMul(flat, head_weight) logits = Add(hh, head_bias)"""
    return _network(f"float[{rows}, 3, 10, 10] x", body, shapes, rows, seed)


def gpt(seed: int = 0) -> onnx.ModelProto:
    """Embeddings, and a block of attention and a perceptron behind normalizations."""
    width, length, rows = 16, 6, 8
    shapes: dict[str, tuple[int, ...]] = {"tokens.weight": (20, width)}
    shapes["places.weight"] = (length, width)
    for name in ("q", "k", "v", "o", "up", "down"):
        shapes[f"a{name}.weight"] = (width, width)
    for name in ("n1", "n2"):
        shapes |= {f"a{name}.scale": (width,), f"a{name}.bias": (width,)}
    shapes |= {"head.weight": (width, CLASSES), "head.bias": (CLASSES,)}
    body = """four = Constant<value = float {4}>() axes = Constant<value = int64[1] {1}>()
        e = Gather(tokens_weight, x) t = Add(e, places_weight)
        an1 = LayerNormalization(t, an1_scale, an1_bias)
        aq = MatMul(an1, aq_weight) ak = MatMul(an1, ak_weight)
        av = MatMul(an1, av_weight) akt = Transpose<perm = [0, 2, 1]>(ak)
        as0 = MatMul(aq, akt) as = Div(as0, four) ap = Softmax(as)
        ac = MatMul(ap, av) ao = MatMul(ac, ao_weight) ar = Add(t, ao)
        an2 = LayerNormalization(ar, an2_scale, an2_bias)
        au0 = MatMul(an2, aup_weight) au = Relu(au0)
        ad = MatMul(au, adown_weight) at = Add(ar, ad)
        m = ReduceMean<keepdims = 0>(at, axes)
        h = MatMul(m, head_weight) logits = Add(h, head_bias)"""
    return _network(f"int64[{rows}, {length}] x", body, shapes, rows, seed)


def lstm(seed: int = 0) -> onnx.ModelProto:
    """A recurrent layer over sequences, and a head on its last state."""
    steps, rows, width = 5, 6, 10
    shapes: dict[str, tuple[int, ...]] = {
        "a.weight": (1, 4 * width, 7),
        "a.recurrent": (1, 4 * width, width),
        "head.weight": (width, CLASSES),
        "head.bias": (CLASSES,),
    }
    body = f"""
        zero = Constant<value = int64[1] {{0}}>() one = Constant<value = int64[1] {{1}}>()
        ay, ah = LSTM<hidden_size = {width}>(x, a_weight, a_recurrent)
        a = Squeeze(ay, one)
        last = Squeeze(ah, zero)
        h = MatMul(last, head_weight) logits = Add(h, head_bias)"""
    return _network(f"float[{steps}, {rows}, 7] x", body, shapes, rows, seed)


def unet(seed: int = 0) -> onnx.ModelProto:
    """Down, up again, and a skip between."""
    rows = 3
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
    return _network(f"float[{rows}, 3, 12, 12] x", body, shapes, rows, seed)


FAMILIES: Mapping[str, Callable[..., onnx.ModelProto]] = {
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
    opened = session(model, "tuned")
    names = [output.name for output in opened.get_outputs()]
    values, losses = dict(state), []
    for batch in data:
        found = dict(zip(names, opened.run(names, {**values, **batch}), strict=True))
        losses.append(float(np.asarray(found[loss]).reshape(-1)[0]))
        values.update({given: found[output] for output, given in pairs.items()})
    return losses, values
