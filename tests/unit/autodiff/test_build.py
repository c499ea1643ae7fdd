"""The registry, what rules may ask for, and the order and size of what is built."""

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import helper

import memplan
from helpers.gradients import check, draw, model_of, reference, runtime
from helpers.graphs import open_text, parse
from memplan.autodiff.emit import gradient_registry
from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, expansion, gradient, registered
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError
from memplan.ir.graph import Phase
from memplan.proto.metadata import node_metadata

# -- dropout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "keeps_mask"),
    [
        ("x, ratio, yes", True),
        ("x, ratio_in, yes", True),
        ("x, ratio, training", True),
        ("x, , yes", True),
        ("x, ratio, no", False),
        ("x, ratio", False),
        ("x", False),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_dropout(inputs: str, keeps_mask: bool, training: bool) -> None:
    """The mask is kept, and only where there is one."""
    text = f"""g (float[16,16] x, float ratio_in, bool training) => (float[16,16] y, float z)
        <float ratio = {{0.25}}, bool yes = {{1}}, bool no = {{0}}>
        {{ y = Dropout({inputs}) z = ReduceSum<keepdims = 0>(y) }}"""
    model = memplan.gradients(parse(text), "z", "x")
    dropout = next(node for node in model.graph.node if node.op_type == "Dropout")
    assert (len(dropout.output) == 2) == keeps_mask
    x = draw((16, 16)).astype(np.float32)
    feeds = {"x": x, "ratio_in": np.asarray(0.4, np.float32), "training": np.asarray(training)}
    known = {value.name for value in model.graph.input}
    found = runtime(model, {name: array for name, array in feeds.items() if name in known})
    np.testing.assert_allclose(found["x_grad"], found["y"] / x, rtol=1e-5)
    if "yes" in inputs:
        assert (found["x_grad"] == 0).any()


# -- the registry ----------------------------------------------------------------------------------


@pytest.fixture
def own_rules() -> Iterator[None]:
    """Rules that a test registers are gone afterwards."""
    registered()
    before = dict(gradient_registry._ENTRIES)
    yield
    gradient_registry._ENTRIES.clear()
    gradient_registry._ENTRIES.update(before)


ROUND = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
    g (float[3,4] x) => (float z)
    { a = own.Twice(x) [sum] z = ReduceSum<keepdims = 0>(a) }"""


def with_type(text: str) -> onnx.ModelProto:
    model = parse(text)
    value = helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [3, 4])
    model.graph.value_info.append(value)
    return model


@pytest.mark.usefixtures("own_rules")
def test_an_operator_has_one_rule() -> None:
    @gradient("Twice", domain="own", elementwise=True)
    def rule(ctx: Context) -> Gradients:
        return (ctx.dy * 2,)

    with pytest.raises(ValueError, match="two gradients"):
        gradient("Twice", domain="own")(rule)
    model = memplan.gradients(with_type(ROUND), "z", "x")
    (output,) = (value for value in model.graph.output if value.name == "x_grad")
    assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == [3, 4]


@pytest.mark.usefixtures("own_rules")
def test_an_expansion() -> None:
    """The forward node is replaced, under its own name; the name of its output stays."""

    @expansion("Twice", domain="own")
    def twice(ctx: Context) -> list[Value | None]:
        return [ctx.tensors[0] * 2]

    model = memplan.gradients(with_type(ROUND), "z", "x")
    made = next(node for node in model.graph.node if "a" in node.output)
    assert (made.op_type, made.name) == ("Mul", "Twice_0/Mul")
    found = reference(model, {"x": draw((3, 4)).astype(np.float32)})
    np.testing.assert_array_equal(found["x_grad"], np.full((3, 4), 2, np.float32))


@pytest.mark.usefixtures("own_rules")
def test_a_rule_with_a_wrong_shape() -> None:
    """Told in one line with the node's name, whoever is at fault: the rule or the file."""

    @gradient("Twice", domain="own")
    def twice(ctx: Context) -> Gradients:
        return (ctx.sum(ctx.dy, [0]),)

    with pytest.raises(ModelError, match=r"Twice_0.*do not fit.*has type") as caught:
        memplan.gradients(with_type(ROUND), "z", "x")
    assert "a rule of memplan" in caught.value.hint


@pytest.mark.usefixtures("own_rules")
def test_a_rule_with_a_wrong_node() -> None:
    @gradient("Twice", domain="own")
    def twice(ctx: Context) -> Gradients:
        return (ctx.op("MatMul", ctx.dy, ctx.dy),)

    with pytest.raises(ModelError, match="wrong node MatMul"):
        memplan.gradients(with_type(ROUND), "z", "x")


# -- what is built ---------------------------------------------------------------------------------

TWO_LAYERS = """
    g (float[8,4] x, float[4,4] w1, float[4,4] w2, float[4] b) => (float z)
    {
        [t1] w1t = Transpose<perm = [1, 0]>(w1)
        [t2] w2t = Transpose<perm = [1, 0]>(w2)
        [fc1] a = MatMul(x, w1t)
        [act] h = Tanh(a)
        [fc2] p = Gemm(h, w2t, b)
        [sum] z = ReduceSum<keepdims = 0>(p)
    }"""


def test_weight_gradients_come_first() -> None:
    """A weight's gradient is built before that of the data, though its Transpose stands in front of
    everything; and products read the weight as it is."""
    model = memplan.gradients(parse(TWO_LAYERS), "z", ["w1", "w2", "b"])
    backward = [n for n in model.graph.node if node_metadata(n).get("memplan.phase") == "backward"]
    made = [name for node in backward for name in node.output]
    assert made.index("w2_grad") < made.index("act/grad/Mul")
    read = {name for node in backward for name in node.input}
    assert "w2" in read
    assert read.isdisjoint({"w1t", "w2t", "a", "p"})
    assert "Transpose" not in {node.op_type for node in backward}
    values = {
        n: draw(s, k)
        for k, (n, s) in enumerate({"x": (8, 4), "w1": (4, 4), "w2": (4, 4), "b": (4,)}.items())
    }
    nodes = list(parse(TWO_LAYERS).graph.node)
    check(model_of(nodes, values, {"z": onnx.TensorProto.DOUBLE}))


def test_nodes_tell_what_they_are() -> None:
    model = memplan.gradients(parse(TWO_LAYERS), "z", ["w1", "w2", "b"])
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    for node in model.graph.node[6:]:
        told = node_metadata(node)
        assert told["memplan.phase"] == "backward"
        assert node.name.startswith(f"{told['memplan.forward']}/grad/")
    declared = {value.name for value in (*model.graph.value_info, *model.graph.output)}
    assert {name for node in model.graph.node for name in node.output} <= declared


def test_modules_carry_over() -> None:
    forward = parse(TWO_LAYERS)
    forward.graph.node[3].metadata_props.add(key="memplan.module", value="head.act")
    opened = open_text(memplan.gradients(forward, "z", "w1"))
    found = {opened.modules[n.id] for n in opened.graph.nodes if n.name.startswith("act/grad")}
    assert found == {"head.act"}
    assert opened.phases.of[opened.graph.nodes[-1].id] is Phase.BACKWARD


def test_a_mean_stays_a_number() -> None:
    """The gradient of a mean of squares is one product: nothing is expanded."""
    text = """g (float[8,4] x, float[8,4] t) => (float z)
        { d = Sub(x, t) s = Mul(d, d) z = ReduceMean<keepdims = 0>(s) }"""
    model = memplan.gradients(parse(text), "z", "x")
    assert [node.op_type for node in model.graph.node[3:]] == ["Mul"]


def test_an_embedding_adds_into_the_head() -> None:
    """Tied weights: the scatter goes into the product's gradient, without zeros and a sum."""
    text = """g (int64[5] tokens, float[7,4] w) => (float z)
        { h = Gather(w, tokens) y = Tanh(h) l = Gemm<transB = 1>(y, w) s = Mul(l, l)
          z = ReduceSum<keepdims = 0>(s) }"""
    model = memplan.gradients(parse(text), "z", "w")
    makers = {name: node for node in model.graph.node for name in node.output}
    scatter = makers[model.graph.node[-1].input[0]]
    assert scatter.op_type == "ScatterElements"
    assert makers[makers[scatter.input[0]].input[0]].op_type == "Gemm"
    added = [node for node in model.graph.node[5:] if node.op_type == "Add"]
    types = {value.name: value.type.tensor_type for value in model.graph.value_info}
    assert [types[node.output[0]].elem_type for node in added] == [onnx.TensorProto.INT32]


@pytest.mark.parametrize(
    "gather",
    ["Gather(w, i)", "Gather<axis = 1>(w, i)", "GatherND(w, p)", "GatherND<batch_dims = 1>(w, p)"],
)
def test_what_is_gathered_twice_is_added_by_an_operator_that_loses_nothing(gather: str) -> None:
    """ScatterND that adds does, on the CPU, where several threads run."""
    text = f"""g (int64[5] i, int64[7,2] p, float[7,4,3] w) => (float z)
        {{ h = {gather} s = Mul(h, h) z = ReduceSum<keepdims = 0>(s) }}"""
    model = memplan.gradients(parse(text), "z", "w")
    ops = [node.op_type for node in model.graph.node]
    assert "ScatterElements" in ops
    assert "ScatterND" not in ops


def test_labels_are_scattered_into_the_softmax() -> None:
    """No zeros of the logits' size are built for cross-entropy."""
    text = """g (float[5,9] x, int64[5] labels) => (float z)
        { z = SoftmaxCrossEntropyLoss(x, labels) }"""
    model = memplan.gradients(parse(text), "z", "x")
    infos = (*model.graph.value_info, *model.graph.output)
    large = {v.name for v in infos if [d.dim_value for d in v.type.tensor_type.shape.dim] == [5, 9]}
    ops = [node.op_type for node in model.graph.node if large & set(node.output)]
    assert ops == ["LogSoftmax", "Exp", "Mul", "ScatterElements"]


MASKED = """g (float[3,90,90] x, float[3,90,90] t) => (float z)
    <bool yes = {1}, int64[2] size = {90, 90}, int64 k = {%d}, float low = {%s}>
    { all = Expand(yes, size) mask = Trilu<upper = %d>(all, k) s = Where(mask, x, low)
      y = Softmax<axis = -1>(s) d = Sub(y, t) q = Mul(d, d) z = ReduceSum<keepdims = 0>(q) }"""


@pytest.mark.parametrize(
    ("offset", "low", "upper", "left_out"),
    [(0, "-inf", 0, True), (-1, "-inf", 0, False), (0, "-inf", 1, False), (0, "-9.0", 0, False)],
)
def test_a_causal_mask_needs_no_second_choice(
    offset: int, low: str, upper: int, left_out: bool
) -> None:
    """A weight of 0 has a gradient of 0: only where every row has a weight, and the rest is -∞."""
    text = MASKED % (offset, low.replace("-inf", "-1.0"), upper)
    source = parse(text)
    for tensor in source.graph.initializer:
        if tensor.name == "low" and low == "-inf":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(-np.inf, np.float32), "low"))
    model = memplan.gradients(source, "z", "x")
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("Where") == (1 if left_out else 2)
    if left_out:
        feeds = {name: draw((3, 90, 90)).astype(np.float32) for name in "xt"}
        grad = reference(model, feeds)["x_grad"]
        assert np.all(grad[:, ~np.tri(90, dtype=bool)] == 0)
        assert np.any(grad[:, np.tri(90, dtype=bool)] != 0)
