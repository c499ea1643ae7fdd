"""Loops in the proof: a backward Scan that makes again what a forward one no longer stores.

All sizes are 4, so that no mistake shows in a shape.
"""

from typing import Any

import pytest

from helpers.proofs import proof

_HEAD = """g (float[4,4] x, float[4,4] other, float[4] h0, float[4] k0, float[4,4] w, float[4,4] r,
   float[4,4] g, bool flag) => (float[4] last, float[4] klast, float[4] dh, float[4,4] dz)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] minus = {-1},
 int64[1] less = {-2}, int64[1] end = {9223372036854775807}, float ratio = {0.5}, bool yes = {1}>
"""
_STEP = """[in] a = MatMul (xt, w) [rec] c = MatMul (h, r) [sum] z = Add (a, c)
    [act] next = Tanh (z) [slow] slow = Mul (k, z) [knext] knext = Sin (slow)
    [ho] hout = Identity (next) [ko] kout = Identity (knext)"""
_BACK = """[t] t = Sin (zt) [m] m = Mul (d, t) [dz] dzt = Add (m, gt) [dn] dnext = Mul (dzt, t)"""


def step(forwards: bool = True) -> str:
    """The step that stores ``z`` for every step; the forward loop may run from the end."""
    way, back = (0, 1) if forwards else (1, 0)
    return f"""{_HEAD} {{
  [forward] last, klast, zs = Scan <num_scan_inputs = 1, scan_input_directions = [{way}],
    scan_output_directions = [{way}], body = fbody
    (float[4] h, float[4] k, float[4] xt)
      => (float[4] next, float[4] knext, float[4] zout)
      {{ {_STEP} [zo] zout = Identity (z) }}> (h0, k0, x)
  [backward] dh, dz = Scan <num_scan_inputs = 2, scan_input_directions = [{back}, {back}],
    scan_output_directions = [{back}], body = bbody
    (float[4] d, float[4] gt, float[4] zt) => (float[4] dnext, float[4] dzt)
      {{ {_BACK} }}> (h0, g, zs)
}}"""


def again(forwards: bool = True) -> str:
    """The step that stores the states instead, and makes ``z`` again from them."""
    way, back = (0, 1) if forwards else (1, 0)
    cut = "(hs, zero, minus, zero)" if forwards else "(hs, one, end, zero)"
    joined = "(first, cut)" if forwards else "(cut, first)"
    return f"""{_HEAD} {{
  [forward] last, klast, hs, ks = Scan <num_scan_inputs = 1, scan_input_directions = [{way}],
    scan_output_directions = [{way}, {way}], body = fbody
    (float[4] h, float[4] k, float[4] xt)
      => (float[4] next, float[4] knext, float[4] hout, float[4] kout)
      {{ {_STEP} }}> (h0, k0, x)
  [first] first = Unsqueeze (h0, zero)
  [cut] cut = Slice {cut}
  [join] prev = Concat <axis: int = 0> {joined}
  [backward] dh, dz = Scan <num_scan_inputs = 3,
    scan_input_axes = [0, 0, 0], scan_input_directions = [{back}, {back}, {back}],
    scan_output_axes = [0], scan_output_directions = [{back}], body = bbody
    (float[4] d, float[4] gt, float[4] xt, float[4] ht) => (float[4] dnext, float[4] dzt)
      {{ [in2] a2 = MatMul (xt, w) [rec2] c2 = MatMul (ht, r) [sum2] zt = Add (a2, c2) {_BACK} }}>
    (h0, g, x, prev)
}}"""


BOTH = pytest.mark.parametrize("forwards", [True, False], ids=["forwards", "from the end"])


@BOTH
def test_what_a_step_makes_again_is_what_was_stored(forwards: bool) -> None:
    found = proof(step(forwards), again(forwards))
    assert found.proved, (found.reason, found.assumed)
    assert proof(step(forwards), step(forwards)).proved
    assert proof(again(forwards), again(forwards)).proved


def test_a_loop_from_the_end_is_another() -> None:
    assert not proof(step(True), step(False)).proved
    assert not proof(step(True), again(False)).proved


def test_what_was_stored_is_read_along_its_axis() -> None:
    across = step().replace(
        "num_scan_inputs = 2,", "num_scan_inputs = 2, scan_input_axes = [0, 1],"
    )
    assert across != step()
    assert not proof(step(), across).proved
    assert not proof(again(), across).proved


