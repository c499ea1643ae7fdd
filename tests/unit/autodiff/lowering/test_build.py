"""Whole graphs of onnxruntime-training: what goes in, what comes out, and that it is right."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest

from helpers import ort_artifacts as made
from helpers.gradients import runtime
from helpers.lowering import Case, check_gradients, evaluate, node, onnx_node, outputs_of, some
from memplan.autodiff.lowering.boundary import YIELD
from memplan.autodiff.lowering.lowered_graph import LoweringRequest, lower_model
from memplan.autodiff.lowering.lowering_registry import registered
from memplan.autodiff.lowering.recurrent_lowering import RECURRENT
from memplan.errors import ModelError, UsageError
from memplan.ir.contract import find_contract
from memplan.ir.graph import Phase
from memplan.ir.roles import Role
from memplan.proto.metadata import FORWARD_KEY, PHASE_KEY, get_metadata, node_metadata

pytestmark = pytest.mark.ort
STEP = 1e-2


def differences(model: onnx.ModelProto, feeds: dict[str, Any], loss: str, name: str) -> Any:
    """Central differences of the loss on stock ONNX Runtime, by every element."""
    found = np.zeros(feeds[name].shape)
    for place in np.ndindex(found.shape):
        values = []
        for sign in (1, -1):
            moved = {**feeds, name: feeds[name].copy()}
            moved[name][place] += sign * STEP
            values.append(float(runtime(model, moved)[loss]))
        found[place] = (values[0] - values[1]) / (2 * STEP)
    return found


def names(values: Any) -> list[str]:
    return [value.name for value in values]


# -- artifacts ---------------------------------------------------------------------------------


def test_gradients_are_outputs() -> None:
    original = made.training_model()
    before = original.SerializeToString()
    found = lower_model(original, LoweringRequest())
    assert original.SerializeToString() == before
    graph = found.model.graph
    gradients = [f"{name}_grad" for name in made.TRAINED]
    assert names(graph.output) == [made.LOSS, "output", *gradients]
    assert names(graph.input) == ["x", "labels", *made.SIZES]
    assert [(item.domain, item.version) for item in found.model.opset_import] == [("", 20)]
    assert found.replaced == {"SoftmaxCrossEntropyLossGrad": 1, "ReluGrad": 1}
    onnx.checker.check_model(found.model, full_check=True)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.output}
    assert all(shapes[f"{n}_grad"] == list(made.SIZES[n]) for n in made.TRAINED)


def test_gradients_are_right() -> None:
    model, feeds = lower_model(made.training_model(), LoweringRequest()).model, made.feeds()
    values = runtime(model, feeds)
    for name in made.TRAINED:
        wanted = differences(model, feeds, made.LOSS, name)
        np.testing.assert_allclose(values[f"{name}_grad"], wanted, atol=2e-3)


def test_the_contract_is_in_the_file() -> None:
    found = lower_model(made.training_model(), LoweringRequest())
    told = get_metadata(found.model)
    assert told["roles"] == {name: str(role) for name, role in found.contract.roles.items()}
    assert told["gradients"] == {f"{name}_grad": name for name in made.TRAINED}
    assert told["new_values"] == {}
    roles = found.contract.roles
    assert [n for n, role in roles.items() if role is Role.BATCH] == ["x", "labels"]
    assert found.contract.named(Role.PARAMETER) == tuple(made.SIZES)  # the frozen one, too
    assert found.contract.loss == made.LOSS
    assert roles["output"] is Role.OUTPUT


def test_what_reads_the_contract_believes_it() -> None:
    from helpers.graphs import open_text

    model = lower_model(made.training_model(), LoweringRequest()).model
    opened = open_text(model, dims={"N": 5})
    contract = find_contract(opened.graph, opened.phases, get_metadata(model))
    assert contract.stated
    assert contract.loss == made.LOSS
    assert set(contract.gradients.values()) == set(made.TRAINED)


def test_phases_are_told() -> None:
    graph = lower_model(made.training_model(), LoweringRequest()).model.graph
    told = {item.name: node_metadata(item) for item in graph.node}
    assert PHASE_KEY not in told["/fc1/Gemm"]
    assert told["/fc2/Gemm_Grad/Gemm_1"] == {PHASE_KEY: Phase.BACKWARD, FORWARD_KEY: "/fc2/Gemm"}
    new = [data for name, data in told.items() if name.startswith("/Relu_Grad/ReluGrad_0/")]
    assert new
    assert all(data == {PHASE_KEY: Phase.BACKWARD, FORWARD_KEY: "/Relu"} for data in new)


def test_a_flag_that_is_read_stays() -> None:
    model = made.training_model()
    flag = "fc1.bias_grad.accumulation.out"
    model.graph.node.append(node("Group", flag, "done", name="group"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("done", 9, []))
    found = lower_model(model, LoweringRequest())
    assert names(found.model.graph.output)[-5:] == [
        "done",
        *(f"{name}_grad" for name in made.TRAINED),
    ]
    assert runtime(found.model, made.feeds())["done"].item() is True


def test_a_gradient_of_another_shape() -> None:
    model = made.training_model()
    for item in model.graph.input:
        if item.name == "fc1.bias":
            item.type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(ModelError, match=r"another type or shape than 'fc1\.bias'"):
        lower_model(model, LoweringRequest())


def test_a_gradient_of_another_name_gets_its_own() -> None:
    model = made.training_model()
    for item in model.graph.node:
        item.input[:] = ["g7" if name == "fc1.bias_grad" else name for name in item.input]
        item.output[:] = ["g7" if name == "fc1.bias_grad" else name for name in item.output]
    found = lower_model(model, LoweringRequest())
    assert "fc1.bias_grad" in names(found.model.graph.output)
    wanted = runtime(lower_model(made.training_model(), LoweringRequest()).model, made.feeds())
    np.testing.assert_array_equal(
        runtime(found.model, made.feeds())["fc1.bias_grad"], wanted["fc1.bias_grad"]
    )


def test_stored_parameters_are_defaults() -> None:
    model, feeds = made.training_model(), made.feeds()
    kept = [v for v in model.graph.input if v.name not in made.SIZES]
    copies = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in kept]
    del model.graph.input[:]
    model.graph.input.extend(copies)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(feeds[name], name) for name in made.SIZES
    )
    found = lower_model(model, LoweringRequest())
    given = names(found.model.graph.input)
    assert given == ["x", "labels", *made.TRAINED]  # the frozen one stays a constant
    batch = {name: feeds[name] for name in ("x", "labels")}
    values = runtime(found.model, batch)
    wanted = runtime(lower_model(made.training_model(), LoweringRequest()).model, feeds)
    for name, value in wanted.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-6)
    moved = runtime(found.model, {**batch, "fc2.bias": feeds["fc2.bias"] + 1})
    assert (moved["output"] > values["output"]).all()


def test_running_statistics_are_outputs() -> None:
    """A layer that is called twice renews them twice."""
    x, second = some(4, 3), some(4, 3, seed=1)
    forward = [
        node("BatchNormInternal", "x s b m v", "y a1 a2 mean inv", name="one"),
        node("BatchNormInternal", "z s b m v", "w", name="two"),
        onnx_node("Add", "y w", "total"),
        onnx_node("ReduceMean", "total", "loss", keepdims=0),
    ]
    vectors = {name: some(3, seed=k) for k, name in enumerate("sbm", 2)} | {"v": np.ones(3)}
    case = Case(forward, {"x": x, "z": second, **vectors}, ["loss"])
    found = lower_model(case.model(), LoweringRequest())
    assert found.contract.new_values["m_new"] == "m"
    assert found.contract.roles["v"] is Role.RUNNING_STATISTIC
    values = evaluate(found.model, case.feeds)
    wanted = (vectors["m"] * 0.9 + x.mean(0) * 0.1) * 0.9 + second.mean(0) * 0.1
    np.testing.assert_allclose(values["m_new"], wanted, rtol=1e-6)


# -- ORTModule ---------------------------------------------------------------------------------


def test_a_single_number_is_the_loss() -> None:
    found = lower_model(made.module_graph(alone=True), LoweringRequest())
    assert found.seeded == "loss"
    assert not found.fed
    assert names(found.model.graph.output)[0] == "loss"
    wanted = runtime(lower_model(made.training_model(), LoweringRequest()).model, made.feeds())
    values = runtime(found.model, made.feeds())
    np.testing.assert_allclose(values["loss"], wanted[made.LOSS], rtol=1e-6)
    for name in made.TRAINED:
        np.testing.assert_allclose(
            values[f"{name}_grad"], wanted[f"{name}_grad"], rtol=1e-5, atol=1e-6
        )


def test_gradients_of_several_outputs_are_fed() -> None:
    found = lower_model(made.module_graph(), LoweringRequest())
    fed = ("output_grad_external", "squares_grad")
    assert found.seeded is None
    assert found.fed == fed
    assert names(found.model.graph.output)[:3] == ["best", "output", "squares"]
    roles = found.contract.roles
    assert all(roles[name] is Role.GRADIENT for name in fed)
    feeds = {k: v for k, v in made.feeds().items() if k != "labels"}
    draw = np.random.default_rng(3).standard_normal((5, 3)).astype(np.float32)
    values = runtime(found.model, {**feeds, fed[0]: draw, fed[1]: np.asarray(0.5, np.float32)})

    def objective(moved: Any) -> float:
        zeros = {fed[0]: draw, fed[1]: np.asarray(0, np.float32)}
        out = runtime(found.model, {**feeds, "fc1.bias": moved, **zeros})
        return float((out["output"] * draw).sum() + 0.5 * out["squares"])

    for k in range(6):
        way = np.eye(6, dtype=np.float32)[k] * np.float32(STEP)
        start = feeds["fc1.bias"]
        wanted = (objective(start + way) - objective(start - way)) / (2 * STEP)
        assert values["fc1.bias_grad"][k] == pytest.approx(wanted, abs=2e-2)


def test_a_loss_among_several_outputs_is_named() -> None:
    found = lower_model(made.module_graph(), LoweringRequest(loss="squares"))
    assert (found.seeded, found.fed, found.contract.loss) == ("squares", (), "squares")
    feeds = {k: v for k, v in made.feeds().items() if k != "labels"}
    values = runtime(found.model, feeds)
    wanted = differences(found.model, feeds, "squares", "fc2.bias")
    np.testing.assert_allclose(values["fc2.bias_grad"], wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("loss", ["output", "best", "nothing", "fc1.bias_grad"])
def test_a_loss_that_is_none(loss: str) -> None:
    with pytest.raises(UsageError, match="no scalar output of the forward part"):
        lower_model(made.module_graph(), LoweringRequest(loss=loss))


# -- what cannot be lowered --------------------------------------------------------------------


def test_all_that_has_no_lowering_is_listed() -> None:
    model = made.training_model()
    for k, (op, domain) in enumerate(
        [("LSTMGradient", ""), ("NcclAllReduce", "com.microsoft")] * 2
    ):
        item = node(op, "x", f"odd{k}", domain, name=f"odd{k}")
        model.graph.node.append(item)
    model.graph.node.append(
        node("ATen", "x", "odd9", "org.pytorch.aten", name="aten", operator="grid_sampler")
    )
    with pytest.raises(ModelError) as caught:
        lower_model(model, LoweringRequest())
    for text in (
        "LSTMGradient (2x, first 'odd0')",
        "NcclAllReduce (2x, first 'odd1')",
        "org.pytorch.aten:aten::grid_sampler (1x, first 'aten')",
    ):
        assert text in caught.value.message


def test_foreign_nodes_in_a_body_are_listed() -> None:
    body = onnx.helper.make_graph(
        [node("ReluGrad", "x x", "inner", name="deep")],
        "body",
        [],
        [onnx.helper.make_tensor_value_info("inner", 11, [3])],
    )
    nodes = [onnx_node("If", "c", "y", then_branch=body, else_branch=body)]
    case = Case(nodes, {"x": some(3), "c": np.asarray(True)}, ["y"])
    with pytest.raises(ModelError, match=r"ReluGrad in a body \(2x, first 'deep'\)"):
        lower_model(case.model(), LoweringRequest())


SHAPES = [(), (3,), (2, 3), (2, 3, 4), (1, 2, 3, 4)]


@pytest.mark.parametrize("op", sorted(registered() | RECURRENT | {YIELD}))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nodes_that_do_not_fit_are_errors_of_the_model(op: str, shape: tuple[int, ...]) -> None:
    """Nobody has checked them before: any number of inputs of any shape."""
    for count in range(1, 8):
        inputs = " ".join(["x"] * count)
        aten = op.startswith("aten::")
        domain, attributes = (
            ("org.pytorch.aten", {"operator": op[6:]}) if aten else ("com.microsoft", {})
        )
        item = node("ATen" if aten else op, inputs, "p q", domain, **attributes)
        case = Case([item], {"x": some(*shape)}, ["p"])
        with suppress(ModelError):
            lower_model(case.model(), LoweringRequest())


@pytest.mark.parametrize("value", ["text", 7, [1, 2, 3], 0.5], ids=str)
@pytest.mark.parametrize(
    "name", ["axis", "kernel_shape", "strides", "reduction", "transA", "alpha"]
)
def test_attributes_that_do_not_fit_are_errors_of_the_model(name: str, value: Any) -> None:
    ops = ("ConvGrad", "SoftmaxGrad_13", "GatherGrad", "FusedMatMul", "LayerNormalizationGrad")
    for op in (*ops, "SoftmaxCrossEntropyLossGrad", "AveragePoolGrad", "QuickGelu"):
        nodes = [onnx_node("Shape", "x", "s"), node(op, "x x x x x", "x_grad", **{name: value})]
        case = Case(nodes, {"x": some(2, 3, 4)}, ["x_grad"])
        with suppress(ModelError):
            lower_model(case.model(), LoweringRequest())


def test_an_average_pool_of_which_nothing_tells_the_input() -> None:
    nodes = [node("AveragePoolGrad", "dy", "other", kernel_shape=[2, 2], strides=[2, 2])]
    with pytest.raises(ModelError, match="the shape of what it is the gradient of"):
        lower_model(Case(nodes, {"dy": some(1, 2, 3, 3)}, ["other"]).model(), LoweringRequest())


# -- opsets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [12, 13, 15, 17, 18, 21])
def test_any_opset(opset: int) -> None:
    """Operators are those of opset 20, or of the file's own."""
    axes = {"axes": [1]} if opset < 18 else {}
    nodes = [
        onnx_node("ReduceMean", "x" + ("" if axes else " one"), "m", keepdims=1, **axes),
        onnx_node("Softmax", "x", "p", axis=1),
        onnx_node("Sub", "p m", "y0"),
        onnx_node("Relu", "y0", "y"),
        node("ReluGrad", "y_grad y", "y0_grad"),
        onnx_node("Identity", "y0_grad", "out"),
    ]
    feeds = {"x": some(3, 4), "y_grad": some(3, 4, seed=1)}
    constants = {} if axes else {"one": np.asarray([1])}
    case = Case(nodes, feeds, ["out"], constants, opset=opset)
    found = lower_model(case.model(), LoweringRequest()).model
    assert found.opset_import[0].version == max(opset, 20)
    soft = np.exp(feeds["x"]) / np.exp(feeds["x"]).sum(1, keepdims=True)
    y = soft - feeds["x"].mean(1, keepdims=True)
    wanted = np.where(y > 0, feeds["y_grad"], 0)
    np.testing.assert_allclose(outputs_of(case)["out"], wanted, atol=1e-12)


