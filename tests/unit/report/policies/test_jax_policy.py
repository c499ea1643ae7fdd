"""A plan as names for JAX: what has a saved name is not computed again."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.planned_calls import block, plan_of
from memplan.errors import UsageError
from memplan.report.policies.jax_policy import jax_policy

KEPT = ("attn/qkv linear 0", "mlp/0 linear 0")


def run(text: str) -> dict[str, Any]:
    pytest.importorskip("jax")
    scope: dict[str, Any] = {}
    exec(compile(text, "policy", "exec"), scope)
    return scope


def test_layers_with_the_same_decisions_share_a_policy() -> None:
    text = jax_policy(plan_of(*block("blocks.0", KEPT), *block("blocks.1", KEPT))).text
    assert "('blocks.0', 'blocks.1'): (" in text
    assert "'attn.qkv.linear': 'linear of attn.qkv'," in text
    assert "gelu" not in text


def test_layers_that_differ_are_told() -> None:
    policy = jax_policy(plan_of(*block("blocks.0", KEPT), *block("blocks.1", ())))
    assert any("this plan has 2" in note for note in policy.notes)


def test_a_plan_without_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="no numbered module"):
        jax_policy(plan_of(("net linear 0", "recomputed")))


def test_jax_computes_again_what_has_no_saved_name() -> None:
    jax: Any = pytest.importorskip("jax")
    from jax._src.ad_checkpoint import saved_residuals
    from jax.ad_checkpoint import checkpoint_name
    from jax.numpy import ones, tanh

    rows = [
        row
        for k in range(2)
        for row in (
            (f"blocks.{k}/fc1 linear 0", "kept"),
            (f"blocks.{k}/act tanh 0", "recomputed"),
            (f"blocks.{k}/fc2 linear 0", "recomputed"),
        )
    ]
    scope = run(jax_policy(plan_of(*rows)).text)
    assert list(scope["NAMES"]) == ["fc1.linear"]

    def layer(weights: Any, x: Any) -> Any:
        x = checkpoint_name(x @ weights[0], "fc1.linear")
        x = checkpoint_name(tanh(x), "act.tanh")
        return checkpoint_name(tanh(x @ weights[1]), "fc2.linear")

    def loss(layers: Any, weights: Any, x: Any) -> Any:
        for each in layers:
            x = each(weights, x)
        return (x * x).sum()

    weights = [ones((8, 8)) * 0.1, ones((8, 8)) * 0.2]
    x = ones((4, 8))
    plain = [layer, layer]
    planned = [scope["remat"](layer, f"blocks.{k}") for k in range(2)]
    other = [scope["remat"](layer, "head")] * 2
    assert other == plain
    found, expected = (
        jax.value_and_grad(lambda w, run=run: loss(run, w, x))(weights) for run in (planned, plain)
    )
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), found, expected))

    def kept(layers: Any) -> list[str]:
        return [where for _, where in saved_residuals(lambda w: loss(layers, w, x), weights)]

    assert sum("fc1.linear" in where for where in kept(planned)) == 2
    assert not any("act.tanh" in where for where in kept(planned))
    assert any("tanh" in where for where in kept(plain))
