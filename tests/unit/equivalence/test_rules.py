"""Rules of the proof beyond those of copies (``test_laws``), and what looks like them."""

from pathlib import Path

import onnx
import pytest

from helpers.graphs import parse
from helpers.laws import CONSTANTS, SYMBOLS, graph
from helpers.proofs import proof
from memplan.equivalence.prove import Side, prove
from memplan.equivalence.terms import Fact


def test_a_copy_of_something_else_is_not_its_input() -> None:
    assert not proof(graph("", "a"), graph("[n] b = Identity (other)")).proved


def transposed(first: str, second: str, shape: str = "3, 2, 5") -> str:
    return (
        f"g (float[{shape}] x) => (float[] y) {{ [m] c = Transpose <perm: ints = {first}> "
        f"(x) [n] b = Transpose <perm: ints = {second}> (c) [last] y = Exp (b) }}"
    )


def test_transposes_are_composed_in_their_order() -> None:
    """[2, 0, 1] three times is nothing; once after [1, 0, 2] is not once before it."""
    one = transposed("[2, 0, 1]", "[1, 0, 2]")
    assert proof(one, transposed("[0, 1, 2]", "[0, 2, 1]")).proved
    assert not proof(one, transposed("[1, 0, 2]", "[2, 0, 1]")).proved
    assert not proof(one, transposed("[0, 1, 2]", "[2, 1, 0]")).proved


@pytest.mark.parametrize("perms", [("[0, 1, 2]", "[0, 3, 1, 2]"), ("[1, 0, 2]", "[0, 3, 1]")])
def test_a_permutation_of_other_axes_is_followed_by_no_rule(perms: tuple[str, str]) -> None:
    one, other = (parse(transposed(*perms)) for _ in range(2))
    facts = {"x": Fact(1, (3, 2, 5))}
    assert prove(Side(one, Path(), facts), Side(other, Path())).proved


def test_a_permutation_that_is_a_number_is_followed_by_no_rule() -> None:
    """Found by the fuzzer of proofs: a TypeError."""
    one, other = transposed("[1, 0, 2]", "[1, 0, 2]"), transposed("[1, 0, 2]", "[1, 0, 2]")
    model = parse(other)
    model.graph.node[1].attribute[0].CopyFrom(onnx.helper.make_attribute("perm", 1))
    assert not proof(one, model).proved


def test_sizes_that_the_other_file_states_are_not_believed() -> None:
    """A file may state any shape; only what is known of the reference counts."""
    first = graph("", "a", SYMBOLS)
    second = graph("[n] b = Expand (a, shape)", "b", SYMBOLS)
    lying = second.replace(f"<{CONSTANTS}>", f"<float[2, 3] a, {CONSTANTS}>")
    assert not proof(first, lying, {"N": 2}).proved


def test_a_view_of_a_computed_shape_has_the_shape_that_is_known() -> None:
    first = graph("[s] s = Shape (other) [n] b = Reshape (a, s) [o] c = Exp (b)", "c")
    assert proof(first, graph("[o] c = Exp (a)", "c")).proved
    assert proof(first, first).proved


ITSELF = "[t] t = Shape (a) [n] b = Reshape (a, t)"
FENCE = """[s] s = Shape <start: int = 0, end: int = 0> (other) [t] t = Shape (a)
 [c] c = Concat <axis: int = 0> (s, t) [n] b = Reshape (a, c)"""


@pytest.mark.parametrize("shape", ["2, 3", SYMBOLS, "N, M"])
@pytest.mark.parametrize(
    "nodes", [ITSELF, ITSELF.replace("Reshape", "Reshape <allowzero: int = 1>"), FENCE]
)
def test_in_the_shape_that_it_has_a_tensor_is_itself(nodes: str, shape: str) -> None:
    """Whatever the sizes and the rank are."""
    dims = {name: 2 for name in "NM" if name in shape}
    plain, same = graph("", "a", shape), graph(nodes, "b", shape)
    for first, second in ((plain, same), (same, plain)):
        found = proof(first, second, dims)
        assert found.proved, found.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Shape (a)", "Shape (other)"),
        ("Shape (a)", "Shape <end: int = 1> (a)"),
        ("Shape (a)", "Shape <start: int = 1> (a)"),
        ("Shape (a)", "com.microsoft.Shape (a)"),
        ("Reshape (a, ", "Reshape (other, "),
        ("end: int = 0", "end: int = 1"),
        ("end: int = 0", "end: int = -1"),
        ("Concat <axis: int = 0> (s, t)", "Concat <axis: int = 0> (t, t)"),
        ("Concat <axis: int = 0> (s, t)", "Add (t, t)"),
    ],
)
def test_in_another_shape_it_is_not(old: str, new: str) -> None:
    assert FENCE.count(old) == 1
    plain = graph("", "a", "N, M")
    assert not proof(plain, graph(FENCE.replace(old, new), "b", "N, M"), {"N": 2, "M": 2}).proved