WRONG = {
    "the states after the steps": ("g, x, prev)", "g, x, hs)"),
    "the states of another state": ("Slice (hs,", "Slice (ks,"),
    "another initial state": ("Unsqueeze (h0,", "Unsqueeze (k0,"),
    "another sequence": ("g, x, prev)", "g, other, prev)"),
    "sequences change places": ("g, x, prev)", "x, g, prev)"),
    "states and sequence change places": ("g, x, prev)", "g, prev, x)"),
    "the initial state comes last": ("(first, cut)", "(cut, first)"),
    "the first step is cut off": ("(hs, zero, minus, zero)", "(hs, one, end, zero)"),
    "two steps are cut off": ("(hs, zero, minus, zero)", "(hs, zero, less, zero)"),
    "nothing is cut off": ("(hs, zero, minus, zero)", "(hs, zero, end, zero)"),
    "one step is left": ("(hs, zero, minus, zero)", "(hs, zero, one, zero)"),
    "cut off at the wrong end": ("(hs, zero, minus, zero)", "(hs, minus, end, zero)"),
    "shifted by two": (
        "Concat <axis: int = 0> (first, cut)",
        "Concat <axis: int = 0> (first, first, cut)",
    ),
    "cut along another axis": ("(hs, zero, minus, zero)", "(hs, zero, minus, one)"),
    "joined along another axis": ("Concat <axis: int = 0>", "Concat <axis: int = 1>"),
    "the initial state is a column": ("Unsqueeze (h0, zero)", "Unsqueeze (h0, one)"),
    "an initial state that is not a row of it": (
        "Unsqueeze (h0, zero)",
        "com.microsoft.Unsqueeze (h0, zero)",
    ),
    "another operator joins": ("Concat <axis", "com.microsoft.Concat <axis"),
    "another operator cuts": ("= Slice", "= com.microsoft.Slice"),
    "a sequence from the front": ("[1, 1, 1]", "[1, 0, 1]"),
    "states from the front": ("[1, 1, 1]", "[1, 1, 0]"),
    "gradients from the front": ("[1, 1, 1]", "[0, 1, 1]"),
    "all from the front": ("[1, 1, 1]", "[0, 0, 0]"),
    "a sequence along another axis": ("[0, 0, 0]", "[0, 1, 0]"),
    "states along another axis": ("[0, 0, 0]", "[0, 0, 1]"),
    "stacked along another axis": ("scan_output_axes = [0]", "scan_output_axes = [1]"),
    "stacked from the front": ("scan_output_directions = [1]", "scan_output_directions = [0]"),
    "states stored from the end": (
        "scan_output_directions = [0, 0]",
        "scan_output_directions = [1, 0]",
    ),
    "the loop reads from the end": ("scan_input_directions = [0]", "scan_input_directions = [1]"),
    "the loop starts elsewhere": ("(h0, k0, x)", "(h0, h0, x)"),
    "initial states change places": ("(h0, k0, x)", "(k0, h0, x)"),
    "the loop reads something else": ("(h0, k0, x)", "(h0, k0, other)"),
    "the backward loop starts elsewhere": ("(h0, g, x, prev)", "(k0, g, x, prev)"),
    "states change places": (
        "=> (float[4] next, float[4] knext,",
        "=> (float[4] knext, float[4] next,",
    ),
    "a state is handed on": (
        "=> (float[4] next, float[4] knext,",
        "=> (float[4] h, float[4] knext,",
    ),
    "another state is stored": ("float[4] hout, float[4] kout)", "float[4] kout, float[4] hout)"),
    "the state before is stored": ("float[4] hout, float[4] kout)", "float[4] h, float[4] kout)"),
    "a product with another weight": ("[in2] a2 = MatMul (xt, w)", "[in2] a2 = MatMul (xt, r)"),
    "a product is another": ("[rec2] c2 = MatMul (ht, r)", "[rec2] c2 = MatMul (r, ht)"),
    "a sum is a product": ("[sum2] zt = Add", "[sum2] zt = Mul"),
    "a term is dropped": ("Add (a2, c2)", "Add (a2, a2)"),
    "the step changes": ("next = Tanh (z)", "next = Sin (z)"),
    "the other state's step changes": ("Mul (k, z)", "Mul (h, z)"),
    "the backward step changes": ("Sin (zt)", "Cos (zt)"),
    "the backward state is another": ("(float[4] dnext,", "(float[4] d,"),
    "the gradient is not added": ("Add (m, gt)", "Add (m, d)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_not_proved(name: str) -> None:
    old, new = WRONG[name]
    text = again()
    assert text.count(old) == 1 or name == "the loop reads from the end", text.count(old)
    found = proof(step(), text.replace(old, new))
    assert not found.proved
    assert not proof(again(), text.replace(old, new)).proved


WRONG_FROM_THE_END = {
    "cut off at the wrong end": ("(hs, one, end, zero)", "(hs, zero, minus, zero)"),
    "joined in the wrong order": ("(cut, first)", "(first, cut)"),
    "two are cut off": ("(hs, one, end, zero)", "(hs, two, end, zero)"),
    "cut short": ("(hs, one, end, zero)", "(hs, one, two, zero)"),
    "the same way": ("input_directions = [0, 0, 0]", "input_directions = [1, 1, 1]"),
    "states from the end": ("input_directions = [0, 0, 0]", "input_directions = [0, 0, 1]"),
}


@pytest.mark.parametrize("name", WRONG_FROM_THE_END)
def test_a_wrong_loop_from_the_end_is_not_proved(name: str) -> None:
    old, new = WRONG_FROM_THE_END[name]
    assert again(False).count(old) == 1
    assert not proof(step(False), again(False).replace(old, new)).proved


def test_a_loop_of_another_length_is_another() -> None:
    """A loop that counts its steps, over one of two sequences whose lengths are not known."""
    text = """g (float[N,2] x, float[M,2] y, float c0) => (float c) <float one = {1}> {
      [used] z = Exp (x) [used2] v = Exp (y)
      [loop] c = Scan <num_scan_inputs = 1, body = b (float n, float[2] t) => (float m)
        { [add] m = Add (n, one) }> (c0, %s) }"""
    dims = {"N": 3, "M": 5}
    assert proof(text % "x", text % "x", dims).proved
    assert not proof(text % "x", text % "y", dims).proved
    known = text.replace("N,2", "3,2").replace("M,2", "5,2")
    assert not proof(known % "x", known % "y").proved
    # As many steps, and the sequences are not read.
    assert proof(known.replace("5,2", "3,2") % "x", known.replace("5,2", "3,2") % "y").proved


def test_stacks_of_a_loop_of_unknown_length_are_not_looked_into() -> None:
    """Its steps may be more than the other loop's."""
    text = step().replace("float[4,4] x", "float[N,4] x").replace("float[4,4] g,", "float[N,4] g,")
    other = (
        again().replace("float[4,4] x", "float[N,4] x").replace("float[4,4] g,", "float[N,4] g,")
    )
    text, other = (t.replace("float[4,4] dz)", "float[N,4] dz)") for t in (text, other))
    assert proof(text, text, {"N": 4}).proved
    assert not proof(text, other, {"N": 4}).proved


# --- products of whole sequences ---------------------------------------------------------------


def product(
    before: str, inside: str, read: str, steps: int = 4, rows: int = 4, kind: str = "float"
) -> str:
    """A loop over so many steps of so many rows, whose body makes ``p`` of what it reads."""
    step, cube = f"{kind}[{rows},4]", f"{steps}, {rows}, 4"
    return f"""g ({kind}[{cube}] x, {kind}[{cube}] v, {kind}[4,4] w, {kind}[4,4] r, {kind}[4] b,
  {step} h0) => ({step} last, {kind}[{cube}] ys)
  <int64[2] flat = {{{steps * rows}, 4}}, int64[3] cube = {{{cube}}}> {{
  {before}
  [loop] last, ys = Scan <num_scan_inputs = 1, body = s ({step} h, {step} t)
    => ({step} n, {step} o) {{ {inside} [add] n = Tanh (p) [out] o = Add (n, h) }}>
    (h0, {read}) }}"""


def hoisted(made: str, **sizes: Any) -> str:
    """The product of the whole sequence ahead of the loop."""
    return product(made, "[i] p = Identity (t)", "q", **sizes)


_MADE, _ROW = "[m] q = MatMul (x, w)", "[m] p = MatMul (t, w)"
_INSIDE = product("", _ROW, "x")


def test_a_row_of_a_product_is_the_product_of_a_row() -> None:
    assert proof(hoisted(_MADE), _INSIDE).proved


@pytest.mark.parametrize("sizes", [{"rows": 1}, {"kind": "double"}])
def test_products_of_one_row_or_not_of_float32_are_not_looked_into(sizes: dict[str, Any]) -> None:
    """The runtime's kernel is another, and so are the last bits."""
    assert not proof(hoisted(_MADE, **sizes), product("", _ROW, "x", **sizes)).proved


def test_a_loop_that_reads_something_else_is_not_assumed() -> None:
    """The body may differ, what it reads may not."""
    assert proof(_INSIDE, hoisted("[m] q = MatMul (v, w)")).reason == (
        "the loop 'loop' has another body, and reads 'q' as input 1, which the original's does not "
        "in this way"
    )


def test_a_loop_that_reads_one_sequence_in_place_of_another_is_not_assumed() -> None:
    text = """g (float[4,4] x, float[4,4] y, float[4] h0) => (float[4] last) {
      [loop] last = Scan <num_scan_inputs = 2, body = b (float[4] h, float[4] t, float[4] u)
        => (float[4] n) { [add] p = Add (t, u) [next] n = %s (p, h) }> (h0, x, %s) }"""
    found = proof(text % ("Add", "y"), text % ("Mul", "x"))
    assert found.reason == (
        "the loop 'loop' has another body, and reads 'x' as input 2, which the original's does not "
        "in this way"
    )
    assert "loop" in proof(text % ("Add", "y"), text % ("Mul", "y")).assumed


OTHER = ("(v, w)", "(x, r)", "(w, x)", "(x, v)")


@pytest.mark.parametrize("outside", [*(f"MatMul {read}" for read in OTHER), "Mul (x, w)"])
def test_a_row_of_another_product_is_not(outside: str) -> None:
    assert not proof(hoisted(f"[m] q = {outside}"), _INSIDE).proved


def test_a_row_of_an_operator_of_others_is_not() -> None:
    assert not proof(_INSIDE, hoisted("[m] q = com.microsoft.MatMul (x, w)")).proved


@pytest.mark.parametrize(
    ("sequence", "gemm", "proved"),
    [
        ("x", "<alpha: float = 1.5> (f, w, b)", True),
        ("x", "<alpha: float = 2.5> (f, w, b)", False),
        ("v", "<alpha: float = 1.5> (f, w, b)", False),
        ("x", "<alpha: float = 1.5> (f, w)", False),
        ("x", "<alpha: float = 1.5, transB: int = 1> (f, w, b)", False),
    ],
)
def test_a_row_of_a_gemm(sequence: str, gemm: str, proved: bool) -> None:
    made = f"[v] f = Reshape ({sequence}, flat) [m] y = Gemm {gemm} [u] q = Reshape (y, cube)"
    inside = product("", "[m] p = Gemm <alpha: float = 1.5> (t, w, b)", "x")
    assert proof(hoisted(made), inside).proved == proved


@pytest.mark.parametrize(("more", "proved"), [("", True), (", transA: int = 1", False)])
def test_a_row_of_a_transposed_matrix_is_none(more: str, proved: bool) -> None:
    """With ``transA`` a row of the product reads a column; all sizes are alike here."""
    gemm = f"Gemm <alpha: float = 1.5{more}>"
    made = f"[m] y = {gemm} (w, r, b) [u] q = Reshape (y, cube)"
    inside = f"[m] p = {gemm} (t, r, b)"
    square = product("[u] t3 = Reshape (w, cube)", inside, "t3", steps=2, rows=2)
    assert proof(hoisted(made, steps=2, rows=2), square).proved == proved


# --- what is no function of its inputs ---------------------------------------------------------

_DRAWING = """g (float[4,4] x, float[4] h0) => (float[4] last, float[4] dh)
<float ratio = {0.5}, bool yes = {1}> {
  [forward] last, ds = Scan <num_scan_inputs = 1, body = f (float[4] h, float[4] t)
     => (float[4] n, float[4] s)
     { [drop] d = Dropout <seed: int = 3> (t, ratio, yes) [add] n = Add (d, h)
       [o] s = Identity (d) }> (h0, x)
  [backward] dh = Scan <num_scan_inputs = 1, body = b (float[4] e, float[4] t) => (float[4] m)
     { %s [mul] m = Mul (e, u) }> (h0, %s) }"""


def test_a_draw_in_a_loop_is_stored_and_not_drawn_again() -> None:
    stored = _DRAWING % ("[i] u = Identity (t)", "ds")
    drawn = _DRAWING % ("[drop] u = Dropout <seed: int = 3> (t, ratio, yes)", "x")
    assert proof(stored, stored).proved
    assert not proof(stored, drawn).proved
    other = _DRAWING % ("[drop2] u = Dropout <seed: int = 3> (t, ratio, yes)", "x")
    assert not proof(stored, other).proved


def test_a_loop_with_a_draw_does_not_run_twice() -> None:
    stored = _DRAWING % ("[i] u = Identity (t)", "ds")
    loop = stored[stored.index("[forward]") : stored.index("[backward]")]
    for name in ("again", "forward"):
        twin = loop.replace("[forward] last, ds", f"[{name}] last2, ds2")
        twice = stored.replace("[backward]", f"{twin} [backward]").replace("(h0, ds)", "(h0, ds2)")
        assert not proof(stored, twice).proved


def test_another_draw_in_a_loop_is_another() -> None:
    stored = _DRAWING % ("[i] u = Identity (t)", "ds")
    for old, new in (("seed: int = 3", "seed: int = 4"), ("(t, ratio, yes)", "(h, ratio, yes)")):
        assert not proof(stored, stored.replace(old, new)).proved


def test_draws_of_loops_keep_their_order() -> None:
    """Without seeds of their own they take numbers from one stream."""
    loop = """[{0}] {0}o = Scan <num_scan_inputs = 1, body = {0}b (float[4] h, float[4] t)
      => (float[4] n) {{ [drop] d = Dropout{1} (t, ratio, yes) [add] n = Add (d, h) }}> (h0, x)"""
    head = "g (float[4,4] x, float[4] h0) => (float[4] ao, float[4] bo)"
    head += " <float ratio = {0.5}, bool yes = {1}>"
    for seed, proved in (("", False), (" <seed: int = 3>", True)):
        a, b = loop.format("a", seed), loop.format("b", seed)
        found = proof(f"{head} {{ {a} {b} }}", f"{head} {{ {b} {a} }}")
        assert found.reason is None
        assert found.proved == proved


def test_bodies_are_told_apart() -> None:
    """Branches inside a step: operator, attribute, order, and what they capture."""
    text = """g (float[4,4] x, float[4] h0, bool flag) => (float[4] last) {
      [loop] last = Scan <num_scan_inputs = 1, body = f (float[4] h, float[4] t) => (float[4] n) {
        [soft] s = Softmax <axis: int = 0> (t)
        [branch] c = If (flag) < then_branch = yes () => (float[4] u) { [a] u = Exp (s) },
          else_branch = no () => (float[4] v) { [b] v = Tanh (h) } >
        [add] n = Add (c, h) }> (h0, x) }"""
    assert proof(text, text).proved
    for old, new in (
        ("Exp (s)", "Exp (t)"),
        ("Exp (s)", "Log (s)"),
        ("Tanh (h)", "Tanh (t)"),
        ("axis: int = 0", "axis: int = -1"),
        ("(flag) <", "(other) <"),
    ):
        wrong = text.replace(old, new).replace("bool flag", "bool flag, bool other")
        assert not proof(text.replace("bool flag", "bool flag, bool other"), wrong).proved, new
    swapped = text.replace("then_branch", "x_branch").replace("else_branch", "then_branch")
    assert not proof(text, swapped.replace("x_branch", "else_branch")).proved


def test_an_assumed_loop_begins_with_the_same_state() -> None:
    """The body of the second differs as well; nothing but that may be assumed."""
    first = hoisted(_MADE)
    second = first.replace("Identity", "Neg")
    assert proof(first, second).assumed == ("loop",)
    other = second.replace("(h0, q)", "(h1, q)").replace("[loop]", "[h] h1 = Exp (h0) [loop]")
    reason = proof(first, other).reason
    assert (
        reason == "the loop 'loop' has another body, and reads 'h1' as input 0, which is not 'h0'"
    )
    turned = second.replace(
        "num_scan_inputs = 1", "num_scan_inputs = 1, scan_input_directions = [1]"
    )
    assert "in this way" in str(proof(first, turned).reason)
    inner = first.replace("Identity (t)", "Mul (t, b)")
    assert "reads 'b' in it" in str(proof(first, inner).reason)
