"""A training step, a right rewrite of it by hand, and many wrong ones.

The rewrite has everything that memplan writes: a recomputed chain behind a fence, a Dropout that
is rebuilt from its mask, a pin, a shortened view, a dropped copy. Each wrong file is the right one
with one thing changed, as a mistake of a planner or writer would change it; many keep every shape.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from helpers.graphs import parse

N = 8
_STEP = f"""
step (float[{N},{N}] x, float[{N},{N}] g, float lr, int64 step, bool flag,
      float[{N},{N}] w1, float[{N},{N}] w2, float[{N}] b1)
  => (float loss, float[{N},{N}] w1_new, float[{N},{N}] w2_new, float[{N}] b1_new,
      int64 step_new, float[{N},{N}] probs, float[{N},{N}] chosen)
<float ratio = {{0.25}}, bool yes = {{1}}, float beta = {{0.9}}, float one = {{1}},
 float two = {{2}}, int64 next = {{1}}, int64[1] flat = {{-1}}, int64[2] square = {{{N}, {N}}},
 int64[1] rows = {{0}}, float[{N}] decay = {{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}}>
{{
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
    then_branch = then () => (float[{N},{N}] t) {{ [inner] t = Exp (dh2) }},
    else_branch = other () => (float[{N},{N}] e) {{ [outer] e = Tanh (masked) }}
  >
}}
"""


def original() -> onnx.ModelProto:
    """The training step. All matrices are square, so that most mistakes keep every shape."""
    return parse(_STEP)


def rewritten() -> onnx.ModelProto:
    """The step as memplan might write it: equivalent."""
    model = original()
    graph = model.graph
    _insert(graph, 0, helper.make_node("Size", ["x"], ["size"], name="fence_size"))
    _insert(graph, 1, helper.make_node("Mul", ["size", "none"], ["axes"], name="fence_axes"))
    graph.initializer.append(numpy_helper.from_array(np.zeros(0, np.int64), "none"))
    share = np.float32(1) - np.float32(0.25)
    graph.initializer.append(numpy_helper.from_array(np.asarray(share, np.float32), "share"))
    graph.node.remove(node(model, "copy"))
    node(model, "r1").input[0] = "a1"
    node(model, "v2").input[0] = "d1"
    graph.node.remove(node(model, "v1"))
    place = _place(model, "d1t")
    again = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["x_fenced"], name="fence"),
        helper.make_node("MatMul", ["x_fenced", "w1"], ["h1_2"], name="h1/recompute"),
        helper.make_node("Add", ["h1_2", "b1"], ["a1_2"], name="a1/recompute"),
        helper.make_node("Relu", ["a1_2"], ["r1_2"], name="r1/recompute"),
        helper.make_node("Cast", ["mask"], ["mask_f"], name="drop/rebuild_cast", to=1),
        helper.make_node("Mul", ["mask_f", "r1_2"], ["kept"], name="drop/rebuild_mul"),
        helper.make_node("Div", ["kept", "share"], ["d1_2"], name="drop/rebuild_scale"),
    ]
    for offset, made in enumerate(again):
        of = made.name.partition("/")[0]
        if "/" in made.name:
            helper.set_metadata_props(made, {"memplan.role": "recompute", "memplan.of": of})
        _insert(graph, place + offset, made)
    node(model, "d1t").input[0] = "d1_2"
    node(model, "sign").input[0] = "r1_2"
    graph.node.append(helper.make_node("Size", ["w2t"], ["pinned"], name="memplan/pin_0"))
    return model


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    """The node of that name."""
    return next(n for n in model.graph.node if n.name == name)


def _place(model: onnx.ModelProto, name: str) -> int:
    return next(i for i, n in enumerate(model.graph.node) if n.name == name)


def _insert(graph: onnx.GraphProto, place: int, made: onnx.NodeProto) -> None:
    nodes = list(graph.node)
    nodes.insert(place, made)
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(copies)


Change = Callable[[onnx.ModelProto], None]
WRONG: dict[str, Change] = {}
"""What makes a right file wrong, by a name that says how."""


def wrong(change: Change) -> Change:
    """List a change under its name."""
    WRONG[change.__name__] = change
    return change


def reads(name: str, slot: int, tensor: str) -> Change:
    """Let a node read another tensor."""

    def change(model: onnx.ModelProto) -> None:
        node(model, name).input[slot] = tensor

    return change


def attribute(name: str, key: str, value: object) -> Change:
    """Give a node another attribute."""

    def change(model: onnx.ModelProto) -> None:
        target = node(model, name)
        kept = [a for a in target.attribute if a.name != key]
        made = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del target.attribute[:]
        target.attribute.extend([*made, helper.make_attribute(key, value)])

    return change


def operator(name: str, op: str) -> Change:
    """Make a node another operator."""

    def change(model: onnx.ModelProto) -> None:
        node(model, name).op_type = op

    return change


def content(name: str, values: np.ndarray) -> Change:
    """Give a constant another content."""

    def change(model: onnx.ModelProto) -> None:
        target = next(t for t in model.graph.initializer if t.name == name)
        target.CopyFrom(numpy_helper.from_array(values, name))

    return change


def swapped(name: str) -> Change:
    """Swap the two inputs of a node."""

    def change(model: onnx.ModelProto) -> None:
        target = node(model, name)
        target.input[0], target.input[1] = target.input[1], target.input[0]

    return change


def branch(change: Callable[[onnx.GraphProto], object], index: int) -> Change:
    """Change a branch: the first is the one of a true flag."""
    return lambda model: change(node(model, "branch").attribute[index].g)


def outputs_change_places(model: onnx.ModelProto) -> None:
    """Two outputs of one shape under each other's names."""
    node(model, "u1").output[0], node(model, "u2").output[0] = "w2_new", "w1_new"