def test_what_is_repeated_is_not_what_it_is_made_of() -> None:
    row = "[m] c = ReduceMax (a, zero) "
    for repeated in ("Expand (c, shape)", "Expand (c, turned)", "Tile (c, twice)"):
        second = graph(f"{row} [n] b = {repeated}")
        assert not proof(graph(row, "c"), second).proved, repeated
    assert proof(graph(row, "c"), graph(f"{row} [n] b = Expand (c, three)")).proved


def test_axes_that_are_computed_are_not_taken_for_none() -> None:
    more = ", int64[1] axes"
    squeezed = "[m] c = Unsqueeze (a, {0}) [d] d = Unsqueeze (c, {0}) [n] b = Squeeze (d{1})"
    first = graph(squeezed.format("zero", ""), more=more)
    assert proof(first, first).proved
    assert not proof(first, graph(squeezed.format("zero", ", axes"), more=more)).proved
    for op, given in (("Slice", "zero, nine, axes"), ("Slice", "zero, nine, zero, axes")):
        sliced = graph(f"[n] b = {op} (a, {given})", more=more)
        assert not proof(graph("", "a", more=more), sliced).proved


OLD = '<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'


def test_dropout_before_its_mode_was_an_input_is_inference() -> None:
    """Up to opset 6 a test mode was an attribute, and nothing is concluded."""
    text = "[n] b = Dropout <ratio: float = 0.5> (a)"
    short = "g (float[2, 3] x) => (float[2, 3] y) { [first] a = Exp (x) %s [last] y = Log (%s) }"
    for opset, proved in ((10, True), (7, True), (6, False)):
        header = OLD.format(opset=opset)
        first, second = header + short % ("", "a"), header + short % (text, "b")
        assert proof(second, first).proved == proved, opset


# --- a Dropout that is rebuilt from its mask -------------------------------------------------

STEP = """g (float[2, 3] x, float[2, 3] other, float given, bool mode)
 => (float[2, 3] y, float[2, 3] z)
<float ratio = {{0.25}}, bool yes = {{1}}, bool no = {{0}}, float share = {{0.75}},
 float flip = {{1.3333334}}, float half = {{0.5}}, float quarter = {{0.25}},
 float[1] row = {{0.75}}>
{{ [first] a = Exp (x) [second] e = Exp (other)
   [drop] d, mask = Dropout <seed: int = 3> (a, {ratio}, {mode})
   [more] d2, mask2 = Dropout <seed: int = 4> (a, {ratio}, {mode})
   [test] above = Greater (a, other)
   [y] y = Log (d) [u] u = Log (d2) {rebuilt} [z] z = Neg ({read}) }}"""
RIGHT = "[k] m = Cast <to: int = 1> (mask) [p] p = Mul (m, a) [q] q = Div (p, share)"


def rebuilt(nodes: str, ratio: str = "ratio", mode: str = "yes", provider: str = "cpu") -> bool:
    first = STEP.format(ratio=ratio, mode=mode, rebuilt="", read="d")
    second = STEP.format(ratio=ratio, mode=mode, rebuilt=nodes, read="q")
    return proof(first, second, provider=provider).proved


@pytest.mark.parametrize(
    ("scaled", "provider"), [("Div (p, share)", "cpu"), ("Mul (p, flip)", "cuda")]
)
def test_dropout_is_what_its_mask_makes_as_the_provider_does(scaled: str, provider: str) -> None:
    """Divided by the share on the CPU, times its inverse on CUDA: the last bits differ."""
    nodes = RIGHT.replace("Div (p, share)", scaled)
    assert rebuilt(nodes, provider=provider)
    assert not rebuilt(nodes, provider={"cpu": "cuda", "cuda": "cpu"}[provider])


def test_the_ratio_of_dropout_is_a_half_unless_given() -> None:
    assert rebuilt(RIGHT.replace("share", "half"), ratio='""')
    assert not rebuilt(RIGHT, ratio='""')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(mask)", "(mask2)"),
        ("(mask)", "(above)"),
        ("(m, a)", "(m, e)"),
        ("(m, a)", "(m, d)"),
        ("(m, a)", "(m, m)"),
        ("Div (p, share)", "Div (p, quarter)"),
        ("Div (p, share)", "Mul (p, share)"),
        ("Div (p, share)", "Div (p, flip)"),
        ("Div (p, share)", "Div (p, row)"),
        ("Div (p, share)", "Div (p, given)"),
        ("Div (p, share)", "Identity (p)"),
        ("Mul (m, a)", "Add (m, a)"),
        ("Mul (m, a)", "com.microsoft.Mul (m, a)"),
        ("to: int = 1>", "to: int = 10>"),
    ],
)
def test_dropout_is_not_what_another_product_makes(old: str, new: str) -> None:
    assert RIGHT.count(old) == 1
    assert not rebuilt(RIGHT.replace(old, new))


@pytest.mark.parametrize("given", [{"mode": "no"}, {"mode": "mode"}, {"ratio": "given"}])
def test_the_mask_says_nothing_unless_dropout_drops_a_known_share(given: dict[str, str]) -> None:
    assert not rebuilt(RIGHT, **given)