def test_symbolic_dimensions_stay() -> None:
    found = lower_model(made.training_model(), LoweringRequest()).model
    dims = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in found.graph.value_info
    }
    assert dims["h_grad"] == ["N", 6]
    one, other = (runtime(found, made.feeds(count)) for count in (2, 7))
    assert one["output"].shape == (2, 3)
    assert other["output"].shape == (7, 3)


def test_convolutions_of_a_symbolic_batch() -> None:
    """Bias, strides and padding; checked by finite differences at two batches."""
    forward = onnx_node(
        "Conv", "x w b", "y", strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3]
    )
    backward = node(
        "ConvGrad",
        "y_grad x w",
        "_ w_grad b_grad",
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        kernel_shape=[3, 3],
    )
    for count in (1, 3):
        feeds = {"x": some(count, 2, 7, 7), "w": some(3, 2, 3, 3, seed=1), "b": some(3, seed=2)}
        feeds["y_grad"] = some(count, 3, 4, 4, seed=3)
        case = Case([forward, backward], feeds, ["y", "w_grad", "b_grad"])
        check_gradients(case)
        model = case.model()
        for value in model.graph.input:
            if value.name in ("x", "y_grad"):
                value.type.tensor_type.shape.dim[0].dim_param = "N"
        free = lower_model(model, LoweringRequest()).model
        values, wanted = (
            evaluate(free, feeds),
            evaluate(lower_model(case.model(), LoweringRequest()).model, feeds),
        )
        np.testing.assert_allclose(values["w_grad"], wanted["w_grad"], atol=1e-12)