def branches_change_places(model: onnx.ModelProto) -> None:
    """Then is else."""
    first, second = node(model, "branch").attribute
    first.name, second.name = second.name, first.name


_ZEROS = np.zeros((N, N), np.float32)
_ULP = np.nextafter(np.float32(0.9), np.float32(1))
_DECAY = np.linspace(0.1, 0.8, N, dtype=np.float32)
_DECAY_ULP = _DECAY.copy()
_DECAY_ULP[3] = np.nextafter(_DECAY_ULP[3], np.float32(0))
WRONG.update(
    {
        "a reader is rewired to another tensor of its shape": reads("dd1", 0, "probs"),
        "an update starts from another layer's new weight": reads("u1", 0, "w2_new"),
        "a recomputed node reads another layer's weight": reads("h1/recompute", 1, "w2"),
        "a recomputed node reads the gradient": reads("a1/recompute", 0, "dh2"),
        "a recomputed node is stale: its reader reads what it reads": reads("sign", 0, "a1_2"),
        "a reader reads the tensor before the recomputed one": reads("d1t", 0, "r1_2"),
        "a recomputed node is the clone of another layer": reads("r1/recompute", 0, "h2"),
        "the learning rate is left out": reads("u1", 1, "dw1"),
        "the learning rate of one layer is another scalar": reads("scaled1", 1, "beta"),
        "the step counter is ignored": reads("power", 1, "one"),
        "the step counter does not count": reads("count", 1, "step"),
        "the update reads the other layer's gradient": reads("scaled1", 0, "dw2"),
        "the bias update reads what is not corrected": reads("decayed", 0, "db1"),
        "a gradient term is dropped": reads("masked", 1, "two"),
        "the mask is another tensor's": reads("drop/rebuild_mul", 1, "a1_2"),
        "operands of a difference are swapped": swapped("dh2"),
        "operands of a square product are swapped": swapped("dw1"),
        "operands of the update are swapped": swapped("u2"),
        "operands of the power are swapped": swapped("power"),
        "a square gradient is not transposed": reads("dw1", 0, "x"),
        "a square weight is not transposed": reads("dd1", 1, "w2"),
        "a transpose keeps its axes": attribute("xt", "perm", [0, 1]),
        "softmax over the other axis of a square": attribute("p", "axis", 0),
        "a sum over the other axis of a square": content("rows", np.asarray([1], np.int64)),
        "a mean is a sum": operator("loss", "ReduceSum"),
        "a sign is an absolute value": operator("sign", "Abs"),
        "an update adds": operator("u1", "Add"),
        "a recomputed relu is another activation": operator("r1/recompute", "Sigmoid"),
        "a scalar constant is off by one ulp": content("beta", np.asarray(_ULP, np.float32)),
        "an element of a constant is off by one ulp": content("decay", _DECAY_ULP),
        "elements of a constant change places": content("decay", _DECAY[::-1].copy()),
        "a constant is zero": content("decay", np.zeros(N, np.float32)),
        "the counter's step is 2": content("next", np.asarray(2, np.int64)),
        "dropout's ratio is another": content("ratio", np.asarray(0.26, np.float32)),
        "dropout is in inference mode": content("yes", np.asarray(False)),
        "dropout has another seed": attribute("drop", "seed", 4),
        "a rebuilt dropout has the wrong scale": content("share", np.asarray(0.25, np.float32)),
        "a rebuilt dropout multiplies": operator("drop/rebuild_scale", "Mul"),
        "a fence has an axis": content("none", np.zeros(1, np.int64)),
        "outputs change places": outputs_change_places,
        "branches change places": branches_change_places,
        "a branch computes something else": branch(
            lambda graph: setattr(graph.node[0], "op_type", "Sigmoid"), 1
        ),
        "a branch reads another tensor": branch(
            lambda graph: graph.node[0].input.__setitem__(0, "probs"), 0
        ),
        "a name in a body hides one outside": branch(
            lambda graph: graph.initializer.append(numpy_helper.from_array(_ZEROS, "dh2")), 0
        ),
        # A weight that need not be given starts elsewhere.
        "an input has another default": lambda model: model.graph.initializer.append(
            numpy_helper.from_array(_ZEROS, "w1")
        ),
        "a view has another shape": content("square", np.asarray([N * N, 1], np.int64)),
    }
)


