"""What selectors mean in a real graph, and what a plan makes of them."""

from pathlib import Path

import pytest

from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewriting import Rewrite, rewrite
from memplan.errors import UsageError
from memplan.units import parse_budget

GPT = Path(__file__).parents[3] / "sample_models" / "gpt_dropout.onnx"


def planned(budget: str = "100%", **selected: tuple[str, ...]) -> Rewrite:
    """A plan of the sample, by no search and without fusions, which would take the time."""
    options = RewriteOptions(parse_budget(budget), strategy="greedy", optimize="none", **selected)
    return rewrite(GPT, options, dry_run=True)


def recomputed(result: Rewrite) -> dict[str, list[str]]:
    """Operators that the plan makes again, by module, and of forward nodes alone."""
    found: dict[str, list[str]] = {}
    for row in result.record.tensors:
        if row.decision != "kept":
            found.setdefault(row.module or "", []).append(row.operator)
    return found


@pytest.fixture(scope="module")
def mlp() -> Rewrite:
    """With all that the MLPs make recomputed, at a budget that holds anyway."""
    return planned(recompute=("blocks.*.mlp :: *",))


def test_modules_are_recomputed_as_wholes(mlp: Rewrite) -> None:
    found = recomputed(mlp)
    assert found
    own = {m: ops for m, ops in found.items() if set(ops) != {"Reshape"}}  # views of what they read
    assert all(".mlp" in module for module in own)
    assert {module.split(".")[1] for module in own} == {"0", "1", "2", "3", "4", "5"}
    assert mlp.timeline.peak_bytes < mlp.original.timeline.peak_bytes


def test_a_note_says_what_became_of_a_selection(mlp: Rewrite) -> None:
    assert "--recompute 'blocks.*.mlp :: *': 42 tensors selected, 24 recomputed" in mlp.assumptions


def test_an_operator_of_modules_is_kept() -> None:
    """Softmax goes first at this budget; where it is kept, something else does."""
    free = recomputed(planned("60%"))
    assert any("Softmax" in operators for operators in free.values())
    kept = planned("60%", keep=("*.attn :: Softmax",))
    assert not any("Softmax" in operators for operators in recomputed(kept).values())
    assert "--keep '*.attn :: Softmax': 6 tensors selected, 0 recomputed" in kept.assumptions


def test_what_is_kept_and_recomputed_is_kept() -> None:
    both = planned(keep=("* :: Gelu",), recompute=("blocks.*.mlp :: *",))
    assert not any("Gelu" in operators for operators in recomputed(both).values())


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("block.*.mlp :: *", "no module of the forward part matches 'block.*.mlp'", "blocks.*"),
        ("* :: Sofmax", "no operator of the forward part matches 'Sofmax'", "Softmax"),
        ("blocks.*.mlp :: Softmax", "no operator in these modules matches", "operators there"),
        ("blocks.0.mlp", "no tensor or node of that name", "'blocks.0.mlp :: *'"),
    ],
)
def test_a_selector_that_matches_nothing_names_the_nearest(
    text: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        planned(recompute=(text,))
    assert message in caught.value.message
    assert hint in caught.value.hint
