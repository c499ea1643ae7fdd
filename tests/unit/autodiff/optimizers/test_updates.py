"""Updates in a training graph: their place, what goes in and out, and what a plain run needs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.gradients import Array, draw, reference, runtime
from helpers.graphs import open_text, parse
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions, TrainingGraph
from memplan.autodiff.optimizers.formulas import KINDS
from memplan.equivalence.in_place import unsafe_pairs
from memplan.errors import UsageError
from memplan.ir.contract import find_contract
from memplan.ir.graph import Phase
from memplan.ir.phases import find_phases
from memplan.ir.roles import Role
from memplan.proto.metadata import get_metadata, node_metadata
from memplan.proto.read import read_model

# A tied embedding, a normalization, a convolution and a loop-free recurrence: weights that are read
# through views, several times, and by the gradient of the data beside them.
FORWARD = """
    g (int64[4,6] tokens, int64[4,6] labels) => (float loss)
    { e = Gather(table, tokens)
      n = LayerNormalization(e, scale, bias)
      axes = Constant <value_ints = [2]> ()
      t = Transpose <perm = [0, 2, 1]> (n)
      c = Conv <pads = [1, 1]> (t, kernel)
      u = Transpose <perm = [0, 2, 1]> (c)
      h = MatMul(u, w)
      k = Tanh(h)
      m = MatMul(k, w)
      flipped = Transpose <perm = [1, 0]> (table)
      y = MatMul(m, flipped)
      logs = LogSoftmax <axis = 2> (y)
      places = Unsqueeze(labels, axes)
      picked = GatherElements <axis = 2> (logs, places)
      mean = ReduceMean <keepdims = 0> (picked)
      loss = Neg(mean) }"""
SHAPES = {"table": (9, 8), "scale": (8,), "bias": (8,), "kernel": (8, 8, 3), "w": (8, 8)}
SPECS = [
    *KINDS,
    "momentum{nesterov=1,weight_decay=0.1}",
    "momentum{dampening=0.5}",
    "rmsprop{momentum=0.9}",
    "adagrad{lr_decay=0.1,weight_decay=0.1}",
    "adamw{no_decay=bias+scale,clip_norm=1}",
    "lion{weight_decay=0.1,clip_value=0.5}",
    "adafactor{weight_decay=0.1,clip_norm=1}",
    "adamw{amsgrad=1,maximize=1}",
    "rmsprop{centered=1,momentum=0.5}",
    "nadam{decoupled_weight_decay=1,weight_decay=0.1,clip_norm=1}",
    "radam{decoupled_weight_decay=1,weight_decay=0.1}",
    "asgd{t0=2,weight_decay=0.1}",
    "muon{nesterov=0,clip_norm=1}",
]


def forward() -> onnx.ModelProto:
    model = parse(FORWARD)
    for k, (name, shape) in enumerate(SHAPES.items()):
        tensor = onnx.numpy_helper.from_array(draw(shape, k).astype(np.float32), name)
        model.graph.initializer.append(tensor)
    return model


def trained(optimizer: str, *, apart: bool = False) -> TrainingGraph:
    options = GradOptions("loss", wrt=tuple(SHAPES), optimizer=optimizer, own_update=apart)
    return grad(forward(), options)


@pytest.mark.parametrize("apart", [False, True], ids=["in the step", "apart"])
@pytest.mark.parametrize("optimizer", SPECS)
def test_every_new_value_may_be_written_over_the_old_one(optimizer: str, apart: bool) -> None:
    """In the order of the file: all that reads a weight stands in front of its update."""
    made = trained(optimizer, apart=apart)
    if made.update is None:
        model, contract = made.model, made.contract
    else:
        model, contract = made.update.model, made.update.contract
        assert not made.new_values
    kept = len(contract.named(Role.PARAMETER, Role.OPTIMIZER_STATE, Role.STEP_COUNTER))
    assert len(contract.new_values) == kept >= len(SHAPES)
    assert unsafe_pairs(model, contract.new_values) == {}


def test_updates_stand_right_behind_the_last_reader_of_their_weight() -> None:
    """Not at the end: the gradients of later layers are gone when those of earlier ones come."""
    nodes = [node_metadata(n)["memplan.phase"] for n in trained("sgd").model.graph.node if on(n)]
    first, last = nodes.index(Phase.UPDATE), len(nodes) - 1 - nodes[::-1].index(Phase.BACKWARD)
    assert first < last


def on(node: onnx.NodeProto) -> bool:
    return "memplan.phase" in node_metadata(node)


def test_a_norm_of_all_gradients_is_waited_for() -> None:
    """Every update stands behind every backward node, and the report says what that costs."""
    made = trained("sgd{clip_norm=1}")
    updates = [
        k
        for k, node in enumerate(made.model.graph.node)
        if any(name in made.new_values for name in node.output)
    ]
    backward = [
        k
        for k, node in enumerate(made.model.graph.node)
        if node_metadata(node).get("memplan.phase") == Phase.BACKWARD
    ]
    assert min(updates) > max(backward)
    assert any("clip_norm" in note for note in made.notes)
    assert not any("clip_norm" in note for note in trained("sgd{clip_value=1}").notes)


@pytest.mark.parametrize("optimizer", SPECS)
def test_the_file_says_what_everything_is(optimizer: str) -> None:
    """What it says is what is found in it, and what phases are found without it."""
    made = trained(optimizer)
    opened = open_text(made.model)
    found = find_contract(opened.graph, opened.phases, get_metadata(made.model))
    assert found.stated
    assert found.roles == made.contract.roles
    assert found.new_values == made.new_values
    roles = made.contract.roles
    assert {name for name, role in roles.items() if role is Role.PARAMETER} == set(SHAPES)
    assert {name for name, role in roles.items() if role is Role.BATCH} == {"tokens", "labels"}
    assert roles["loss"] is Role.LOSS
    assert roles["lr"] is Role.HYPERPARAMETER
    assert Role.OUTPUT not in roles.values()
    assert found.named(Role.HYPERPARAMETER) == tuple(
        value.name for value in made.model.graph.input if value.name in made.hyperparameters
    )
    phases = find_phases(opened.graph)
    assert {opened.graph.tensors[t].name for t in phases.parameters} == set(SHAPES)
    for node in opened.graph.nodes:
        assert (phases.of[node.id] is Phase.UPDATE) == ("/update/" in node.name)


def test_data_that_is_differentiated_by_beside_weights_stays_data() -> None:
    model = parse(
        "g (float[2,3] x) => (float loss) { y = MatMul(x, w)  loss = ReduceMax<keepdims = 0>(y) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 1), np.float32), "w"))
    roles = grad(model, GradOptions("loss", wrt=("w", "x"))).contract.roles
    assert (roles["w"], roles["x"]) == (Role.PARAMETER, Role.BATCH)
    assert grad(model, GradOptions("loss", wrt=("x",))).contract.roles["x"] is Role.PARAMETER


def batch() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, 9, (4, 6)) for name in ("tokens", "labels")}


def zeros(made: TrainingGraph) -> dict[str, Array]:
    """The first state."""
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in made.model.graph.input
    }
    names = made.contract.named(Role.OPTIMIZER_STATE)
    return {name: np.zeros(shapes[name], np.float32) for name in names}


def test_what_has_a_default_need_not_be_fed() -> None:
    """The counter goes on from what it gives, and the learning rate is PyTorch's default."""
    made = trained("adamw")
    state = zeros(made)
    feeds = {**batch(), **state}
    first = runtime(made.model, feeds)
    rate, one = np.asarray(1e-3, np.float32), np.asarray(1)
    decay = np.asarray(0.01, np.float32)
    fed = runtime(made.model, {**feeds, "lr": rate, "step": one, "weight_decay": decay})
    for name, value in first.items():
        np.testing.assert_array_equal(value, fed[name])
    assert first["step_new"] == 2
    other = runtime(made.model, {**feeds, "lr": np.asarray(2 * rate)})
    assert not np.array_equal(other["w_new"], first["w_new"])
    again = runtime(made.model, {**feeds, **{o: first[n] for n, o in made.new_values.items()}})
    assert again["step_new"] == 3


