"""A training step, a right rewrite of it by hand, and many wrong ones.

The rewrite has everything that memplan writes: a recomputed chain behind a fence, a Dropout that
is rebuilt from its mask, a pin, a shortened view, a dropped copy. Each wrong file is the right one
with one thing changed, as a mistake of a planner or writer would change it; many keep every shape.
"""

import onnx
from onnx import helper

from helpers.graphs import parse

N = 8
_STEP = """
step (float[N,N] x, float[N,N] g, float lr, int64 step, bool flag,
      float[N,N] w1, float[N,N] w2, float[N] b1)
  => (float loss, float[N,N] w1_new, float[N,N] w2_new, float[N] b1_new,
      int64 step_new, float[N,N] probs, float[N,N] chosen)
<float ratio = {0.25}, bool yes = {1}, float beta = {0.9}, float one = {1},
 float two = {2}, int64 next = {1}, int64[1] flat = {-1}, int64[2] square = {8, 8},
 int64[1] rows = {0}, float[N] decay = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}>
{
  [h1] h1 = MatMul (x, w1)
  [a1] a1 = Add (h1, b1)
  [copy] a1c = Identity (a1)
  [r1] r1 = Relu (a1c)
  [drop] d1, mask = Dropout <seed: int = 3> (r1, ratio, yes)
  [v1] v1 = Reshape (d1, flat)
  [v2] v2 = Reshape (v1, square)
  [h2] h2 = MatMul (v2, w2)
  [p] probs = Softmax <axis: int = -1> (h2)
  [loss] loss = ReduceMean <keepdims: int = 0> (probs)
  [dh2] dh2 = Sub (probs, g)
  [d1t] d1t = Transpose <perm: ints = [1, 0]> (d1)
  [dw2] dw2 = MatMul (d1t, dh2)
  [w2t] w2t = Transpose <perm: ints = [1, 0]> (w2)
  [dd1] dd1 = MatMul (dh2, w2t)
  [sign] sign = Sign (r1)
  [masked] masked = Mul (dd1, sign)
  [xt] xt = Transpose <perm: ints = [1, 0]> (x)
  [dw1] dw1 = MatMul (xt, masked)
  [db1] db1 = ReduceSum <keepdims: int = 0> (masked, rows)
  [scaled2] scaled2 = Mul (dw2, lr)
  [u2] w2_new = Sub (w2, scaled2)
  [scaled1] scaled1 = Mul (dw1, lr)
  [u1] w1_new = Sub (w1, scaled1)
  [stepf] stepf = Cast <to: int = 1> (step)
  [power] power = Pow (beta, stepf)
  [rest] rest = Sub (one, power)
  [corrected] corrected = Div (db1, rest)
  [decayed] decayed = Mul (corrected, decay)
  [ub] b1_new = Sub (b1, decayed)
  [count] step_new = Add (step, next)
  [branch] chosen = If (flag) <
    then_branch = then () => (float[N,N] t) { [inner] t = Exp (dh2) },
    else_branch = other () => (float[N,N] e) { [outer] e = Tanh (masked) }
  >
}
"""
# As memplan might write it: texts, and what stands there instead.
_RIGHT = (
    *("<float ratio", "<int64[0] none = {}, float share = {0.75}, float ratio"),
    *("  [h1] h1", "  [fence_size] size = Size (x) [fence_axes] axes = Mul (size, none) [h1] h1"),
    *("  [copy] a1c = Identity (a1)\n", ""),
    *("Relu (a1c)", "Relu (a1)"),
    *("  [v1] v1 = Reshape (d1, flat)\n", ""),
    *("Reshape (v1, square)", "Reshape (d1, square)"),
    "  [d1t] d1t = Transpose <perm: ints = [1, 0]> (d1)",
    """  [fence] x_fenced = Unsqueeze (x, axes)
  [h1_recompute] h1_2 = MatMul (x_fenced, w1)
  [a1_recompute] a1_2 = Add (h1_2, b1)
  [r1_recompute] r1_2 = Relu (a1_2)
  [drop_rebuild_cast] mask_f = Cast <to: int = 1> (mask)
  [drop_rebuild_mul] kept = Mul (mask_f, r1_2)
  [drop_rebuild_scale] d1_2 = Div (kept, share)
  [d1t] d1t = Transpose <perm: ints = [1, 0]> (d1_2)""",
    *("Sign (r1)", "Sign (r1_2)"),
    *("\n  >\n", "\n  >\n  [memplan_pin_0] pinned = Size (w2t)\n"),
)
_ZEROS = ", ".join("0" * N * N)
_HOLE = ", ".join("0" if k == 19 else "1" for k in range(N * N))
_DECAY = "0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8"
WRONG: dict[str, tuple[str, ...]] = {
    "a reader is rewired to another tensor of its shape": ("(dh2, w2t)", "(probs, w2t)"),
    "an update starts from another layer's new weight": ("(w1, scaled1)", "(w2_new, scaled1)"),
    "a recomputed node reads another layer's weight": ("(x_fenced, w1)", "(x_fenced, w2)"),
    "a recomputed node reads the gradient": ("(h1_2, b1)", "(dh2, b1)"),
    "a recomputed node is stale: its reader reads what it reads": ("Sign (r1_2)", "Sign (a1_2)"),
    "a reader reads the tensor before the recomputed one": ("> (d1_2)", "> (r1_2)"),
    "a recomputed node is the clone of another layer": ("Relu (a1_2)", "Relu (h2)"),
    "the learning rate is left out": ("(w1, scaled1)", "(w1, dw1)"),
    "the learning rate of one layer is another scalar": ("(dw1, lr)", "(dw1, beta)"),
    "the step counter is ignored": ("(beta, stepf)", "(beta, one)"),
    "the step counter does not count": ("(step, next)", "(step, step)"),
    "the update reads the other layer's gradient": ("(dw1, lr)", "(dw2, lr)"),
    "the bias update reads what is not corrected": ("(corrected, decay)", "(db1, decay)"),
    "a gradient term is dropped": ("(dd1, sign)", "(dd1, two)"),
    "the mask is another tensor's": ("(mask_f, r1_2)", "(mask_f, a1_2)"),
    "operands of a difference are swapped": ("(probs, g)", "(g, probs)"),
    "operands of a square product are swapped": ("(xt, masked)", "(masked, xt)"),
    "operands of the update are swapped": ("(w2, scaled2)", "(scaled2, w2)"),
    "operands of the power are swapped": ("(beta, stepf)", "(stepf, beta)"),
    "a square gradient is not transposed": ("(xt, masked)", "(x, masked)"),
    "a square weight is not transposed": ("(dh2, w2t)", "(dh2, w2)"),
    "a transpose keeps its axes": (
        "xt = Transpose <perm: ints = [1, 0]>",
        "xt = Transpose <perm: ints = [0, 1]>",
    ),
    "softmax over the other axis of a square": ("<axis: int = -1>", "<axis: int = 0>"),
    "a sum over the other axis of a square": ("rows = {0}", "rows = {1}"),
    "a mean is a sum": ("ReduceMean", "ReduceSum"),
    "a sign is an absolute value": ("Sign (", "Abs ("),
    "an update adds": ("Sub (w1, scaled1)", "Add (w1, scaled1)"),
    "a recomputed relu is another activation": ("Relu (a1_2)", "Sigmoid (a1_2)"),
    "a scalar constant is off by one ulp": ("beta = {0.9}", "beta = {0.90000004}"),
    "an element of a constant is off by one ulp": ("0.4,", "0.39999998,"),
    "elements of a constant change places": (_DECAY, ", ".join(_DECAY.split(", ")[::-1])),
    "a constant is zero": (_DECAY, ", ".join("0" * N)),
    "the counter's step is 2": ("next = {1}", "next = {2}"),
    "dropout's ratio is another": ("ratio = {0.25}", "ratio = {0.26}"),
    "dropout is in inference mode": ("yes = {1}", "yes = {0}"),
    "dropout has another seed": ("seed: int = 3", "seed: int = 4"),
    "a rebuilt dropout has the wrong scale": ("share = {0.75}", "share = {0.25}"),
    "a rebuilt dropout multiplies": ("Div (kept, share)", "Mul (kept, share)"),
    "a fence has an axis": ("int64[0] none = {}", "int64[1] none = {0}"),
    "outputs change places": ("[u2] w2_new", "[u2] w1_new", "[u1] w1_new", "[u1] w2_new"),
    "branches change places": (
        *("then_branch", "first_branch"),
        *("else_branch", "then_branch"),
        *("first_branch", "else_branch"),
    ),
    "a branch computes something else": ("Tanh (masked)", "Sigmoid (masked)"),
    "a branch reads another tensor": ("Exp (dh2)", "Exp (probs)"),
    "a name in a body hides one outside": (
        "(float[N,N] t) {",
        f"(float[N,N] t) <float[N,N] dh2 = {{{_ZEROS}}}> {{",
    ),
    # A weight that need not be given starts elsewhere.
    "an input has another default": ("<int64[0]", f"<float[N,N] w1 = {{{_ZEROS}}}, int64[0]"),
    "a view has another shape": ("square = {8, 8}", "square = {64, 1}"),
    # The update is computed, and the old value handed out.
    "an_output_is_the_old_weight": (
        "[u1] w1_new = Sub (w1, scaled1)",
        "[u1] unused = Sub (w1, scaled1) [out] w1_new = Identity (w1)",
    ),
    "an_output_is_of_another_type": (
        *("(float loss,", "(double loss,"),
        *("[loss] loss", "[loss] loss32"),
        *("[dh2]", "[out] loss = Cast <to: int = 11> (loss32) [dh2]"),
    ),
    # Dropout recomputed: other numbers the second time.
    "a_random_operator_runs_twice": (
        *("[d1t]", "[drop_again] d1_3, mask_3 = Dropout <seed: int = 3> (r1, ratio, yes) [d1t]"),
        *("> (d1_2)", "> (d1_3)"),
    ),
    "one_element_is_zeroed": (
        *("<int64[0]", f"<float[N,N] hole = {{{_HOLE}}}, int64[0]"),
        *("[scaled1]", "[holed] dw1_holed = Mul (dw1, hole) [scaled1]"),
        *("(dw1, lr)", "(dw1_holed, lr)"),
    ),
}
"""What makes a right file wrong, by a name that says how: texts, and what stands there instead."""


def original() -> onnx.ModelProto:
    """The training step. All matrices are square, so that most mistakes keep every shape."""
    return _made(_STEP)


def rewritten() -> onnx.ModelProto:
    """The step as memplan might write it: equivalent."""
    return _made(_edited(_STEP, _RIGHT))


def wrong_file(name: str) -> onnx.ModelProto:
    """The right rewrite with the change of that name."""
    return _made(_edited(_edited(_STEP, _RIGHT), WRONG[name]))


def _edited(text: str, edits: tuple[str, ...]) -> str:
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def _made(text: str) -> onnx.ModelProto:
    """The model; slashes in names of nodes are none of the text."""
    model = parse(text.replace("N,N", f"{N},{N}").replace("[N]", f"[{N}]"))
    for node in model.graph.node:
        of, _, role = node.name.partition("_")
        if role.startswith(("recompute", "again", "rebuild", "pin")):
            node.name = f"{of}/{role}"
        if role.startswith(("recompute", "rebuild")):
            helper.set_metadata_props(node, {"memplan.role": "recompute", "memplan.of": of})
    return model
