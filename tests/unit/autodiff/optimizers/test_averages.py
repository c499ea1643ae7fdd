"""Averages that follow parameters, against NumPy, step by step."""

from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.graphs import parse
from memplan.autodiff.optimizers.formulas import parse_optimizer
from memplan.autodiff.optimizers.scaling import parse_loss_scale
from memplan.autodiff.optimizers.updates import Updates, members_of
from memplan.ir.contract import Contract
from memplan.ir.roles import Averages, Role
from memplan.proto.metadata import set_metadata

pytest.importorskip("torch")
from memplan.api.capture.step_gradients import differentiated

NET = """g ({kind}[4, 3] x, {kind}[3, 2] w, {kind}[3, 2] slow) => ({kind} loss) {{
    y = MatMul(x, w)  t = MatMul(x, slow)  d = Sub(y, t)  q = Mul(d, d)
    loss = ReduceMean<keepdims = 0>(q) }}"""


def step(follow: Averages, kind: str = "float", scale: str = "none") -> onnx.ModelProto:
    """A step that trains w towards slow, which an average may renew."""

    def sink(parameters: Any, types: Any) -> Updates:
        optimizer = parse_optimizer("sgd{lr=0.25}")
        assert optimizer is not None
        members = members_of(optimizer, list(parameters))
        return Updates(members, types, scale=parse_loss_scale(scale), averages=follow)

    made = differentiated(parse(NET.format(kind=kind)), "loss", ["w"], sink)
    assert isinstance(made.sink, Updates)
    roles = {"x": Role.BATCH, "w": Role.PARAMETER, "slow": Role.FROZEN, **made.sink.roles()}
    roles |= dict.fromkeys(made.sink.new_values, Role.NEW_VALUE) | {"loss": Role.LOSS}
    contract = Contract(roles, made.sink.new_values, {}, stated=True)
    set_metadata(made.model, contract.as_metadata())
    return made.model


def values(dtype: Any = np.float32) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {name: draw.normal(size=(3, 2)).astype(dtype) for name in ("w", "slow")}


def gradient(x: Any, w: Any, slow: Any) -> Any:
    return x.T @ (x @ (w - slow)) * 2 / 8


@pytest.mark.parametrize(("kind", "close"), [("float", 1e-5), ("double", 1e-7)])
@pytest.mark.parametrize("inside", [False, True])
def test_it_is_the_formula(kind: str, close: float, inside: bool) -> None:
    dtype = np.float32 if kind == "float" else np.float64
    model = step(Averages(0.9999, {"slow": "w"} if inside else None), kind)
    first = values(dtype)
    trainer = memplan.Trainer(model, first)
    assert all(binding.in_place for binding in trainer.bindings)
    w, slow, average = first["w"], first["slow"], first["w"]
    draw = np.random.default_rng(1)
    for number in range(1, 9):
        decay = 0.0 if number == 3 else 0.9999
        trainer.set("ema_decay", decay)
        x = draw.normal(size=(4, 3)).astype(dtype)
        trainer.step(x=x)
        w = w - 0.25 * gradient(x, w, slow)
        average = average + (1 - decay) * (w - average)
        if inside:
            slow = slow + (1 - decay) * (w - slow)
    state = trainer.state_dict()
    np.testing.assert_allclose(state["w"], w, rtol=close)
    np.testing.assert_allclose(state["slow"], slow, rtol=close)
    if not inside:
        np.testing.assert_allclose(state["w.ema"], average, rtol=close)


def test_an_average_begins_at_its_parameter_or_where_it_is_told() -> None:
    model, given = step(Averages(0.5)), values()
    assert (memplan.Trainer(model, given).state_dict()["w.ema"] == given["w"]).all()
    told = memplan.Trainer(model, {**given, "w.ema": given["slow"]})
    assert (told.state_dict()["w.ema"] == given["slow"]).all()


def test_after_a_skipped_step_it_moves_towards_the_old_weight() -> None:
    model = step(Averages(0.5), scale="dynamic{init_scale=1e38}")
    given = values()
    trainer = memplan.Trainer(model, {**given, "w.ema": np.zeros((3, 2), np.float32)})
    trainer.step(x=np.full((4, 3), 100, np.float32))
    assert trainer.skipped
    state = trainer.state_dict()
    assert (state["w"] == given["w"]).all()
    np.testing.assert_allclose(state["w.ema"], given["w"] / 2)