@wrong
def an_output_is_the_old_weight(model: onnx.ModelProto) -> None:
    """The update is computed, and the old value handed out."""
    node(model, "u1").output[0] = "unused"
    model.graph.node.append(helper.make_node("Identity", ["w1"], ["w1_new"], name="out"))


@wrong
def an_output_is_of_another_type(model: onnx.ModelProto) -> None:
    """float64 instead of float32."""
    node(model, "loss").output[0] = "loss32"
    made = helper.make_node("Cast", ["loss32"], ["loss"], name="out", to=TensorProto.DOUBLE)
    model.graph.node.append(made)
    output = next(o for o in model.graph.output if o.name == "loss")
    output.type.tensor_type.elem_type = TensorProto.DOUBLE


@wrong
def a_random_operator_runs_twice(model: onnx.ModelProto) -> None:
    """Dropout recomputed: other numbers the second time."""
    twin = onnx.NodeProto.FromString(node(model, "drop").SerializeToString())
    twin.name = "drop/recompute"
    del twin.output[:]
    twin.output.extend(["d1_3", "mask_3"])
    _insert(model.graph, _place(model, "d1t"), twin)
    node(model, "d1t").input[0] = "d1_3"


@wrong
def one_element_is_zeroed(model: onnx.ModelProto) -> None:
    """A gradient loses one element."""
    mask = np.ones((N, N), np.float32)
    mask[2, 3] = 0
    model.graph.initializer.append(numpy_helper.from_array(mask, "hole"))
    made = helper.make_node("Mul", ["dw1", "hole"], ["dw1_holed"], name="holed")
    _insert(model.graph, _place(model, "scaled1"), made)
    node(model, "scaled1").input[0] = "dw1_holed"


def wrong_file(name: str) -> onnx.ModelProto:
    """The right rewrite with the change of that name."""
    model = rewritten()
    WRONG[name](model)
    return model
