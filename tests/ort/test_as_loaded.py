"""What a session holds after loading is what is predicted: fusions, layouts, Casts of float16."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from helpers.graphs import parse
from helpers.models import DIMS, SAMPLES, each, runnable_models
from memplan.api.analysis import Analysis, analyze_session
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.errors import UsageError
from memplan.runtime.inputs import synthesize
from memplan.runtime.measure import measure, saved_inputs
from memplan.runtime.messages import Measurement, RunRequest
from memplan.simulate.opened import open_model
from memplan.simulate.session import session_kind
from memplan.units import parse_size

LAYERS = 6
ATTENTION = """g (float16[2,32,64] q, float16[64,64] wq, float16[64,64] wv, float16[2,32,64] y)
  => (float16 loss, float16[2,64,64] gv) {
    Q = MatMul(q, wq)  V = MatMul(q, wv)  T = Transpose <perm = [0, 2, 1]> (V)
    S = MatMul(Q, T)  P = Softmax <axis = -1> (S)  O = MatMul(P, V)  D = Sub(O, y)
    SQ = Mul(D, D)  loss = ReduceMean <keepdims = 0> (SQ)
    PT = Transpose <perm = [0, 2, 1]> (P)  DV = MatMul(PT, D)
    QT = Transpose <perm = [0, 2, 1]> (q)  gv = MatMul(QT, DV)
}"""
PAIR = """g (float[64] x) => (float[64] y) {
    a = Exp(x)  wide = Cast <to = 11> (a)  back = Cast <to = 1> (wide)  y = Sin(back)
}"""


def deep(dtype: str) -> onnx.ModelProto:
    """A training step by hand: layers of Tanh and Sigmoid, and their gradients."""
    weights = "".join(f", {dtype}[64,64] w{i}" for i in range(LAYERS))
    grads = "".join(f", {dtype}[64,64] g{i}" for i in range(LAYERS))
    lines, last = [], "x"
    for i in range(LAYERS):
        lines.append(f"a{i} = MatMul({last}, w{i}) h{i} = Tanh(a{i}) s{i} = Sigmoid(h{i})")
        last = f"s{i}"
    lines.append(f"sq = Mul({last}, {last}) loss = ReduceMean <keepdims = 0> (sq)")
    lines.append(f"d{LAYERS - 1} = Neg({last})")
    for i in reversed(range(LAYERS)):
        before = f"s{i - 1}" if i else "x"
        lines.append(f"q{i} = Mul(s{i}, d{i}) e{i} = Mul(q{i}, h{i})")
        lines.append(f"t{i} = Transpose <perm = [1, 0]> ({before}) g{i} = MatMul(t{i}, e{i})")
        if i:
            lines.append(f"v{i} = Transpose <perm = [1, 0]> (w{i}) d{i - 1} = MatMul(e{i}, v{i})")
    return named(f"g ({dtype}[32,64] x{weights}) => ({dtype} loss{grads}) {{{' '.join(lines)}}}")


def named(text: str) -> onnx.ModelProto:
    model = parse(text)
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def in_half(path: Path) -> onnx.ModelProto:
    """A float32 model with every float32 tensor in float16; sums at indices, which the CPU has no
    float16 kernel for, between Casts, as converters write them."""
    model, half = onnx.load(path), onnx.TensorProto.FLOAT16
    del model.graph.value_info[:]
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).clip(-6e4, 6e4).astype("float16")
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = half
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = half
            if attribute.t.data_type == onnx.TensorProto.FLOAT:
                values = numpy_helper.to_array(attribute.t).clip(-6e4, 6e4).astype("float16")
                attribute.t.CopyFrom(numpy_helper.from_array(values))
    nodes = [copy for node in model.graph.node for copy in _sum_in_float32(node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _sum_in_float32(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A node, with Casts around it if it adds at indices."""
    if node.op_type != "ScatterElements" or not any(a.s == b"add" for a in node.attribute):
        return [node]
    result, wide = node.output[0], f"{node.output[0]}/wide"
    casts = []
    for slot in (0, 2):
        given = node.input[slot]
        node.input[slot] = f"{given}/wide/{slot}"
        casts.append(helper.make_node("Cast", [given], [node.input[slot]], node.input[slot], to=1))
    node.output[0] = wide
    back = helper.make_node("Cast", [wide], [result], f"{result}/back", to=10)
    return [*casts, node, back]


