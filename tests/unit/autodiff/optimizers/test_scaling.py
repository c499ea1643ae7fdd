"""Loss scaling: the rule of ``torch.amp.GradScaler``, written here once more in NumPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.gradients import Array, draw, reference, runtime
from helpers.graphs import parse
from memplan import GradOptions, grad
from memplan.api.grad.training_graph import TrainingGraph
from memplan.autodiff.optimizers.formulas import KINDS
from memplan.autodiff.optimizers.scaling import DynamicScale, LossScale, parse_loss_scale
from memplan.equivalence.in_place import unsafe_pairs
from memplan.errors import UsageError
from memplan.ir.roles import Role

FORWARD = """
    g ({kind}[4,6] x) => ({kind} loss)
    {{ h = MatMul(x, w)
      a = Tanh(h)
      b = Add(a, bias)
      y = MatMul(b, v)
      q = Mul(y, y)
      loss = ReduceSum <keepdims = 0> (q) }}"""
SHAPES = {"w": (6, 5), "bias": (5,), "v": (5, 3)}
SPECS = [
    *KINDS,
    "momentum{nesterov=1,weight_decay=0.1}",
    "momentum{dampening=0.5}",
    "rmsprop{momentum=0.9}",
    "adagrad{lr_decay=0.1}",
    "adamw{clip_norm=0.5}",
    "lion{clip_value=0.5}",
]


def forward(kind: str = "float") -> onnx.ModelProto:
    model = parse(FORWARD.format(kind=kind))
    dtype = {"float": np.float32, "double": np.float64, "float16": np.float16}[kind]
    for k, (name, shape) in enumerate(SHAPES.items()):
        tensor = onnx.numpy_helper.from_array(draw(shape, k).astype(dtype), name)
        model.graph.initializer.append(tensor)
    return model


def made(optimizer: str, scale: str, kind: str = "float", *, apart: bool = False) -> TrainingGraph:
    options = GradOptions("loss", optimizer=optimizer, loss_scale=scale, own_update=apart)
    return grad(forward(kind), options)


def begun(model: onnx.ModelProto, *but: str) -> dict[str, Array]:
    """Defaults, and state at 1: nothing is what it would be if it were made anew."""
    known = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if value.name not in but:
            found[value.name] = known.get(value.name, np.full(shape, 1, dtype))
    return found


def stepped(graph: TrainingGraph, state: dict[str, Array], x: Array) -> dict[str, Any]:
    return runtime(graph.model, {**state, "x": x})


@dataclass
class Scaler:
    """``torch.amp.GradScaler``: the scale is a float32, factors are float64."""

    scale: np.float32
    growth: float
    backoff: float
    interval: int
    tracker: int = 0
    stayed: bool = False
    """Whether it would have grown out of float32."""

    def update(self, found_inf: bool) -> None:
        if found_inf:
            self.scale, self.tracker = np.float32(float(self.scale) * self.backoff), 0
            return
        self.tracker += 1
        if self.tracker == self.interval:
            with np.errstate(over="ignore"):
                grown = np.float32(float(self.scale) * self.growth)
            self.stayed |= not np.isfinite(grown)
            self.scale = grown if np.isfinite(grown) else self.scale
            self.tracker = 0


@pytest.mark.parametrize(
    ("scale", "growth", "backoff", "interval", "stays"),
    [
        (2.0**126, 4.0, 0.5, 2, True),
        (1.2e38, 3.1, 0.31, 1, True),
        (1e31, 1e7, 1e-7, 3, False),
        (2.0**126, 1.1, 0.9, 1, False),
    ],
)
def test_the_scale_goes_as_that_of_grad_scaler(
    scale: float, growth: float, backoff: float, interval: int, stays: bool
) -> None:
    """Bit by bit, over skipped and grown steps, up to the end of float32."""
    text = (
        f"dynamic{{init_scale={scale},growth_factor={growth},backoff_factor={backoff},"
        f"growth_interval={interval}}}"
    )
    graph = made("sgd{lr=0}", text)
    state = begun(graph.model, "x") | {"bias": np.zeros(5, np.float32)}
    scaler = Scaler(np.float32(scale), growth, backoff, interval)
    skipped = []
    for k in range(14):
        size = 1e-9 if k % 5 < 3 else 1.0
        found = stepped(graph, state, np.full((4, 6), size, np.float32))
        skipped.append(bool(found["found_inf"]))
        scaler.update(skipped[-1])
        state |= {old: found[new] for new, old in graph.new_values.items()}
        assert state["loss_scale"].tobytes() == scaler.scale.tobytes(), k
        assert int(state["growth_tracker"]) == scaler.tracker, k
    assert len(set(skipped)) == 2
    assert scaler.stayed == stays


@pytest.mark.parametrize("optimizer", SPECS)
def test_a_skipped_step_changes_nothing_but_the_scale(optimizer: str) -> None:
    graph = made(optimizer, "dynamic{init_scale=3e38}")
    state = begun(graph.model, "x")
    found = stepped(graph, state, np.full((4, 6), 1, np.float32))
    assert found["found_inf"]
    assert np.isfinite(found["loss"])
    for new, old in graph.new_values.items():
        same = found[new].tobytes() == state[old].tobytes()
        assert same == (old != "loss_scale"), old
    assert found["loss_scale_new"] == np.float32(3e38) / 2


@pytest.mark.parametrize("optimizer", SPECS)
def test_a_step_that_is_not_skipped_is_that_without_a_scale(optimizer: str) -> None:
    """A power of two is taken out again without rounding."""
    plain, graph = made(optimizer, "none"), made(optimizer, "dynamic{init_scale=1024}")
    x = draw((4, 6), 9).astype(np.float32)
    state = begun(graph.model, "x")
    wanted = runtime(plain.model, {**begun(plain.model, "x"), "x": x})
    found = stepped(graph, state, x)
    assert not found["found_inf"]
    for name, value in wanted.items():
        assert value.tobytes() == found[name].tobytes(), name


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_element_of_one_gradient_is_enough(bad: float) -> None:
    """Gradients are tested themselves: no sum of finite ones, however large, skips a step."""
    apart = made("adamw", "dynamic{init_scale=1}", apart=True)
    model = apart.update.model
    state = begun(model)
    for value, skips in ((bad, True), (3e38, False)):
        grad_of = np.full(SHAPES["w"], 3e38, np.float32)
        grad_of[3, 2] = value
        found = runtime(model, {**state, "w_grad": grad_of})
        assert bool(found["found_inf"]) == skips, value
        assert (found["v_new"].tobytes() == state["v"].tobytes()) == skips


@pytest.mark.parametrize("apart", [False, True], ids=["in the step", "apart"])
@pytest.mark.parametrize("optimizer", SPECS)
def test_every_new_value_may_be_written_over_the_old_one(optimizer: str, apart: bool) -> None:
    """And none is, before it is known whether the step is skipped."""
    graph = made(optimizer, "dynamic", apart=apart)
    model = graph.model if graph.update is None else graph.update.model
    contract = graph.contract if graph.update is None else graph.update.contract
    assert unsafe_pairs(model, contract.new_values) == {}
    makers = {name: node for node in model.graph.node for name in node.output}
    for new, old in contract.new_values.items():
        if old != "growth_tracker":  # begins again where the scale has grown, too
            assert makers[new].op_type == "Where", new
            assert makers[new].input[0] == "found_inf", new


def test_the_gradients_of_a_step_with_an_update_apart_are_scaled() -> None:
    """By finite differences of the loss, in float64."""
    graph = made("sgd", "dynamic{init_scale=256}", "double", apart=True)
    x = draw((4, 6), 9)
    found = reference(graph.model, {"x": x})
    plain = grad(forward("double"), GradOptions("loss"))
    for name in SHAPES:
        gradient = reference(plain.model, {"x": x})[f"{name}_grad"]
        assert found[f"{name}_grad"].tobytes() == (256 * gradient).tobytes()
    step, values = 1e-5, begun(graph.model, "x")
    ends = []
    for sign in (1, -1):
        moved = values["v"] + sign * step * draw(SHAPES["v"], 3)
        ends.append(float(reference(graph.model, {"x": x, "v": moved})["loss"]))
    slope = float((found["v_grad"] * draw(SHAPES["v"], 3)).sum()) / 256
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-7)
    assert graph.contract.roles["loss_scale"] is Role.OPTIMIZER_STATE
    assert set(graph.contract.gradients.values()) == set(SHAPES)


def test_float16_gradients_are_unscaled_in_float32() -> None:
    """1 / 2³⁰ is 0 in float16; it is only an intermediate result here."""
    update = made("sgd", f"dynamic{{init_scale={2**30}}}", "float16", apart=True).update
    state = begun(update.model)
    state |= {name: np.full(shape, 4, np.float16) for name, shape in SHAPES.items()}
    scalars = {"gradient_scale": 2.0**30, "lr": 0.5}
    fed = {name: np.asarray(number, np.float32) for name, number in scalars.items()}
    found = reference(update.model, {**state, **fed})
    assert not found["found_inf"]
    assert found["w_new"].dtype == np.float16
    assert (found["w_new"] == 3.5).all()  # all gradients are 1


def test_a_fixed_scale_stays_and_skips() -> None:
    graph = made("sgd", "1024")
    assert graph.hyperparameters == {"loss_scale": 1024, "lr": 0.001}
    assert "loss_scale_new" not in graph.new_outputs
    x = np.full((4, 6), 1, np.float32)
    state = begun(graph.model, "x")
    assert not stepped(graph, state, x)["found_inf"]
    found = stepped(graph, state | {"loss_scale": np.asarray(3e38, np.float32)}, x)
    assert found["found_inf"]
    assert found["w_new"].tobytes() == state["w"].tobytes()


def test_the_report_says_what_it_costs() -> None:
    graph = made("sgd", "dynamic{init_scale=8}")
    assert sum("all held until the end" in note for note in graph.notes) == 1
    assert graph.as_json()["loss_scale"] == "dynamic{init_scale=8}"
    assert graph.contract.roles["found_inf"] is Role.OUTPUT


def test_scales_are_read() -> None:
    assert parse_loss_scale("none") is None
    assert parse_loss_scale("dynamic") == DynamicScale()
    assert parse_loss_scale("1024") == LossScale(1024.0)
    assert LossScale(1024.0).text == "1024"
    own = DynamicScale(init_scale=8.0, growth_interval=4)
    assert parse_loss_scale(own.text) == own
    assert own.text == "dynamic{init_scale=8,growth_interval=4}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "not a loss scale"),
        ("none{init_scale=1}", "not a loss scale"),
        ("dynamic{scale=8}", "no option 'scale'"),
        ("dynamic{growth_factor=1}", "growth_factor is 1, not a number above 1"),
        ("dynamic{backoff_factor=1}", "backoff_factor is 1, not a number between"),
        ("dynamic{growth_interval=0}", "growth_interval is 0, not a number"),
        ("dynamic{init_scale=0}", "init_scale is 0, not a number above 0"),
        ("-8", "init_scale is -8, not a number"),
        ("nan", "init_scale is nan, not a number"),
        ("1e39", r"init_scale is 1e\+39, not a number"),
    ],
)
def test_what_is_not_a_scale_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_loss_scale(text)


@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "forward_only": True}])
def test_a_scale_without_an_update_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="there is no update"):
        grad(forward(), GradOptions("loss", loss_scale="dynamic", **options))
