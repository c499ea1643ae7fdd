"""Whole graphs of onnxruntime-training: what goes in, what comes out, and that it is right."""

from typing import Any

import numpy as np
import onnx
import pytest

from helpers import ort_artifacts as made
from helpers.gradients import runtime
from helpers.lowering import (
    ATEN,
    MICROSOFT,
    evaluate,
    foreign_model,
    lowered,
    node,
    onnx_node,
    some,
)
from memplan.errors import ModelError, UsageError
from memplan.ir.roles import Role
from memplan.proto.edit import copied
from memplan.proto.metadata import get_metadata

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
    found = lowered(original)
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
    model, feeds = lowered(made.training_model()).model, made.feeds()
    values = runtime(model, feeds)
    for name in made.TRAINED:
        wanted = differences(model, feeds, made.LOSS, name)
        np.testing.assert_allclose(values[f"{name}_grad"], wanted, atol=2e-3)


def test_the_contract_is_in_the_file() -> None:
    found = lowered(made.training_model())
    told = get_metadata(found.model)
    assert told["roles"] == {name: str(role) for name, role in found.contract.roles.items()}
    assert told["gradients"] == {f"{name}_grad": name for name in made.TRAINED}
    assert told["new_values"] == {}
    roles = found.contract.roles
    assert [n for n, role in roles.items() if role is Role.BATCH] == ["x", "labels"]
    assert found.contract.named(Role.PARAMETER) == tuple(made.SIZES)  # the frozen one, too
    assert found.contract.loss == made.LOSS
    assert roles["output"] is Role.OUTPUT