def test_the_mask_of_another_operator_says_nothing() -> None:
    """Of the same inputs and outputs as Dropout."""
    known = {"a": Fact(1, (2, 3))}
    texts = [
        STEP.format(ratio="ratio", mode="yes", rebuilt=nodes, read=read)
        for nodes, read in (("", "d"), (RIGHT, "q"))
    ]
    for operator, proved in (("Dropout", True), ("com.acme.Dropout", False)):
        first, second = (parse(t.replace("mask = Dropout", f"mask = {operator}")) for t in texts)
        assert prove(Side(first, Path(), known), Side(second, Path())).proved == proved


def test_an_axis_that_is_added_twice_is_followed_by_no_rule() -> None:
    """No runtime takes that, but a file may have it; the proof never raises."""
    text = "g (float[2, 3] a) => (float[1, 2, 3] y) <int64[2] x = {0, 0}> { y = Unsqueeze (a, x) }"
    first = Side(parse(text), Path(), {"a": Fact(1, (2, 3))})
    assert prove(first, Side(parse(text), Path())).proved


def test_a_fence_adds_no_axis() -> None:
    """Axes that are computed have no elements: a product of a size and nothing."""
    fence = "[s] s = Size (other) [m] axes = Mul (s, empty) [n] b = Unsqueeze (a, axes)"
    text = graph(fence).replace(CONSTANTS, f"{CONSTANTS}, int64[0] empty = {{}}")
    plain = graph("", "a").replace(CONSTANTS, f"{CONSTANTS}, int64[0] empty = {{}}")
    assert proof(plain, text).proved
    for old, new in (("empty)", "zero)"), ("Mul (s, empty)", "Mul (s, s)")):
        assert not proof(plain, text.replace(old, new)).proved, new


def sized(made: str, known: str = "", shape: str = "2, 3") -> str:
    """A graph that adds to the sizes ``s`` that ``made`` asks for, or that are ``known``."""
    given = f"<int64[K] s = {{{known}}}>".replace("K", str(len(known.split(",")))) if known else ""
    return (
        f"g (float[{shape}] x, int64[1] z) => (float[] y, int64[] t) {given} "
        f"{{ [first] y = Exp (x) {made} [last] t = Add (s, z) }}"
    )


@pytest.mark.parametrize(
    ("asked", "known", "wrong"),
    [
        ("[n] s = Shape (y)", "2, 3", "3, 2"),
        ("[n] s = Shape <end: int = 1> (y)", "2", "3"),
        ("[n] s = Shape <start: int = -1> (y)", "3", "2"),
        ("[n] s = Shape <start: int = 1, end: int = 9> (y)", "3", "2, 3"),
    ],
)
def test_sizes_that_every_run_has_are_constants(asked: str, known: str, wrong: str) -> None:
    assert proof(sized(asked), sized("", known)).proved
    assert not proof(sized(asked), sized("", wrong)).proved
    dims = {"N": 2, "M": 3}
    assert not proof(sized(asked, shape="N, M"), sized("", known, shape="N, M"), dims).proved


def test_so_is_how_many_elements_there_are() -> None:
    size, six = "[n] s = Size (y)", sized("", "6").replace("int64[1] s = {6}", "int64 s = {6}")
    assert proof(sized(size), six).proved
    assert not proof(sized(size), six.replace("{6}", "{5}")).proved
    assert not proof(sized(size, shape="N, 3"), six.replace("[2, 3]", "[N, 3]"), {"N": 2}).proved


@pytest.mark.parametrize(
    ("removed", "last"),
    [
        ("[q] p = Slice(a, zero, one, zero) [r] b = Squeeze(p, zero) [v] c = Reshape(b, six)", "p"),
        ("[q] p = Flatten(a) [v] c = Reshape(p, six)", "a"),
    ],
)
def test_a_view_of_a_view_of_a_slice_is_one(removed: str, last: str) -> None:
    """What ViT and Swin make of their queries; also where no shape is known."""
    head = """g (float[2, 6] x) => (float[6] y)
     <int64[1] zero = {0}, int64[1] one = {1}, int64[1] six = {6}>"""
    if last == "a":
        head = head.replace("float[2, 6] x", "float[N, 6] x")
    before = f"{head} {{ [first] a = Exp(x) {removed} [last] y = Log(c) }}"
    after = before.replace("Reshape(b,", f"Reshape({last},").replace(
        "Reshape(p,", f"Reshape({last},"
    )
    for unread in (" [r] b = Squeeze(p, zero)", " [q] p = Flatten(a)"):
        after = after.replace(unread, "")
    if last == "a":
        found = prove(Side(parse(before), Path()), Side(parse(after), Path()))
    else:
        found = proof(before, after)
    assert found.proved, found.reason


def test_whole_numbers_are_a_constant_however_they_are_written() -> None:
    head = "g (float[2, 3] x) => (float[6] y)"
    first = head + " { s = Constant <value_ints = [6]>() y = Reshape(x, s) }"
    second = head + " <int64[1] t = {6}> { y = Reshape(x, t) }"
    assert proof(first, second).proved
    assert proof(second, first).proved