def convolutions() -> onnx.ModelProto:
    """Convolutions with constant weights: 20 and 12 channels are no whole blocks."""
    model = named("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 20, 16, 16] x) => (float[2, 32, 1, 1] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            b = Relu (a)
            c = Conv <pads = [1, 1, 1, 1]> (b, w2)
            d = Add (b, c)
            e = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
            f = Conv (e, w3)
            h = Concat <axis = 1> (f, e)
            y = GlobalAveragePool (h)
        }""")
    shapes = {"w1": (12, 20, 3, 3), "w2": (12, 12, 3, 3), "w3": (20, 12, 1, 1)}
    for name, shape in shapes.items():
        tensor = numpy_helper.from_array(np.full(shape, 0.1, np.float32), name)
        model.graph.initializer.append(tensor)
    return model


def both(path: Path, session: str) -> tuple[Analysis, Measurement]:
    """The analysis of a file, and what it takes."""
    dims = DIMS.get(path.stem, {})
    model = open_model(path, dims)
    found = analyze_session(model, session_kind(session))
    with saved_inputs(synthesize(model.graph)) as (folder, archive):
        request = RunRequest(session, "cpu", dims, runs=0, threads=1)
        return found, measure(path, request, archive, folder / "outputs.npz")


def check(path: Path, session: str) -> Analysis:
    """First run at every step, and later runs, byte for byte."""
    found, ran = both(path, session)
    assert found.as_loaded
    assert ran.dynamic_bytes == found.timeline.dynamic_peak_bytes
    later = found.later.dynamic_peak_bytes if found.later else ran.dynamic_bytes
    assert ran.second_run_dynamic_bytes == later
    if not found.graph.bodies:
        steps = [node.nbytes - ran.base_bytes for node in ran.nodes]
        assert steps == found.timeline.dynamic.tolist()
    return found


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


PLAIN = runnable_models("cnn_bn")


@pytest.mark.parametrize("path", each(PLAIN))
def test_real_models_in_a_plain_session(path: Path) -> None:
    assert check(path, "default").inexact == ()


@pytest.mark.parametrize("session", ["tuned", "default"])
def test_float16_by_hand(session: str, tmp_path: Path) -> None:
    for model in (deep("float16"), named(ATTENTION)):
        found = check(saved(model, tmp_path), session)
        assert found.inexact == ()
        assert any(node.op == "Cast" for node in found.graph.nodes)


@pytest.mark.parametrize("session", ["default", pytest.param("tuned", marks=pytest.mark.nightly)])
def test_float16_of_a_converted_model(session: str, tmp_path: Path) -> None:
    check(saved(in_half(SAMPLES / "cnn_bn.onnx"), tmp_path), session)


def test_bfloat16_has_no_kernels_on_the_cpu(tmp_path: Path) -> None:
    model = open_model(saved(deep("bfloat16"), tmp_path))
    found = analyze_session(model, session_kind("tuned"))
    assert not found.as_loaded
    assert "Could not find an implementation" in found.inexact[-1]


def test_a_pair_of_casts_that_any_session_removes(tmp_path: Path) -> None:
    found = check(saved(named(PAIR), tmp_path), "tuned")
    assert [node.op for node in found.graph.nodes] == ["Exp", "Sin"]


def test_blocks_of_channels(tmp_path: Path) -> None:
    found = check(saved(convolutions(), tmp_path), "default")
    assert any(node.domain == "com.microsoft.nchwc" for node in found.graph.nodes)
    portable = analyze_session(
        open_model(tmp_path / "model.onnx"), session_kind("default"), portable=True
    )
    assert not any(node.domain == "com.microsoft.nchwc" for node in portable.graph.nodes)


@pytest.mark.parametrize("level", ["extended", pytest.param("none", marks=pytest.mark.nightly)])
def test_a_plan_in_float16_keeps_its_budget(level: str, tmp_path: Path) -> None:
    path, target = saved(deep("float16"), tmp_path), tmp_path / "planned.onnx"
    options = RewriteOptions(
        parse_size("60%"), strategy="search{iterations=6}", optimize=level, passes="none"
    )
    result = rewrite(path, options, target)
    found, ran = both(target, "tuned")
    assert ran.dynamic_bytes == result.timeline.dynamic_peak_bytes
    assert ran.dynamic_bytes == found.timeline.dynamic_peak_bytes
    assert result.timeline.peak_with_workspace_bytes <= result.budget_bytes


def test_plain_sessions_in_float16_are_refused(tmp_path: Path) -> None:
    options = RewriteOptions(parse_size("70%"), session="default")
    with pytest.raises(UsageError, match="float16"):
        rewrite(saved(deep("float16"), tmp_path), options, tmp_path / "planned.onnx")


def test_external_weights_are_loaded_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(convolutions(), path, save_as_external_data=True, size_threshold=0, location="w.bin")
    before = sorted(item.name for item in tmp_path.iterdir())
    check(path, "default")
    assert sorted(item.name for item in tmp_path.iterdir()) == before
