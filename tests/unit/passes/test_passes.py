"""Passes: what each rule takes away, what it leaves alone, and what is reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.graphs import TUNED, graph_of, open_text, tensor, timeline_of
from helpers.models import SAMPLES
from helpers.running import Memplan, runner
from memplan.api.analyze import analyze
from memplan.api.rewrite.run import RewriteOptions, rewrite
from memplan.api.validate.interface import gone_names, gone_notes, some_names, without_inputs
from memplan.errors import UsageError
from memplan.ir.phases import find_phases
from memplan.ir.reach import needed_nodes, trained_outputs
from memplan.passes.base import Applied, lower, lower_or_equal
from memplan.passes.early_update import EarlyUpdate
from memplan.passes.elide import Elide, find_edits
from memplan.passes.manager import (
    NAMES,
    make_passes,
    parse_passes,
    recorded,
    removed,
    run_passes,
    without_order,
)
from memplan.passes.no_ops import Facts, same_value
from memplan.passes.order import Order
from memplan.passes.prune import Prune
from memplan.passes.schedule import early_order, in_order
from memplan.proto.metadata import get_metadata
from memplan.simulate.narrowing import narrowings
from memplan.simulate.opened import OpenModel, open_model
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import Timeline, simulate
from memplan.units import parse_size

MODEL = SAMPLES / "mlp_adamw.onnx"


@pytest.fixture
def inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    """Runs the program in this process."""
    return runner(tmp_path, monkeypatch, capfd)


def applied(text: str, *passes: object) -> OpenModel:
    """The model in ``text`` behind ``passes``."""
    model = open_text(text)
    return run_passes(model, simulate(model.graph, TUNED), passes)[-1].model  # type: ignore[arg-type]


def nodes(model: OpenModel) -> str:
    """Names of the nodes in order."""
    return " ".join(node.name for node in model.graph.nodes)


def one_node(node: str, constants: str = "", shape: str = "2, 3") -> str:
    """A graph in which ``[n] b = ...`` of ``a`` stands between two others."""
    return (
        f"g (float[{shape}] x) => (float[{shape}] y) <float unused = {{0}}{constants}> "
        f"{{ [first] a = Exp(x) {node} [last] y = Exp(b) }}"
    )


# --- Elide -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        ("[n] b = Identity(a)", ""),
        ("[n] b = Cast <to: int = 1>(a)", ""),
        ("[n] b = Concat <axis: int = 1>(a)", ""),
        ("[n] b = Sum(a)", ""),
        ("[n] b = Reshape(a, s)", ", int64[2] s = {2, 3}"),
        ("[n] b = Expand(a, s)", ", int64[2] s = {1, 3}"),
        ("[n] b = Tile(a, s)", ", int64[2] s = {1, 1}"),
        ("[n] b = Transpose <perm: ints = [0, 1]>(a)", ""),
        ("[n] b = Slice(a, s, e)", ", int64[2] s = {0, 0}, int64[2] e = {2, 9}"),
        (
            "[n] b = Slice(a, s, e, x0, t)",
            ", int64[1] s = {0}, int64[1] e = {9}, int64[1] x0 = {1}, int64[1] t = {1}",
        ),
        ("[n] b = Pad(a, s)", ", int64[4] s = {0, 0, 0, 0}"),
        ("[n] b = Dropout(a)", ""),
        ("[n] b = Dropout(a, r, t)", ", float r = {0.5}, bool t = {0}"),
        ("[n] b = Dropout(a, r, t)", ", float r = {0}, bool t = {1}"),
        ("[n] b = Split <axis: int = 0, num_outputs: int = 1>(a)", ""),
        ("[m] c = Unsqueeze(a, s) [n] b = Squeeze(c, s)", ", int64[1] s = {1}"),
        ("[m] c = Transpose(a) [n] b = Transpose(c)", ""),
    ],
)
def test_copies_that_copy_nothing_go(node: str, constants: str) -> None:
    model = applied(one_node(node, constants), Elide())
    assert nodes(model) == "first last"
    assert model.graph.nodes[1].inputs == model.graph.nodes[0].outputs
    # Constants that only the copies read go with them.
    assert [t.name for t in model.prepared.proto.graph.initializer] == ["unused"]


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        ("[n] b = Relu(a)", ""),
        ("[m] c = Cast <to: int = 11>(a) [n] b = Cast <to: int = 1>(c)", ""),
        ("[n] b = Max(a, unused)", ""),
        (
            "[n] b = Slice(a, s, e, x0, t)",  # backwards
            ", int64[1] s = {-1}, int64[1] e = {-9}, int64[1] x0 = {1}, int64[1] t = {-1}",
        ),
        ("[n] b = Pad(a, s)", ", int64[4] s = {0, 1, 0, -1}"),  # cuts what it adds
        ("[n] b = Dropout(a, r, t)", ", float r = {0.5}, bool t = {1}"),
        ("[m] t = Cast <to: int = 9>(unused) [n] b = Dropout(a, r, t)", ", float r = {0.5}"),
        ("[n] b, m = Dropout(a) [o] c = Cast <to: int = 1>(m) [p] q = Add(b, c)", ""),
    ],
)
def test_what_changes_a_bit_stays(node: str, constants: str) -> None:
    text = one_node(node, constants)
    text = text.replace("Exp(b) }", "Exp(q) }") if "q =" in node else text
    model = applied(text, Elide())
    assert nodes(model) == nodes(open_text(text))


def test_shapes_decide_only_where_they_are_exact() -> None:
    text = """g (float[N, 3] x) => (float[N, 3] y) <int64[2] s = {2, 3}>
        { [first] a = Exp(x) [n] b = Expand(a, s) [i] c = Identity(b) [last] y = Exp(c) }"""
    model = open_text(text, dims={"N": 2})
    # N is 2 here, but the file keeps its symbol; an Identity is one for any N.
    assert [edit.node for edit in find_edits(model)] == ["i"]
    facts = Facts(model.graph, {}, exact=True)
    assert same_value(facts, model.graph.nodes[1])


def test_a_chain_of_views_becomes_one() -> None:
    model = applied(
        """g (float[4, 6] x) => (float[3, 8] y, float[2, 4, 3] z)
        <int64[1] axis = {0}, int64[1] flat = {24}, int64[2] s = {3, 8},
         int64[3] copies = {0, 4, -1}, int64[2] rows = {2, 12}>
        { [first] a = Exp(x) [up] b = Unsqueeze(a, axis) [line] c = Reshape(b, flat)
          [end] d = Reshape(c, s) [other] e = Reshape(a, rows) [third] f = Reshape(e, copies)
          [p] y = Exp(d) [q] z = Exp(f) }""",
        Elide(),
    )
    # A 0 in the shape of 'third' stands for the dimension of what it reads.
    assert nodes(model) == "first end other third p q"
    assert tensor(model.graph, "d").shape == (3, 8)


def test_transposed_transposes_are_one() -> None:
    model = applied(
        """g (float[2, 3, 4] x) => (float[4, 2, 3] y)
        { [first] a = Exp(x) [one] b = Transpose <perm: ints = [1, 0, 2]>(a)
          [two] c = Transpose <perm: ints = [2, 1, 0]>(b) [last] y = Exp(c) }""",
        Elide(),
    )
    assert nodes(model) == "first two last"
    assert model.graph.nodes[1].attributes["perm"] == [2, 0, 1]


def test_names_of_the_interface_stay() -> None:
    text = """g (float[256] x) => (float[256] y, float[256] z, float[256] x2, float[256] w)
        { [first] a = Exp(x) [one] y = Identity(a) [two] z = Identity(a) [three] x2 = Identity(x)
          [four] w = Identity(y) [read] b = Exp(a) [sink] c = Exp(b) }"""
    model = applied(text, Elide())
    # 'a' can take over one name only; inputs and outputs keep theirs.
    assert nodes(model) == "first two three four read sink"
    assert [tensor(model.graph, n).producer for n in ("y", "z", "x2", "w")] == [0, 1, 2, 3]
    assert [v.name for v in model.prepared.proto.graph.output] == ["y", "z", "x2", "w"]


def test_what_dead_code_reads_stays_with_it() -> None:
    model = applied(
        """g (float[2, 3] x) => (float[2, 3] y)
        { [first] a = Exp(x) [one] b = Transpose(a) [two] c = Transpose(b) [last] y = Exp(c)
          [dead] d = Exp(b) }""",
        Elide(),
    )
    assert nodes(model) == "first one last dead"
    assert nodes(run_passes(model, simulate(model.graph, TUNED), [Prune()])[0].model) == (
        "first last"
    )


def test_what_a_body_or_a_mark_goes_by_stays() -> None:
    text = """g (float[4] x, bool c) => (float[4] y)
        { [first] a = Exp(x) [copy] b = Identity(a)
          [choose] y = If(c) <then_branch = t () => (float[4] p) { [t] p = Exp(b) },
                              else_branch = e () => (float[4] q) { [e] q = Exp(a) }> }"""
    assert nodes(applied(text, Elide())) == "first copy choose"
    proto = open_text(one_node("[n] b = Identity(a)")).prepared.proto
    proto.graph.node[1].metadata_props.add(key="memplan.checkpoint", value="true")
    model = open_text(proto)
    assert not find_edits(model)


def test_a_part_that_raises_the_peak_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import memplan.passes.elide as room

    text = one_node("[n] b0 = Identity(a) [m] c = Exp(b0) [k] b = Identity(c)")
    before = room.lower_or_equal

    def dear(after: Timeline, than: Timeline) -> bool:
        """As if it cost memory to take away 'n'."""
        return before(after, than) and any(node.name == "n" for node in after.graph.nodes)

    monkeypatch.setattr(room, "lower_or_equal", dear)
    assert nodes(applied(text, Elide())) == "first n m last"


def test_peaks_compare_with_workspace_first() -> None:
    low, high = (
        timeline_of("g (float[4] x) => (float[4] y) { [a] y = Exp(x) }"),
        timeline_of("g (float[4] x) => (float[4] y) { [a] b = Exp(x) [c] y = Exp(b) }"),
    )
    assert lower(low, high)
    assert lower_or_equal(low, low)
    assert not lower(low, low)
    assert not lower_or_equal(high, low)


# --- Prune -----------------------------------------------------------------------------------

STEP = """
g (float[4, 8] x, float[8, 8] enc.w, float[8, 8] dec.w, float[8, 8] enc.w.m, float[8, 8] dec.w.m,
   float count)
  => (float loss, float[8, 8] enc.w.new, float[8, 8] dec.w.new, float[8, 8] enc.w.m.new,
      float[8, 8] dec.w.m.new, float count.new)
