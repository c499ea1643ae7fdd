"""The training contract: what every graph input and output of a training step is."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

from memplan.errors import UsageError
from memplan.ir.contract import Contract, find_contract
from memplan.ir.roles import Role
from memplan.proto.metadata import get_metadata, set_metadata
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import opened

SAMPLES = Path(__file__).parents[3] / "sample_models"


def _step(new: str = "w_new") -> onnx.ModelProto:
    """A linear model with its gradient and its update."""
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        step (float[4,3] x, float[3,2] w, float[3,2] w_momentum, float lr, int64 step,
              float[3] seen)
          => (float loss, float[3,2] {new}, float[3,2] w_momentum_new, int64 step_new,
              float[3] seen_new, float[4,2] y) {{
          y = MatMul (x, w)
          s = Mul (y, y)
          a = Constant <value_ints = [0]> ()
          mean = ReduceMean <keepdims = 0> (x, a)
          loss = ReduceSum <keepdims = 0> (s)
          two = Constant <value = float {{2.0}}> ()
          one = Constant <value = int64 {{1}}> ()
          dy = Mul (y, two)
          xt = Transpose <perm = [1, 0]> (x)
          dw = MatMul (xt, dy)
          v = Add (w_momentum, dw)
          w_momentum_new = Identity (v)
          d = Mul (v, lr)
          {new} = Sub (w, d)
          step_new = Add (step, one)
          seen_new = Add (seen, mean)
        }}"""
    )


def _contract(model: onnx.ModelProto, asked: Mapping[str, str] | None = None) -> Contract:
    found = opened(prepare(model, Path("model.onnx"), {}))
    return find_contract(found.graph, found.phases, get_metadata(model), asked)


def test_every_input_and_output_gets_its_role_from_names_and_data_flow() -> None:
    found = _contract(_step())
    assert found.roles == {
        "x": Role.BATCH,
        "w": Role.PARAMETER,
        "w_momentum": Role.OPTIMIZER_STATE,
        "lr": Role.HYPERPARAMETER,
        "step": Role.STEP_COUNTER,
        "seen": Role.RUNNING_STATISTIC,
        "loss": Role.LOSS,
        "w_new": Role.NEW_VALUE,
        "w_momentum_new": Role.NEW_VALUE,
        "step_new": Role.NEW_VALUE,
        "seen_new": Role.NEW_VALUE,
        "y": Role.OUTPUT,
    }
    assert not found.stated
    assert found.loss == "loss"


def test_a_new_value_without_a_telling_name_is_found_from_the_data_flow_and_said() -> None:
    found = _contract(_step(new="o_17"))
    assert found.new_values["o_17"] == "w"
    assert "o_17" in found.notes[0]


def test_what_is_asked_for_wins_over_names() -> None:
    found = _contract(_step(), {"w_new": "", "w_momentum_new": "w"})
    assert "w_new" not in found.new_values
    assert found.new_values["w_momentum_new"] == "w"


@pytest.mark.parametrize(
    "asked",
    [{"none": "w"}, {"w_new": "none"}, {"w_new": "x"}],
    ids=["no such output", "no such input", "another shape"],
)
def test_a_wrong_pair_is_told(asked: Mapping[str, str]) -> None:
    with pytest.raises(UsageError):
        _contract(_step(), asked)


def test_what_the_file_says_is_believed_where_it_fits() -> None:
    model = _step()
    said = _contract(model)
    values = said.as_metadata()
    assert isinstance(values["new_values"], dict)
    values["new_values"]["y"] = "w"  # another shape
    set_metadata(model, values)
    again = _contract(model)
    assert again.stated
    assert again.new_values == said.new_values
    assert again.roles == said.roles
    assert "'y' is the next value of 'w'" in again.refused[0]


@pytest.mark.parametrize("name", ["t", "x_t", "num_step", "decoder_iter"])
@pytest.mark.parametrize("reader", ["forward", "update", "nobody"])
def test_a_step_counter_is_not_read_by_the_model_itself(name: str, reader: str) -> None:
    """A diffusion model's time step, of a batch of one, is fed."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
        step (float[4,3] x, float[3,2] w, float[1] TIME) => (float loss, float[3,2] w_new) {
          x1 = MODEL (x, TIME)
          y = MatMul (x1, w)
          s = Mul (y, y)
          loss = ReduceSum <keepdims = 0> (s)
          dy = Add (y, y)
          xt = Transpose <perm = [1, 0]> (x1)
          dw = MatMul (xt, dy)
          d = UPDATE (dw, TIME)
          w_new = Sub (w, d)
        }"""
    used = {"forward": ("Add", "Max"), "update": ("Max", "Div"), "nobody": ("Max", "Max")}[reader]
    for word, operator in zip(("MODEL", "UPDATE"), used, strict=True):
        text = text.replace(word, operator)
    for operator, given in (("x1 = Max", "x"), ("d = Max", "dw")):
        text = text.replace(f"{operator} ({given}, TIME)", f"{operator} ({given})")
    found = _contract(onnx.parser.parse_model(text.replace("TIME", name)))
    assert found.roles[name] is (Role.BATCH if reader == "forward" else Role.STEP_COUNTER)
    assert found.roles["w"] is Role.PARAMETER


def test_what_the_file_says_of_its_state_stays_when_other_metadata_is_written() -> None:
    model = _step()
    set_metadata(model, _contract(model).as_metadata())
    set_metadata(model, {"budget_bytes": 1})
    assert set(get_metadata(model)) == {"roles", "new_values", "gradients", "budget_bytes"}


def test_the_sample_with_an_optimizer_names_all_its_state() -> None:
    found = _contract(onnx.load(SAMPLES / "mlp_adamw.onnx"))
    assert len(found.new_values) == 49
    assert len(found.named(Role.OPTIMIZER_STATE)) == 32
    assert found.named(Role.BATCH) == ("features", "labels")
    assert found.named(Role.STEP_COUNTER) == ("step",)
