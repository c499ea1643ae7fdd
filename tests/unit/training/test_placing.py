"""Which new values a trainer writes over old ones, on graphs made to trip it; and that results are
right either way."""

from typing import Any

import numpy as np
import onnx
import pytest

from helpers.graphs import parse
from helpers.networks import plain_loop
from memplan import Trainer
from memplan.errors import UsageError

LOSS = "q = Mul(w, x) m = Relu(q) loss = ReduceSum<keepdims = 0>(m) u = Mul(x, lr)"
UPDATE = "w_new = Sub(w, u)"


def step(body: str, outputs: str = "", inputs: str = "float[4] w") -> onnx.ModelProto:
    """A step with a batch ``x``, a rate ``lr`` and outputs ``loss``, ``w_new``."""
    return parse(
        f"t ({inputs}, float[4] x, float lr) => (float loss, float[4] w_new{outputs}) {{ {body} }}"
    )


def trained(model: onnx.ModelProto, **options: Any) -> tuple[Trainer, list[float], dict[str, Any]]:
    """Three steps, and what they must come to."""
    rng = np.random.default_rng(0)
    trainer = Trainer(model, init="random", lr=0.5, threads=1, **options)
    first = {
        slot.name: rng.standard_normal(slot.static_shape).astype(slot.dtype)
        for slot in trainer.file.state
    }
    trainer.load_state_dict(first)
    data = [{"x": rng.standard_normal(4).astype(np.float32)} for _ in range(3)]
    fed = [{**batch, "lr": np.asarray(0.5, np.float32)} for batch in data]
    pairs = trainer.file.contract.new_values
    losses, state = plain_loop(model, first, fed, "loss", pairs)
    found = [trainer.step(batch) for batch in data]
    assert found == losses
    for name, value in trainer.state_dict().items():
        assert value.tobytes() == state[name].tobytes(), name
    return trainer, losses, state


def why(trainer: Trainer) -> dict[str, str]:
    """The reasons of what has a second buffer."""
    return {b.output: b.reason for b in trainer.bindings if not b.in_place}


def test_a_simple_update_is_in_place() -> None:
    trainer, _, _ = trained(step(f"{LOSS} {UPDATE}"))
    assert why(trainer) == {}
    assert trainer.bindings[0].nbytes == 16


@pytest.mark.parametrize(
    ("body", "outputs", "reason"),
    [
        (f"{LOSS} {UPDATE} late = Mul(w, x)", ", float[4] late", "reads 'w' after"),
        (f"v = Identity(w) {LOSS} {UPDATE} late = Mul(v, x)", ", float[4] late", "reads 'v' after"),
        (
            f"s = Constant<value = int64[2] {{2, 2}}>() v = Reshape(w, s) {LOSS} {UPDATE} "
            "late = Neg(v)",
            ", float[2, 2] late",
            "reads 'v' after",
        ),
        (f"{LOSS} {UPDATE} kept = Identity(w_new)", ", float[4] kept", "may share the new"),
        (f"{LOSS} r = CumSum(w, i) w_new = Sub(r, u)", "", ""),
        (f"{LOSS} d = Sub(w, u) w_new = Softmax(d)", "", ""),
        (f"{LOSS} w_new = Softmax(w)", "", "after it has overwritten it"),
        (f"{UPDATE.replace('u)', 'x)')} {LOSS}", "", "reads 'w' after"),
    ],
)
def test_what_would_be_wrong_has_two_buffers(body: str, outputs: str, reason: str) -> None:
    if "CumSum" in body:
        body = "i = Constant<value = int64 {0}>() " + body
    trainer, _, _ = trained(step(body, outputs))
    found = why(trainer)
    assert (reason in found["w_new"]) if reason else not found


def test_a_broadcast_weight_has_two_buffers() -> None:
    model = parse(
        "t (float[1, 4] w, float[4] x, float lr) => (float loss, float[1, 4] w_new) {"
        " k = Constant<value = int64[1] {0}>() q = Mul(w, x) loss = ReduceSum<keepdims = 0>(q)"
        " two = Constant<value = float[2, 1] {1, 1}>() b = Mul(w, two) r = ReduceSum(b, k)"
        " u = Mul(x, lr) w_new = Sub(r, u) late = Add(w, two) }"
    )
    trainer, _, _ = trained(model)
    assert "reads 'w' after" in why(trainer)["w_new"]


def test_two_outputs_for_one_input_are_named() -> None:
    model = step(f"{LOSS} {UPDATE} other = Add(w, u)", ", float[4] other")
    with pytest.raises(UsageError, match=r"'other' and 'w_new'|'w_new' and 'other'") as caught:
        Trainer(model, init="random", state={"other": "w", "w_new": "w"})
    assert caught.value.exit_code == 2


def test_a_plain_session_has_two_buffers_for_all() -> None:
    model = step(f"{LOSS} {UPDATE}")
    model.metadata_props.add(key="memplan.session", value='"default"')
    trainer, _, _ = trained(model)
    assert why(trainer) == {"w_new": "the session decides on the order of its nodes"}
    assert trainer.predicted() is None


def test_functions_are_followed_to_where_their_nodes_run() -> None:
    # Inlined nodes run behind all others: a reader in the list before the update runs after it.
    model = parse(
        '<ir_version: 10, opset_import: ["" : 20, "own" : 1]> t (float[4] w, float[4] x, float lr)'
        " => (float loss, float[4] w_new, float[4] out) {"
        " out = own.twice(w, x) q = Mul(w, x) loss = ReduceSum<keepdims = 0>(q) u = Mul(x, lr)"
        " w_new = Sub(w, u) }"
        ' <opset_import: ["" : 20], domain: "own"> twice (a, b) => (y) { c = Mul(a, b)'
        " y = Add(c, b) }"
    )
    trainer, _, _ = trained(model)
    assert "after" in why(trainer)["w_new"]


def test_casts_that_the_runtime_puts_in_are_followed() -> None:
    # There is no float16 kernel on the CPU: the session computes in float32 between Casts.
    model = parse(
        "t (float16[4] w, float[4] x, float lr) => (float loss, float16[4] w_new) {"
        " f = Cast<to = 1>(w) q = Mul(f, x) loss = ReduceSum<keepdims = 0>(q) u = Mul(x, lr)"
        " h = Cast<to = 10>(u) w_new = Sub(w, h) }"
    )
    trained(model)


def test_what_is_made_before_the_loss_can_be_undone_by_a_second_buffer_only() -> None:
    model = step(
        f"{UPDATE.replace('u)', 'v)')} q = Mul(w_new, x) loss = ReduceSum<keepdims = 0>(q)"
    )
    node = onnx.helper.make_node("Mul", ["x", "lr"], ["v"])
    model.graph.node.insert(0, node)
    trainer, _, _ = trained(model)
    assert "before the loss is known" in why(trainer)["w_new"]
    unguarded, _, _ = trained(model, guard=False)
    assert why(unguarded) == {}
    assert unguarded.predicted().resident_bytes == 16 + 16 + 4  # w, x, lr: no second buffer


def test_in_place_can_be_left() -> None:
    trainer, _, _ = trained(step(f"{LOSS} {UPDATE}"), in_place=False)
    assert why(trainer) == {"w_new": "it was asked for"}
