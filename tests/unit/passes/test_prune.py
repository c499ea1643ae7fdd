"""What prune takes away, with and without --wrt."""

import pytest

from helpers.graphs import TUNED, open_text, tensor
from helpers.passes import STEP, applied, nodes
from memplan.errors import UsageError
from memplan.ir.phases import find_phases
from memplan.ir.reach import trained_outputs
from memplan.passes.graph_pass import Applied
from memplan.passes.manager import run_passes
from memplan.passes.prune import Prune
from memplan.simulate.timeline import simulate


def test_what_an_output_is_there_for() -> None:
    model = open_text(STEP)
    owners = {
        model.graph.tensors[t].name: sorted(model.graph.tensors[p].name for p in found)
        for t, found in trained_outputs(model.graph, model.phases).items()
    }
    assert owners == {
        "enc_w_new": ["enc_w"],
        "dec_w_new": ["dec_w"],
        "enc_w_m_new": ["enc_w"],
        "dec_w_m_new": ["dec_w"],
        "count_new": ["dec_w", "enc_w"],
    }


@pytest.mark.parametrize(
    ("wrt", "outputs", "inputs", "left"),
    [
        (
            ("enc*",),
            "dec_w_new dec_w_m_new",
            "dec_w_m",
            "enc act dec loss seed gr sign gh ge tick me de ue",
        ),
        (("dec_w",), "enc_w_new enc_w_m_new", "enc_w_m", "enc act dec loss seed gd tick md dd ud"),
        (
            ("dec_w_new",),
            "enc_w_new enc_w_m_new dec_w_m_new count_new",
            "enc_w_m",
            "enc act dec loss seed gd tick md dd ud",
        ),
        (("*",), "", "", ""),
    ],
)
def test_only_the_wanted_gradients_stay(
    wrt: tuple[str, ...], outputs: str, inputs: str, left: str
) -> None:
    model = open_text(STEP)
    found = run_passes([Prune(wrt)], model, simulate(model.graph, TUNED))[0]
    assert " ".join(found.removed_outputs) == outputs
    assert " ".join(found.removed_inputs) == inputs
    if not left:
        assert found.model is model
        return
    assert nodes(found.model) == left
    names = {found.model.graph.tensors[t].name for t in found.model.phases.parameters}
    assert names == {name for name in ("enc_w", "dec_w") if any(name in o for o in left_of(found))}
    assert found.model.phases.loss == tensor(found.model.graph, "loss").id


def left_of(found: Applied) -> list[str]:
    """Outputs that stayed."""
    return [value.name for value in found.model.prepared.proto.graph.output]


def test_a_parameter_that_trains_no_more_is_none() -> None:
    model = open_text(STEP)
    found = Prune(("dec*",)).apply(model, simulate(model.graph, TUNED)).model
    assert {found.graph.tensors[t].name for t in found.phases.parameters} == {"dec_w"}
    assert {found.graph.tensors[t].name for t in found.phases.state} == {"dec_w_m", "count"}
    again = find_phases(found.graph)
    assert again.loss == found.phases.loss


def test_globs_that_match_nothing_are_errors() -> None:
    model = open_text(STEP)
    timeline = simulate(model.graph, TUNED)
    with pytest.raises(UsageError, match="--wrt head: no trained parameter") as caught:
        Prune(("dec*", "head")).apply(model, timeline)
    assert caught.value.hint == "parameters: dec_w, enc_w"
    plain = open_text("g (float[4] x) => (float[4] y) { [a] y = Exp(x) }")
    with pytest.raises(UsageError, match="no outputs that are gradients"):
        Prune(("*",)).apply(plain, simulate(plain.graph, TUNED))


def test_what_may_do_more_than_make_its_outputs_stays() -> None:
    text = """g (float[4] x, float[4] buffer) => (float[4] y) <bool[1] e>
        { [a] y = Dropout(x) [b] c, unread = Dropout(x)
          [d] e = com.microsoft.InPlaceAccumulatorV2(buffer, c) [f] h = Exp(y) }"""
    left = applied(text, Prune()).graph.nodes
    assert [(node.name, len(node.outputs)) for node in left] == [("a", 1), ("b", 1), ("d", 1)]