STEPPED = ["adam", "adamw", "adafactor", "momentum{dampening=0.5}", "nadam", "asgd", "rprop"]


@pytest.mark.parametrize("optimizer", STEPPED)
def test_a_step_of_zero_counts_as_the_first(optimizer: str) -> None:
    made = trained(optimizer)
    feeds = {**batch(), **zeros(made)}
    wanted = runtime(made.model, feeds)
    for name, value in runtime(made.model, {**feeds, "step": np.asarray(0)}).items():
        np.testing.assert_array_equal(value, wanted[name])
        assert np.isfinite(value).all()


def test_names_that_are_taken_are_told_apart() -> None:
    text = """g (float[4] lr, float[4] w_new, float step) => (float loss)
        { a = Mul(lr, w)  b = Mul(a, w_new)  c = Mul(b, step)
          loss = ReduceSum <keepdims = 0> (c) }"""
    model = parse(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    made = grad(model, GradOptions("loss", wrt=("w",), optimizer="adam"))
    roles = made.contract.roles
    assert [roles[name] for name in ("lr", "w_new", "step")] == [Role.BATCH] * 3
    assert roles["lr_1"] is Role.HYPERPARAMETER
    assert roles["step_1"] is Role.STEP_COUNTER
    assert made.new_values == {
        "w_new_1": "w",
        "w.exp_avg_new": "w.exp_avg",
        "w.exp_avg_sq_new": "w.exp_avg_sq",
        "step_1_new": "step_1",
    }


def test_both_files_are_written(tmp_path: Path) -> None:
    step, update = tmp_path / "step.onnx", tmp_path / "update.onnx"
    options = GradOptions("loss", wrt=tuple(SHAPES), optimizer="adamw")
    made = grad(forward(), options, step, update_output=update)
    assert made.update is not None
    for path, model in ((step, made.model), (update, made.update.model)):
        assert read_model(path) == model
    names = {value.name for value in onnx.load(step).graph.output}
    taken = {value.name for value in onnx.load(update).graph.input}
    assert names - {"loss"} == {f"{name}_grad" for name in SHAPES} <= taken
    assert not {tensor.name for tensor in onnx.load(update).graph.initializer} & set(SHAPES)


@pytest.mark.parametrize(
    ("optimizer", "update", "message"),
    [
        ("none", "update.onnx", "is the file of an optimizer"),
        ("adamw", "step.onnx", "another output of this command is written there"),
        ("adamw", "there.onnx", "exists"),
    ],
)
def test_a_file_of_updates_that_cannot_be(
    tmp_path: Path, optimizer: str, update: str, message: str
) -> None:
    (tmp_path / "there.onnx").write_bytes(b"old")
    options = GradOptions("loss", wrt=tuple(SHAPES), optimizer=optimizer)
    with pytest.raises(UsageError, match=message):
        grad(forward(), options, tmp_path / "step.onnx", update_output=tmp_path / update)
    assert not (tmp_path / "step.onnx").exists()


BAD = [
    *(
        (text, "--optimizer")
        for text in (
            "lamb",
            "sgd{momentum=0.9}",
            "adam{beta1=x}",
            "adam{eps}",
            "sgd{",
            "sgd{weight_decay=-1}",
        )
    ),
    ("sgd{no_decay=b*}", "no weights decay anyway"),
    ("adamw{no_decay=b*+nothing*}", r"no_decay=nothing\*}: no trained tensor"),
    ("sgd{clip_norm=1,clip_value=1}", "by clip_norm or by clip_value"),
    ("momentum{nesterov=2}", "expected 0 or 1"),
    ("adam{amsgrad=2}", r"adam\{amsgrad=2\}: expected 0 or 1"),
    ("sgd{maximize=3}", "expected 0 or 1"),
    ("rmsprop{centered=2}", "expected 0 or 1"),
    ("radam{decoupled_weight_decay=2}", "expected 0 or 1"),
    ("muon{adjust_lr_fn=mine}", "adjust_lr_fn=mine}: unknown value"),
    ("momentum{nesterov=1,dampening=0.1}", "no dampening"),
    ("momentum{nesterov=1,momentum=0}", "needs a momentum"),
    ("adamw{clip_norm=-1}", "expected a number of at least 0"),
]


@pytest.mark.parametrize(("optimizer", "message"), BAD)
def test_options_that_do_not_go_together(optimizer: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trained(optimizer)


@pytest.mark.parametrize("apart", [False, True], ids=["in the step", "apart"])
@pytest.mark.parametrize(("kind", "opset"), [("float", 13), ("float", 20), ("float16", 20)])
@pytest.mark.parametrize(
    "optimizer", ["adamw{clip_norm=1}", "lion{lr=0.01,clip_value=1}", "adafactor"]
)
def test_sizes_that_only_a_run_knows(optimizer: str, kind: str, opset: int, apart: bool) -> None:
    """Sizes of weights have names, and elements 32 or 16 bits: the state follows."""
    text = f"""<ir_version: 9, opset_import: ["" : {opset}]>
        g ({kind}[N,K] x, {kind}[K,4] w) => ({kind} loss)
        {{ a = MatMul(x, w)  b = Tanh(a)  loss = ReduceSumSquare <keepdims = 0> (b) }}"""
    options = GradOptions("loss", wrt=("w",), optimizer=optimizer, own_update=apart)
    made = grad(parse(text), options)
    dtype = np.dtype(np.float32 if kind == "float" else np.float16)
    weight = np.full((3, 4), 0.5, dtype)
    found = runtime(made.model, {"x": np.ones((2, 3), dtype), "w": weight, **sized(made.model)})
    if made.update is not None:
        given = {"w": weight, "w_grad": found["w_grad"], **sized(made.update.model)}
        found = runtime(made.update.model, given)
    assert found["w_new"].dtype == dtype
    assert (found["w_new"] < weight).all()


def sized(model: onnx.ModelProto) -> dict[str, Array]:
    """Zeros for the state of a weight of 3 x 4."""
    found = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        if value.name.startswith("w."):
            shape = [dim.dim_value or 3 for dim in kind.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            found[value.name] = np.zeros(shape, dtype)
    return found


def test_float64_parameters_keep_their_digits() -> None:
    """A float32 input would take them from weight decay and the norm; only the rate is one."""
    text = """g (double[4] x) => (double loss)
        { a = Mul(x, w)  b = Mul(a, a)  loss = ReduceSum <keepdims = 0> (b) }"""
    model = parse(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4), "w"))
    found: Any = grad(model, GradOptions("loss", wrt=("w",), optimizer="sgd{weight_decay=0.1}"))
    assert set(found.hyperparameters) == {"lr"}
    x = draw((4,))
    rate = np.asarray(0.5, np.float32)
    result = reference(found.model, {"x": x, "lr": rate})
    np.testing.assert_allclose(result["w_new"], 1 - 0.5 * (2 * x * x + 0.1), rtol=1e-15)


def test_the_answer_says_what_does_not_decay() -> None:
    made = trained("adamw{no_decay=bias+s*}")
    assert set(made.not_decayed) == {"bias", "scale"}
    found = made.as_json()
    assert found["not_decayed"] == list(made.not_decayed)
    assert found["hyperparameters"] == {"lr": 0.001, "weight_decay": 0.01}
    assert trained("adamw").not_decayed == ()


def test_what_is_no_matrix_is_adamws_where_muon_is_asked_for() -> None:
    made = trained("muon{weight_decay=0.25,no_decay=bias}")
    assert {"2 tensors updated by muon", "3 tensors updated by adamw"} <= set(made.notes)
    states = made.contract.named(Role.OPTIMIZER_STATE)
    assert {"table.momentum", "w.momentum", "kernel.exp_avg", "bias.exp_avg_sq"} <= set(states)
    assert made.not_decayed == ("bias",)
    assert dict(made.hyperparameters)["weight_decay"] == 0.25
    assert not any("updated by" in note for note in trained("adamw").notes)
