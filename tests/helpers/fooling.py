"""Pairs of files that fooled earlier versions of ``validate``: a right one and a wrong one.

Each pair differs where one draw of small numbers, one run, one tolerance or one word of the file
itself would not show it.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from helpers.graphs import parse


@dataclass(frozen=True)
class Pair:
    """Two graphs, and the ``parts`` of the validation that find the wrong one.

    Args:
        head: name, inputs, outputs and constants of both.
        right: nodes of the original.
        wrong: nodes of the other.
        parts: as the validation calls them, apart by spaces.
        other_head: of the other, where it differs.
        constants: further initializers of both.
        recorded: what ``rewrite`` would have noted in the other.
    """

    head: str
    right: str
    wrong: str
    parts: str
    other_head: str | None = None
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    recorded: dict[str, object] = field(default_factory=dict)

    def original(self) -> onnx.ModelProto:
        """The right one."""
        return self._made(self.head, self.right)

    def rewritten(self) -> onnx.ModelProto:
        """The wrong one."""
        model = self._made(self.other_head or self.head, self.wrong)
        return recorded(model, **self.recorded)

    def _made(self, head: str, nodes: str) -> onnx.ModelProto:
        model = parse(f"g {head} {{ {nodes} }}")
        for name, value in self.constants.items():
            model.graph.initializer.append(numpy_helper.from_array(value, name))
        return model


def recorded(model: onnx.ModelProto, **values: object) -> onnx.ModelProto:
    """With what ``rewrite`` would have noted in the file."""
    for key, value in values.items():
        model.metadata_props.add(key=f"memplan.{key}", value=json.dumps(value))
    return model


DEEP = "  ".join(f"h{k + 1} = MatMul(h{k}, w)" for k in range(120))
SPIKE = np.zeros(1024, np.float32)
SPIKE[0] = 1e5
ONE = "(float[64] x) => (float[64] y)"
SQUARE = "(float[64, 64] x) => (float[64, 64] y)"
NAN = "a = Abs(x)  n = Mul(a, m)  l = Log(n)"
FLAG = "(float[8, 8] x, bool training) => (float[8, 8] y)"
BRANCHES = (
    "y = If (FLAG) <then_branch = a () => (float[8, 8] t) { t = Neg(x) }, "
    "else_branch = b () => (float[8, 8] e) { e = OTHER(x) }>"
)
TAKEN = BRANCHES.replace("FLAG", "training")
NEGATED = "off = Not(training)  " + BRANCHES.replace("FLAG", "off")
CONVOLUTION = "y = Conv<pads = [1, 1, 1, 1]>(x, w)"
GROWING = (
    "a = Concat<axis = 0>(x, x)  b = Concat<axis = 0>(a, a)  c = Concat<axis = 0>(b, b)"
    "  d = ReduceSum(c, ax)  e = ReduceSum(d, ax)  y = Neg(e)"
)
UPDATES = 20_000
NOISE = (
    "n = Mul(x, minus)  xx = Concat<axis = 0>(x, n)  ii = Concat<axis = 0>(idx, idx)"
    '  noise = ScatterND<reduction = "add">(zeros, ii, xx)  y = Mul(x, FACTOR)'
)

PAIRS = {
    # A scalar that is 1 does not show.
    "the_learning_rate_is_ignored": Pair(
        "(float[64, 64] w, float[64, 64] g, float lr) => (float[64, 64] w_new)",
        "s = Mul(g, lr)  w_new = Sub(w, s)",
        "w_new = Sub(w, g)",
        "construction outputs",
    ),
    # Adam's bias correction at step 1 is that of any step.
    "the_step_counter_is_ignored": Pair(
        "(float[64] g, int64 step) => (float[64] y) <float beta = {0.9}, float one = {1}>",
        "f = Cast<to = 1>(step)  p = Pow(beta, f)  c = Sub(one, p)  y = Div(g, c)",
        "c = Sub(one, beta)  y = Div(g, c)",
        "construction outputs",
    ),
    # Small numbers never reach the upper bound.
    "a_clip_is_a_relu": Pair(
        f"{SQUARE} <float lo = {{0}}, float hi = {{6}}>",
        "y = Clip(x, lo, hi)",
        "y = Relu(x)",
        "construction outputs",
    ),
    # The runs cannot see it, whatever is drawn: NaN is NaN.
    "everything_is_nan": Pair(
        "(float[16, 16] x, float[16, 16] w) => (float[16, 16] y) <float m = {-1}>",
        f"{NAN}  y = MatMul(l, w)",
        f"{NAN}  y = MatMul(w, l)",
        "construction",
    ),
    # 120 layers of small weights.
    "everything_underflows": Pair(
        "(float[16, 16] h0, float[16, 16] w) => (float[16, 16] y)",
        f"{DEEP}  y = Identity(h120)",
        f"{DEEP}  y = Abs(h120)",
        "construction outputs",
    ),
    # 2^60 and 2^60 + 1 are one number in float64.
    "a_large_counter_is_off_by_one": Pair(
        f"(int64[8] s) => (int64[8] y) <int64[1] big = {{{2**60}}}>",
        "y = Add(s, big)",
        "y = Add(s, big)",
        "construction outputs",
        other_head=f"(int64[8] s) => (int64[8] y) <int64[1] big = {{{2**60 + 1}}}>",
    ),
    # The largest element is no measure of the others.
    "a_gradient_is_zeroed_beside_a_spike": Pair(
        "(float[1024] x) => (float[1024] y)",
        "y = Add(x, spike)",
        "z = Sub(x, x)  y = Add(z, spike)",
        "construction outputs memory",
        constants={"spike": SPIKE},
    ),
    # No budget is recorded.
    "the_peak_rises": Pair(
        SQUARE,
        "a = Sin(x)  b = Cos(a)  y = Relu(b)",
        "a = Sin(x)  c = Concat<axis = 0>(a, a, a)  s, t, u = Split<axis = 0, num_outputs = 3>(c)"
        "  z = Sub(s, u)  b = Cos(a)  d = Add(b, z)  y = Relu(d)",
        "construction memory",
    ),
    # Equal values, float64 instead of float32.
    "an_output_has_another_type": Pair(
        ONE,
        "y = Neg(x)",
        "z = Neg(x)  y = Cast<to = 11>(z)",
        "construction outputs memory",
        other_head="(float[64] x) => (double[64] y)",
    ),
    # By the file's own word.
    "outputs_are_said_to_be_removed": Pair(
        "(float[64] x) => (float[64] y, float[64] g1, float[64] g2)",
        "y = Neg(x)  g1 = Exp(x)  g2 = Sin(x)",
        "y = Neg(x)",
        "interface",
        other_head=ONE,
        recorded={"removed_outputs": ["g1", "g2"]},
    ),
    # One value of a flag takes one branch.
    "the_branch_that_is_not_taken_is_wrong": Pair(
        FLAG,
        TAKEN.replace("OTHER", "Relu"),
        TAKEN.replace("OTHER", "Exp"),
        "construction outputs",
    ),
    # The same under a negated flag.
    "the_branch_that_is_taken_is_wrong": Pair(
        FLAG,
        NEGATED.replace("OTHER", "Relu"),
        NEGATED.replace("OTHER", "Exp"),
        "construction outputs",
    ),
    # It is in no measured figure.
    "workspace_is_over_the_budget": Pair(
        "(float[1, 8, 64, 64] x, float[8, 8, 3, 3] w) => (float[1, 8, 64, 64] y)",
        CONVOLUTION,
        CONVOLUTION,
        "memory",
        recorded={"budget_bytes": 300_000, "session": "tuned"},
    ),
    # From its second run on a plain session holds a block.
    "later_runs_are_over_the_budget": Pair(
        "(float[4096] x) => (float[1] y) <int64[1] ax = {0}>",
        GROWING,
        GROWING,
        "memory",
        recorded={"budget_bytes": 220_000, "session": "default"},
    ),
    # A sum that threads race for and that cancels, and ``y``, which repeats: 0 throughout.
    "the_noise_of_one_output_excuses_all": Pair(
        f"(float[{UPDATES}, 1] x) => (float[8, 1] noise, float[{UPDATES}, 1] y) "
        "<float minus = {-1}, float one = {1}, float none = {0}>",
        NOISE.replace("FACTOR", "one"),
        NOISE.replace("FACTOR", "none"),
        "construction outputs",
        constants={
            "idx": np.random.default_rng(0).integers(0, 8, (UPDATES, 1)).astype(np.int64),
            "zeros": np.zeros((8, 1), np.float32),
        },
    ),
}
