"""What elide takes away and leaves alone, beside the laws of copies (``equivalence/test_laws``)."""

import pytest
from onnx import helper

from helpers.graphs import TUNED, open_text, parse, tensor
from helpers.passes import applied, nodes
from memplan.ir.graph_facts import Facts
from memplan.passes.elide import Elide, find_edits
from memplan.passes.manager import (
    run_passes,
)
from memplan.passes.no_ops import same_value
from memplan.passes.prune import Prune
from memplan.proto.metadata import CHECKPOINT_KEY
from memplan.simulate.timeline import simulate


def one_node(node: str, constants: str = "", shape: str = "2, 3") -> str:
    """A graph in which ``[n] b = ...`` of ``a`` stands between two others."""
    return (
        f"g (float[{shape}] x) => (float[{shape}] y) <float unused = {{0}}{constants}> "
        f"{{ [first] a = Exp(x) {node} [last] y = Exp(b) }}"
    )


def test_shapes_decide_only_where_they_are_exact() -> None:
    text = """g (float[N, 3] x) => (float[N, 3] y) <int64[2] s = {2, 3}>
        { [first] a = Exp(x) [n] b = Expand(a, s) [i] c = Identity(b) [last] y = Exp(c) }"""
    model = open_text(text, dims={"N": 2})
    # N is 2 here, but the file keeps its symbol; an Identity is one for any N.
    assert [model.graph.nodes[edit.node].name for edit in find_edits(model)] == ["i"]
    facts = Facts(model.graph, {}, exact=True)
    assert same_value(facts, model.graph.nodes[1])


def test_a_chain_of_views_becomes_one() -> None:
    model = applied(
        """g (float[4, 6] x) => (float[3, 8] y, float[2, 4, 3] z)
        <int64[1] axis = {0}, int64[1] flat = {24}, int64[2] s = {3, 8},
         int64[3] copies = {0, 4, -1}, int64[2] rows = {2, 12}>
        { [line] c = Reshape(x, flat) [end] d = Reshape(c, s) [first] a = Exp(x)
          [up] b = Unsqueeze(a, axis) [other] e = Reshape(b, rows) [third] f = Reshape(e, copies)
          [p] y = Exp(d) [q] z = Exp(f) }""",
        Elide(),
    )
    # A 0 in the shape of 'third' stands for the dimension of what it reads.
    assert nodes(model) == "end first other third p q"
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


@pytest.mark.parametrize("before", ["acme.Op", "Transpose <perm: ints = [1, 0]>"])
def test_a_permutation_of_other_axes_is_left_alone(before: str) -> None:
    """Behind an operator that nobody knows, shapes are what the file states."""
    text = f"""<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
        g (float[3, 3] x) => (float[3, 3] y) <float[3, 3] a, float[3, 3] b, float[3, 3] c>
        {{ [first] a = acme.Op(x) [one] b = {before}(a) [two] c = Transpose <perm: ints = [1, 7]>(b)
          [last] y = Exp(c) }}"""
    assert nodes(applied(text, Elide())) == "first one two last"


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
    assert nodes(run_passes([Prune()], model, simulate(model.graph, TUNED))[0].model) == (
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


def test_a_checkpoint_keeps_its_name() -> None:
    """A copy that is a graph output would give its source its own name."""
    text = "g (float[4] x) => (float[4] y) { [first] a = Exp(x) [n] y = Identity(a) }"
    model = parse(text)
    assert nodes(applied(model, Elide())) == "first"
    helper.set_metadata_props(model.graph.node[0], {CHECKPOINT_KEY: "true"})
    assert nodes(applied(model, Elide())) == "first n"


@pytest.mark.parametrize("used", ["is an output", "is read"])
def test_a_node_stays_whose_other_output_is_used(used: str) -> None:
    """Dropout in inference is a copy, but its mask is wanted."""
    read = "[o] c = Identity(m)" if used == "is read" else ""
    output = "c" if used == "is read" else "m"
    model = open_text(
        f"g (float[4] x) => (float[4] y, bool[4] {output}) "
        f"{{ [first] a = Exp(x) [n] b, m = Dropout(a) {read} [last] y = Exp(b) }}"
    )
    assert "n" not in [model.graph.nodes[edit.node].name for edit in find_edits(model)]


def test_copies_of_a_constant_weight_stay_where_the_kernel_would_pack_it() -> None:
    """The same numbers as a constant are multiplied in another order."""
    text = """g (float[4,8] x) => (float[4,8] y, float[8,8] z) <float[8,8] w = {1, 2, 3, 4}> {
        [a] v = Identity (w) [b] u = Identity (v) [c] y = MatMul (x, u)
        [e] t = Identity (w) [f] z = Add (t, t) }"""
    model = open_text(text.replace("= {1, 2, 3, 4}", f"= {{{', '.join(map(str, range(64)))}}}"))
    found = Elide().apply(model, simulate(model.graph, TUNED)).model
    assert [node.name for node in found.graph.nodes if node.op == "Identity"] == ["b"]