<float one = {1}, int64[2] shape = {4, 8}>
{
  [enc] h = MatMul(x, "enc.w") [act] r = Relu(h) [dec] p = MatMul(r, "dec.w")
  [loss] loss = ReduceSum <keepdims: int = 0>(p)
  [seed] g = Expand(loss, shape) [gd] gd = Gemm <transA: int = 1>(r, g)
  [gr] gr = Gemm <transB: int = 1>(g, "dec.w") [sign] s = Sign(r) [gh] gh = Mul(gr, s)
  [ge] ge = Gemm <transA: int = 1>(x, gh)
  [tick] "count.new" = Add(count, one)
  [me] "enc.w.m.new" = Add("enc.w.m", ge) [de] de = Div("enc.w.m.new", "count.new")
  [ue] "enc.w.new" = Sub("enc.w", de)
  [md] "dec.w.m.new" = Add("dec.w.m", gd) [dd] dd = Div("dec.w.m.new", "count.new")
  [ud] "dec.w.new" = Sub("dec.w", dd)
}
"""


def dotted(text: str) -> str:
    """onnx.parser knows no dots in names: they are underlines there."""
    return text.replace('"', "").replace(".", "_") if "." in text else text


STEP = dotted(STEP)


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
    found = Prune(wrt).apply(model, simulate(model.graph, TUNED))
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


def test_dead_code_and_idle_results_go() -> None:
    text = """g (float[4] x) => (float[4] y) <float ratio = {0.5}, bool on = {1}, float two = {2}>
        { [a] y, mask = Dropout(x, ratio, on) [b] c = Mul(x, two) [d] e = Exp(c) }"""
    model = applied(text, Prune())
    assert nodes(model) == "a"
    assert list(model.prepared.proto.graph.node[0].output) == ["y"]
    assert [t.name for t in model.prepared.proto.graph.initializer] == ["ratio", "on"]
    found = Prune().apply(open_text(text), timeline_of(text))
    assert found.note == "2 nodes, 1 results that nobody reads"
    again = Prune().apply(model, simulate(model.graph, TUNED))
    assert again.model is model


def test_what_may_do_more_than_make_its_outputs_stays() -> None:
    text = """g (float[4] x, float[4] buffer) => (float[4] y) <bool[1] e>
        { [a] y = Exp(x) [b] c = Exp(x) [d] e = com.microsoft.InPlaceAccumulatorV2(buffer, c)
          [f] h = Exp(y) }"""
    assert nodes(applied(text, Prune())) == "a b d"


def test_needed_nodes() -> None:
    graph = graph_of(
        "g (float[4] x) => (float[4] y) { [a] b = Exp(x) [c] d = Exp(x) [e] y = Exp(d) }"
    )
    assert needed_nodes(graph, graph.outputs) == {1, 2}
    assert needed_nodes(graph, [tensor(graph, "b").id]) == {0}


# --- Order and early updates ------------------------------------------------------------------

TWO_WIDE = """g (float[1, 256] x) => (float[1, 256] y) <int64[1] axes = {0}>
    { [p] a = Concat <axis: int = 0>(x, x, x, x) [q] b = Concat <axis: int = 0>(x, x, x, x)
      [r] c = ReduceMax <keepdims: int = 1>(a, axes) [s] d = ReduceMax <keepdims: int = 1>(b, axes)
      [t] y = Add(c, d) }"""


def test_an_order_without_recomputation() -> None:
    model = applied(TWO_WIDE, Order(rounds=3))
    assert nodes(model) == "p r q s t"
    assert simulate(model.graph, TUNED).dynamic_peak_bytes == 6 * 1024
    assert applied(TWO_WIDE, Order(rounds=3), Order(rounds=3)) is not model
    assert nodes(applied(TWO_WIDE, Order(rounds=3), Order(rounds=3))) == "p r q s t"


def test_a_default_session_keeps_its_order() -> None:
    model = open_text(TWO_WIDE)
    timeline = simulate(model.graph, session_kind("default"))
    step = run_passes(model, timeline, [Order()])[0]
    assert step.model is model
    assert step.note == "a default session has an order of its own"


def test_the_given_order_is_the_model_itself() -> None:
    model = open_text(TWO_WIDE)
    assert in_order(model, range(5)) is model
    assert nodes(in_order(model, [1, 0, 2, 3, 4])) == "q p r s t"


def test_updates_run_as_soon_as_their_gradients_are_there() -> None:
    model = open_text(STEP)
    place = {node.name: node.id for node in model.graph.nodes}
    updates = {place[name] for name in ("tick", "me", "de", "ue", "md", "dd", "ud")}
    order = [model.graph.nodes[n].name for n in early_order(model.graph, updates)]
    assert " ".join(order) == ("enc act dec loss seed gd md tick dd ud gr sign gh ge me de ue")
    step = run_passes(model, simulate(model.graph, TUNED), [EarlyUpdate()])[0]
    assert (nodes(step.model) == " ".join(order)) == step.changed


def test_without_an_optimizer_nothing_is_early() -> None:
    model = open_text(TWO_WIDE)
    found = EarlyUpdate().apply(model, simulate(model.graph, TUNED))
    assert found.model is model
    assert found.note == "no optimizer in the graph"


# --- All of them -----------------------------------------------------------------------------


def test_passes_by_name() -> None:
    assert parse_passes("all") == NAMES == ("elide", "prune", "order", "early-update")
    assert parse_passes("none") == ()
    assert parse_passes("order, elide") == ("elide", "order")
    with pytest.raises(UsageError, match="no pass 'fuse'") as caught:
        parse_passes("elide,fuse")
    assert caught.value.hint == "passes: elide, prune, order, early-update; or all, or none"
    with pytest.raises(UsageError, match="--passes leaves it out"):
        make_passes(("elide",), ("a",))
    assert [type(p) for p in make_passes(NAMES, ("a",), 1.5)] == [Elide, Prune, Order, EarlyUpdate]


def test_a_pass_that_raises_the_peak_is_undone() -> None:
    class Worse:
        name = "worse"

        def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
            return Applied(in_order(model, [0, 2, 1, 3, 4]))

    text = TWO_WIDE.replace("[q] b", "[w] b").replace("[r] c", "[v] c")
    model = open_text(text)
    better = in_order(model, [0, 2, 1, 3, 4])
    steps = run_passes(better, simulate(better.graph, TUNED), [Worse()])  # type: ignore[list-item]
    assert steps[0].model is better
    assert not steps[0].changed
    assert steps[0].note == "left out: a peak would rise"


def test_steps_record_what_is_gone() -> None:
    model = open_text(STEP)
    passes = [Elide(), Prune(("enc*",)), Order(rounds=2), EarlyUpdate()]
    steps = run_passes(model, simulate(model.graph, TUNED), passes)
    assert removed(steps) == {
        "removed_outputs": ["dec_w_new", "dec_w_m_new"],
        "removed_inputs": ["dec_w_m"],
    }
    assert recorded(steps) == {"passes": list(NAMES), **removed(steps)}
    assert recorded(steps[:1]) == {"passes": ["elide"]}
    kept = without_order(steps)
    assert [step.name for step in kept][:2] == ["elide", "prune"]
    assert not any(step.changed and step.name == "order" for step in kept)
    assert without_order(steps[:2]) == steps[:2]


def test_names_that_are_gone_in_a_file(tmp_path: Path) -> None:
    gone = gone_names({"removed_outputs": ["a", "b"], "removed_inputs": "none"})
    assert gone == {"input": (), "output": ("a", "b")}
    assert gone_notes(gone) == [
        "2 outputs are gone from the rewritten model (--wrt), so they are not compared: a, b"
    ]
    assert some_names([str(k) for k in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
    feeds = {"x": np.zeros(2), "m": np.ones(3)}
    archive = tmp_path / "inputs.npz"
    assert without_inputs(archive, feeds, ()) == archive
    with np.load(without_inputs(archive, feeds, ("m",))) as fewer:
        assert list(fewer) == ["x"]


# --- What a narrower --wrt would free ----------------------------------------------------------


def test_what_each_module_holds() -> None:
    text = dotted("""
    g (float[64, 64] x, float[64, 64] a.w, float[64, 64] b.w, float[64, 64] c.w)
      => (float loss, float[64, 64] a.w.grad, float[64, 64] b.w.grad, float[64, 64] c.w.grad)
    <int64[2] shape = {64, 64}>
    {
      [fa] ha = MatMul(x, "a.w") [fb] hb = MatMul(ha, "b.w") [fc] hc = MatMul(hb, "c.w")
      [loss] loss = ReduceSum <keepdims: int = 0>(hc) [seed] g = Expand(loss, shape)
      [gc] "c.w.grad" = Gemm <transA: int = 1>(hb, g)
      [gb0] eb = Gemm <transB: int = 1>(g, "c.w")
      [gb] "b.w.grad" = Gemm <transA: int = 1>(ha, eb)
      [ga0] ea = Gemm <transB: int = 1>(eb, "b.w")
      [ga] "a.w.grad" = Gemm <transA: int = 1>(x, ea)
    }""")
    model = open_text(text)
    timeline = simulate(model.graph, TUNED)
    # There: ha for b's gradient, hb for c's, the gradient g that all need, and c's gradient.
    assert model.graph.nodes[timeline.peak_step].name == "gc"
    kib = 1024
    found = [
        (n.module, n.freed_bytes // kib, n.freed_with_earlier_bytes // kib, n.stashes)
        for n in narrowings(timeline, model.phases)
    ]
    assert found == [
        ("a_w", 0, 0, ()),
        ("b_w", 16, 16, (("ha", 16 * kib),)),
        ("c_w", 32, 64, (("hb", 16 * kib),)),
    ]


def test_groups_of_one_are_not_worth_a_table() -> None:
    timeline = timeline_of(TWO_WIDE)
    assert narrowings(timeline, find_phases(timeline.graph)) == ()


def test_what_is_freed_is_what_prune_frees() -> None:
    # The peak stays at the same node here, so that figures at this step are those of the peak.
    analysis = analyze(MODEL)
    found = {item.module: item for item in narrowings(analysis.timeline, analysis.phases)}
    for module in ("layers.0", "layers.3"):
        rest = [m for m in found if m != module]
        model = open_model(MODEL)
        globs = tuple(p for m in rest for p in found[m].parameters)
        step = run_passes(model, analysis.timeline, [Prune(globs)])[0]
        saved = analysis.timeline.peak_bytes - step.timeline.peak_bytes
        assert saved == found[module].freed_bytes
    assert analysis.as_json()["narrowing"][0]["stashes"] == [{"name": "addmm", "nbytes": 16 << 20}]


# --- In rewrite ------------------------------------------------------------------------------


def options(budget: str, **more: object) -> RewriteOptions:
    return RewriteOptions(
        parse_size(budget), optimize="none", strategy="search{iterations=6}", **more
    )  # type: ignore[arg-type]


def test_the_waterfall_ends_where_the_file_is(tmp_path: Path) -> None:
    result = rewrite(MODEL, options("60%"), tmp_path / "out.onnx")
    names = [step.name for step in result.waterfall]
    assert names == ["original", "elide", "prune", "order", "early-update", "recompute"]
    first, last = result.waterfall[0], result.waterfall[-1]
    assert first.saved_bytes == 0
    assert last.timeline is result.timeline
    whole = first.timeline.peak_with_workspace_bytes - last.timeline.peak_with_workspace_bytes
    assert sum(step.saved_bytes for step in result.waterfall) == whole > 0
    assert next(step for step in result.waterfall if step.name == "order").saved_bytes > 0
    found = result.as_json()["passes"]
    assert isinstance(found, list)
    assert [row["name"] for row in found] == names
    assert sum(row["saved_bytes"] for row in found) == (
        first.timeline.peak_bytes - result.timeline.peak_bytes
    )
    assert get_metadata(onnx.load(tmp_path / "out.onnx"))["passes"] == list(NAMES)


def test_passes_can_be_left_away() -> None:
    result = rewrite(MODEL, options("100%", passes="none"), dry_run=True)
    assert [step.name for step in result.waterfall] == ["original", "recompute"]
    left = {node.name for node in result.timeline.graph.nodes}
    assert left == {node.name for node in result.original.graph.nodes}
    with pytest.raises(UsageError, match="no pass 'x'"):
        rewrite(MODEL, options("100%", passes="x"), dry_run=True)


def test_a_narrowed_file_is_validated_on_what_is_left(inside: Memplan, tmp_path: Path) -> None:
    found = inside(
        "rewrite",
        MODEL,
        "--budget",
        "60%",
        "--wrt",
        "head*",
        "--optimize",
        "none",
        "--strategy",
        "greedy",
        "--format",
        "json",
        "-o",
        "head.onnx",
    )
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert len(answer["removed_outputs"]) == 42
    assert len(answer["removed_inputs"]) == 28
    proof = inside("validate", MODEL, "head.onnx", "--runs", "1", "--no-plain", "--format", "json")
    assert proof.returncode == 0, proof.stderr
    answer = json.loads(proof.stdout)
    assert answer["equality"] == "bitwise"
    assert answer["compared_outputs"] == 8
    assert any("28 inputs are gone" in note for note in answer["notes"])
    assert any("42 outputs are gone" in note for note in answer["notes"])


def test_the_text_says_what_is_gone_and_what_was_saved(inside: Memplan) -> None:
    found = inside(
        "rewrite",
        MODEL,
        "--budget",
        "60%",
        "--wrt",
        "head*",
        "--optimize",
        "none",
        "--strategy",
        "greedy",
        "--dry-run",
    )
    assert "gone with --wrt, 42 outputs: layers.0.linear.weight.new, " in found.stdout
    assert " and 34 more" in found.stdout
    assert "fits by what is free alone" in found.stdout
    assert "A narrower --wrt would free" in inside("analyze", MODEL).stdout
