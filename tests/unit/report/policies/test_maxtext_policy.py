"""A plan as MaxText's settings: the tensors that MaxText knows, and no others."""

from __future__ import annotations

import pytest

from helpers.planned_calls import block, plan_of
from memplan.errors import UsageError
from memplan.report.policies.layers import layers
from memplan.report.policies.maxtext_policy import (
    CONTEXT,
    INPUT,
    RULES,
    maxtext_key,
    maxtext_policy,
)
from memplan.report.policies.plan_calls import planned_calls

BASE_YML = frozenset(
    {
        "decoder_layer_input",
        "context",
        "mlpwi",
        "mlpwi_0",
        "mlpwi_1",
        "mlpwo",
        "moe_mlpwi_0",
        "moe_mlpwi_1",
        "moe_mlpwo",
        "query_proj",
        "key_proj",
        "value_proj",
        "kv_proj",
        "qkv_proj",
        "out_proj",
        "query_wa_proj",
        "kv_wa_proj",
        "mla_q",
        "mla_kv",
        "attention_out",
        "engram",
    }
)
"""The tensors of a custom policy in the ``base.yml`` of MaxText 0.2.5."""


def settings(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {key: value.strip("'") for key, value in (line.split(": ") for line in lines)}


def test_every_name_is_one_of_maxtext() -> None:
    assert {INPUT, CONTEXT, *(key for key, _ in RULES)} <= BASE_YML


def test_one_policy_for_all_layers() -> None:
    kept = ("attn/qkv linear 0", "attn matmul 1", "mlp/0 linear 0")
    rows = (*block("blocks.0", kept), *block("blocks.1", kept[:2]), *block("blocks.2", kept))
    policy = maxtext_policy(plan_of(*rows))
    assert settings(policy.text) == {
        "remat_policy": "custom",
        "decoder_layer_input": "device",
        "qkv_proj": "device",
        "context": "device",
        "mlpwi": "remat",
    }
    assert any("layers differ in mlpwi" in note for note in policy.notes)


def test_what_goes_to_the_host_is_offloaded() -> None:
    rows = [(f"layers.{k}/self_attn/q_proj linear 0", "offloaded") for k in range(2)]
    assert settings(maxtext_policy(plan_of(*rows)).text)["query_proj"] == "offload"


def test_what_maxtext_does_not_name_is_told() -> None:
    rows = (*block("blocks.0", ("attn softmax 0",)),)
    notes = maxtext_policy(plan_of(*rows)).notes
    assert any("no tensor of MaxText: blocks.0.attn.softmax" in note for note in notes)


@pytest.mark.parametrize(
    ("call", "key"),
    [
        ("model/layers.0/self_attn/q_proj linear 0", "query_proj"),
        ("model/layers.0/self_attn/v_proj mm 0", "value_proj"),
        ("model/layers.0/self_attn/o_proj linear 0", "out_proj"),
        ("model/layers.0/self_attn scaled_dot_product_attention 0", "context"),
        ("model/layers.0/mlp/gate_proj linear 0", "mlpwi_0"),
        ("model/layers.0/mlp/up_proj linear 0", "mlpwi_1"),
        ("model/layers.0/mlp/down_proj linear 0", "mlpwo"),
        ("blocks.0/attn/proj linear 0", "out_proj"),
        ("h.0/attn/c_proj linear 0", "out_proj"),
        ("h.0/mlp/c_proj linear 0", "mlpwo"),
        ("h.0/mlp/c_fc linear 0", "mlpwi"),
        ("blocks.0/attn matmul 0", None),
        ("blocks.0/attn matmul 1", "context"),
        ("blocks.0/mlp/1 gelu 0", None),
        ("blocks.0/other linear 0", None),
    ],
)
def test_names_of_usual_models(call: str, key: str | None) -> None:
    ((layer,),) = [layers(planned_calls(plan_of((call, "kept"))))]
    assert maxtext_key(layer.calls[0]) == key


def test_a_plan_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="no call of the plan is one of MaxText's"):
        maxtext_policy(plan_of(("features.0 conv2d 0", "kept")))