def test_a_flag_that_is_read() -> None:
    """What is added up in place is not there any more."""
    model = made.training_model()
    model.graph.node.append(onnx_node("Not", "fc1.bias_grad.accumulation.out", "done"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("done", 9, [1]))
    with pytest.raises(ModelError, match=r"InPlaceAccumulatorV2 \(1x"):
        lowered(model)


def test_a_backward_part_alone() -> None:
    model = made.training_model()
    kept = [copied(value) for value in model.graph.output if "accumulation" in value.name]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    with pytest.raises(ModelError, match="holds a backward part alone"):
        lowered(model)


def test_gradients_without_a_loss() -> None:
    model = made.training_model()
    del model.graph.output[0]
    with pytest.raises(ModelError, match="no scalar output") as caught:
        lowered(model)
    assert "--loss NAME" in caught.value.hint


def test_a_gradient_of_another_name_gets_its_own() -> None:
    model = made.training_model()
    for item in model.graph.node:
        item.input[:] = ["g7" if name == "fc1.bias_grad" else name for name in item.input]
        item.output[:] = ["g7" if name == "fc1.bias_grad" else name for name in item.output]
    found = lowered(model)
    assert "fc1.bias_grad" in names(found.model.graph.output)
    wanted = runtime(lowered(made.training_model()).model, made.feeds())
    np.testing.assert_array_equal(
        runtime(found.model, made.feeds())["fc1.bias_grad"], wanted["fc1.bias_grad"]
    )


def test_running_statistics_are_outputs() -> None:
    """A layer that is called twice renews them twice."""
    x, second = some(4, 3), some(4, 3, seed=1)
    forward = [
        node("BatchNormInternal", "x s b m v", "y a1 a2 mean inv", name="one"),
        node("BatchNormInternal", "z s b m v", "w", name="two"),
        onnx_node("Add", "y w", "total"),
        onnx_node("ReduceMean", "total", "loss", keepdims=0),
        node("BatchNormalizationGrad", "total x s mean inv", "x_grad s_grad b_grad"),
    ]
    vectors = {name: some(3, seed=k) for k, name in enumerate("sbm", 2)} | {"v": np.ones(3)}
    feeds = {"x": x, "z": second, **vectors}
    found = lowered(foreign_model(forward, feeds, ["loss", "b_grad"]))
    assert found.contract.new_values["m_new"] == "m"
    assert found.contract.gradients == {"b_grad": "b"}
    assert found.contract.roles["v"] is Role.RUNNING_STATISTIC
    values = evaluate(found.model, feeds)
    wanted = (vectors["m"] * 0.9 + x.mean(0) * 0.1) * 0.9 + second.mean(0) * 0.1
    np.testing.assert_allclose(values["m_new"], wanted, rtol=1e-6)
    np.testing.assert_allclose(values["b_grad"], np.full(3, 2 / 3), rtol=1e-6)


# -- ORTModule ---------------------------------------------------------------------------------


def test_a_single_number_is_the_loss() -> None:
    found = lowered(made.module_graph(alone=True))
    assert found.seeded == "loss"
    assert not found.fed
    assert names(found.model.graph.output)[0] == "loss"
    wanted = runtime(lowered(made.training_model()).model, made.feeds())
    values = runtime(found.model, made.feeds())
    np.testing.assert_allclose(values["loss"], wanted[made.LOSS], rtol=1e-6)
    for name in made.TRAINED:
        np.testing.assert_allclose(
            values[f"{name}_grad"], wanted[f"{name}_grad"], rtol=1e-5, atol=1e-6
        )


def test_gradients_of_several_outputs_are_fed() -> None:
    found = lowered(made.module_graph())
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
    found = lowered(made.module_graph(), loss="squares")
    assert (found.seeded, found.fed, found.contract.loss) == ("squares", (), "squares")
    feeds = {k: v for k, v in made.feeds().items() if k != "labels"}
    values = runtime(found.model, feeds)
    wanted = differences(found.model, feeds, "squares", "fc2.bias")
    np.testing.assert_allclose(values["fc2.bias_grad"], wanted, rtol=1e-2, atol=1e-2)


def test_a_loss_that_some_parameters_have_no_part_in() -> None:
    """Their gradients are left out, and that is said."""
    model = made.module_graph()
    graph = model.graph
    graph.node.insert(0, onnx_node("ReduceSumSquare", "fc1.bias", "penalty", keepdims=0))
    graph.output.append(onnx.helper.make_tensor_value_info("penalty", 1, []))
    found = lowered(model, loss="penalty")
    assert set(found.contract.gradients.values()) == {"fc1.bias"}
    assert found.notes == (
        "3 gradients left out ('fc1.weight'): what is differentiated does not depend on it",
    )


@pytest.mark.parametrize("loss", ["output", "best", "nothing", "fc1.bias_grad"])
def test_a_loss_that_is_none(loss: str) -> None:
    with pytest.raises(UsageError, match="no scalar output of the forward part"):
        lowered(made.module_graph(), loss=loss)


# -- what cannot be lowered --------------------------------------------------------------------


def test_all_that_has_no_lowering_is_listed() -> None:
    """Of the forward part what is not known, of the backward part what is no gradient; even where
    nothing reads it."""
    model = made.training_model()
    odd = [("LSTMGradient", ""), ("NcclAllReduce", "com.microsoft"), ("RoiAlignGrad", MICROSOFT)]
    for k, (op, domain) in enumerate([*odd, ("MoE", MICROSOFT), ("NcclAllReduce", MICROSOFT)]):
        model.graph.node.append(node(op, "x", f"odd{k}", domain, name=f"odd{k}"))
    for k, op in enumerate(("grid_sampler", "grid_sampler_backward")):
        item = node("ATen", "x", f"at{k}", ATEN, name=f"aten{k}", operator=op)
        model.graph.node.append(item)
    for name in ("odd3", "at0"):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    with pytest.raises(ModelError) as caught:
        lowered(model)
    listed = caught.value.message.partition(": ")[2].split("), ")
    assert [text.rstrip(")") for text in listed] == [
        "com.microsoft:NcclAllReduce (2x, first 'odd1'",
        "com.microsoft:MoE (1x, first 'odd3'",
        "org.pytorch.aten:aten::grid_sampler (1x, first 'aten0'",
    ]


def test_python_of_the_users() -> None:
    model = made.training_model()
    for item in model.graph.node:
        if item.op_type == "Relu":
            item.op_type, item.domain = "PythonOp", MICROSOFT
    with pytest.raises(ModelError, match=r"PythonOp \(1x, first '/Relu'\)") as caught:
        lowered(model)
    assert "memplan capture" in caught.value.hint


def test_foreign_nodes_in_a_body_are_listed() -> None:
    body = onnx.helper.make_graph(
        [node("Gelu", "x", "inner", name="deep")],
        "body",
        [],
        [onnx.helper.make_tensor_value_info("inner", 11, [3])],
    )
    nodes = [onnx_node("If", "c", "y", then_branch=body, else_branch=body)]
    model = foreign_model(nodes, {"x": some(3), "c": np.asarray(True)}, ["y"])
    with pytest.raises(ModelError, match=r"Gelu in a body \(2x, first 'deep'\)"):
        lowered(model)


# -- opsets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [12, 13, 15, 17, 18, 21])
def test_any_opset(opset: int) -> None:
    """Operators are those of opset 20, or of the file's own."""
    axes = {"axes": [1]} if opset < 18 else {}
    nodes = [
        onnx_node("ReduceMean", "x" + ("" if axes else " one"), "m", keepdims=1, **axes),
        onnx_node("Softmax", "x", "p", axis=1),
        onnx_node("Sub", "p m", "y0"),
        node("BiasGelu", "y0 b", "y"),
        onnx_node("ReduceSum", "y", "loss", keepdims=0),
        node("BiasGeluGrad_dX", "y y0 b", "b_grad"),
    ]
    feeds = {"x": some(3, 4), "b": some(4, seed=1)}
    model = foreign_model(nodes, feeds, ["loss", "b_grad"], {} if axes else {"one": [1]}, opset)
    found = lowered(model)
    assert found.model.opset_import[0].version == max(opset, 20)
    assert found.contract.gradients == {"b_grad": "b"}
    values = evaluate(found.model, feeds)
    for k in range(4):
        ends = [
            evaluate(found.model, {**feeds, "b": feeds["b"] + sign * 1e-5 * np.eye(4)[k]})["loss"]
            for sign in (1, -1)
        ]
        assert values["b_grad"][k] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


def test_symbolic_dimensions_stay() -> None:
    found = lowered(made.training_model()).model
    dims = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in found.graph.value_info
    }
    assert dims["h"] == ["N", 6]
    one, other = (runtime(found, made.feeds(count)) for count in (2, 7))
    assert one["output"].shape == (2, 3)
    assert other["output"].shape == (7, 3)
