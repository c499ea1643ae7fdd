"""Small edits of a model, most of which leave it valid: what a proof must tell apart.

Half of them change what the file computes, by as little as a bit; half do not, or only do so in
exact arithmetic: another kernel, another order of additions, a copy. An edit says in words what it
did; one that finds nothing to work on raises one of :data:`IMPOSSIBLE`.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import ended  # noqa: F401  (puts tests/ on the path)
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from helpers.mutate import NUMBERS, change_field
from memplan.proto.nodes import all_graphs, reads_of

IMPOSSIBLE = (ValueError, IndexError, TypeError, KeyError, onnx.checker.ValidationError)
"""An edit of something that the graph has not, or not in this file."""
Type = tuple[int, tuple[int, ...] | None]
"""Element type of a tensor, and its shape where every run has the same."""


@dataclass(slots=True)
class Scene:
    """A model that is edited, the graph in it (the main graph or a body), and the types of the
    tensors of the main graph, as far as they are known."""

    model: onnx.ModelProto
    graph: onnx.GraphProto
    types: dict[str, Type]
    r: random.Random
    taken: set[str] = field(default_factory=set)

    def fresh(self, like: str) -> str:
        """A name that nothing has."""
        if not self.taken:
            for graph in all_graphs(self.model.graph):
                self.taken.update(name for node in graph.node for name in node.output)
                self.taken.update(each.name for each in (*graph.input, *graph.initializer))
        name = next(n for k in range(10_000) if (n := f"{like}.e{k}") not in self.taken)
        self.taken.add(name)
        if like in self.types:
            self.types[name] = self.types[like]
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        """A known shape."""
        shape = self.types[name][1]
        if shape is None:
            raise ValueError(name)
        return shape

    def node(self, test: Callable[[onnx.NodeProto], object] = bool) -> tuple[int, onnx.NodeProto]:
        """The place of any node that passes a test, and the node."""
        return self.r.choice([(k, n) for k, n in enumerate(self.graph.node) if test(n)])

    def taken_out(self, place: int) -> onnx.NodeProto:
        """A node, which the graph no longer has."""
        node = onnx.NodeProto.FromString(self.graph.node[place].SerializeToString())
        del self.graph.node[place]
        return node

    def insert(self, place: int, text: str, names: Mapping[str, str]) -> list[onnx.NodeProto]:
        """Put nodes into the graph that are written in ONNX's text, whose other names are fresh."""
        known = dict(names)
        nodes = list(onnx.parser.parse_graph(f"g () => () {{ {text} }}").node)
        for k, node in enumerate(nodes):
            node.name = self.fresh("new")
            node.input[:] = [known[name] for name in node.input]
            node.output[:] = [known.setdefault(n, self.fresh(f"new_{n}")) for n in node.output]
            self.graph.node.insert(place + k, node)
        return list(self.graph.node[place : place + len(nodes)])

    def alike(self, name: str, place: int) -> str:
        """Another tensor of the type of ``name`` that is there at a place; one that resembles it by
        name, as copies do, more often than not. Any, where the types are not known."""
        there = [each.name for each in (*self.graph.input, *self.graph.initializer)]
        there += [name for node in self.graph.node[:place] for name in node.output if name]
        found = [n for n in there if n != name and self.types.get(n) == self.types.get(name)]
        near = [other for other in found if other[:6] == name[:6]]
        return self.r.choice(near if near and self.r.random() < 0.5 else found)

    def reader(self, names: Sequence[str], behind: int) -> tuple[int, int]:
        """Place and input of any reader."""
        nodes = list(enumerate(self.graph.node))[behind + 1 :]
        return self.r.choice(
            [(k, slot) for k, n in nodes for slot, name in enumerate(n.input) if name in names]
        )


def _op(node: onnx.NodeProto) -> str:
    return node.op_type if not node.domain else f"{node.domain}.{node.op_type}"


# --- What changes the result ----------------------------------------------------------------------


def read_another(s: Scene) -> str:
    """Let a node read another tensor of the same type."""
    place, node = s.node(lambda node: any(node.input))
    slot = s.r.choice([k for k, name in enumerate(node.input) if name])
    node.input[slot] = s.alike(node.input[slot], place)
    return f"reads another: {_op(node)} input {slot}"


def swap_reads(s: Scene) -> str:
    """Exchange two inputs of a node."""
    _, node = s.node(lambda node: len(set(node.input)) > 1)
    a, b = s.r.sample(range(len(node.input)), 2)
    node.input[a], node.input[b] = node.input[b], node.input[a]
    return f"swapped inputs {min(a, b)} and {max(a, b)}: {_op(node)}"


def change_attribute(s: Scene) -> str:
    """Another value of an attribute, or none."""
    _, node = s.node(lambda node: any(not a.HasField("g") for a in node.attribute))
    k = s.r.choice([k for k, a in enumerate(node.attribute) if not a.HasField("g")])
    attribute, name = node.attribute[k], node.attribute[k].name
    if s.r.random() < 0.2:
        del node.attribute[k]
    elif attribute.type == onnx.AttributeProto.INT and s.r.random() < 0.5:
        attribute.i = 1 - attribute.i
    else:
        change_field(attribute, s.r, empty=0)
        attribute.name = name
    return f"attribute {name}: {_op(node)}"


def change_constant(s: Scene) -> str:
    """Another bit or number in a constant."""
    tensor = s.r.choice(s.graph.initializer)
    array = numpy_helper.to_array(tensor).copy()
    k = s.r.randrange(array.size)
    if array.dtype == bool:
        array.flat[k] = not array.flat[k]
    elif s.r.random() < 0.5:
        raw = bytearray(array.tobytes())
        raw[k * array.itemsize + s.r.randrange(array.itemsize)] ^= 1 << s.r.randrange(8)
        array = np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)
    else:
        near = array.flat[k] + s.r.choice((1, -1))
        array.flat[k] = s.r.choice((near, *(NUMBERS if array.dtype.kind == "f" else (0, 2, 127))))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"constant of {array.dtype}{list(array.shape)}"


_RELATIVES = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"),
    ("And", "Or", "Xor"),
    ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare"),
    ("Tanh", "Sigmoid", "Relu", "Identity", "Neg", "Exp", "Erf", "Abs", "Sqrt", "Softplus"),
    ("Sin", "Cos"),
    ("MaxPool", "AveragePool"),
    ("Softmax", "LogSoftmax", "Hardmax"),
    ("Reshape", "Expand"),
    ("Squeeze", "Unsqueeze"),
)


def relative(s: Scene) -> str:
    """A near relative of the operator."""
    known = {op: family for family in _RELATIVES for op in family}
    _, node = s.node(lambda node: node.op_type in known)
    was = node.op_type
    node.op_type = s.r.choice([op for op in known[was] if op != was])
    return f"operator {was} -> {node.op_type}"


def remove_node(s: Scene) -> str:
    """Hand on what a node reads instead of what it makes."""
    place, node = s.node(lambda node: node.input)
    names = {"x": node.input[0], "y": node.output[0]}
    del s.graph.node[place]
    s.insert(place, "y = Identity (x)", names)
    return f"removed: {_op(node)}"


# --- What does not, or only in the last bits ------------------------------------------------------

_COPIES: Mapping[int | str, Sequence[str]] = {
    "any": ("y = Identity (x)", "y = Cast <to: int = DTYPE> (x)"),
    "shaped": (
        "t = Transpose <perm: ints = PERM> (x) y = Transpose <perm: ints = BACK> (t)",
        "s = Constant <value_ints: ints = SHAPE> () y = Reshape (x, s)",
        "f = Constant <value_ints: ints = [-1]> () t = Reshape (x, f) "
        "s = Constant <value_ints: ints = SHAPE> () y = Reshape (t, s)",
        "a = Constant <value_ints: ints = [0]> () t = Unsqueeze (x, a) y = Squeeze (t, a)",
        "s = Constant <value_ints: ints = SHAPE> () y = Expand (x, s)",
        "a = Constant <value_ints: ints = NONE> () s = Constant <value_ints: ints = SHAPE> () "
        "y = Slice (x, a, s)",
        "a = Constant <value_ints: ints = ONES> () y = Tile (x, a)",
        "y = Concat <axis: int = 0> (x)",
    ),
    TensorProto.FLOAT: (
        "a = Neg (x) y = Neg (a)",
        "a = Constant <value_float: float = 1.0> () y = Mul (x, a)",
        "a = Constant <value_float: float = 1.0> () y = Div (x, a)",
        "a = Constant <value_float: float = 0.0> () y = Add (x, a)",
        "a = Constant <value_float: float = -0.0> () y = Add (x, a)",
        "a = Constant <value_float: float = 0.0> () y = Sub (x, a)",
        "a = Constant <value_float: float = -3.4e38> () y = Max (x, a)",
        "y = Dropout (x)",
        "y = Clip (x)",
        "a = Cast <to: int = 11> (x) y = Cast <to: int = 1> (a)",
        "a = Cast <to: int = 10> (x) y = Cast <to: int = 1> (a)",
    ),
    TensorProto.INT64: (
        "a = Constant <value_int: int = 3> () b = Add (x, a) y = Sub (b, a)",
        "y = Abs (x)",
        "a = Cast <to: int = 6> (x) y = Cast <to: int = 7> (a)",
    ),
    TensorProto.BOOL: (
        "a = Not (x) y = Not (a)",
        "a = Cast <to: int = 1> (x) y = Cast <to: int = 9> (a)",
    ),
}


def insert_copy(s: Scene) -> str:
    """Something between a tensor and one of its readers that gives what it is given."""
    place, node = s.node(lambda node: any(name in s.types for name in node.input))
    slot = s.r.choice([k for k, name in enumerate(node.input) if name in s.types])
    source = node.input[slot]
    dtype, shape = s.types[source]
    kinds = ("any", dtype, *(("shaped",) if shape else ()))
    text = s.r.choice([text for kind in kinds for text in _COPIES.get(kind, ())])
    rank = len(shape or ())
    turned = s.r.sample(range(rank), rank)
    words = {
        "DTYPE": dtype,
        "PERM": turned,
        "BACK": [turned.index(axis) for axis in range(rank)],
        "SHAPE": list(shape or ()),
        "NONE": [0] * rank,
        "ONES": [1] * rank,
    }
    for word, value in words.items():
        text = text.replace(word, str(value))
    made = s.fresh(source)
    nodes = s.insert(place, text, {"x": source, "y": made})
    s.graph.node[place + len(nodes)].input[slot] = made
    said = " ".join(each.op_type for each in nodes)
    return f"inserted {said}: {_op(s.graph.node[place + len(nodes)])} input {slot}"


def compute_again(s: Scene) -> str:
    """The same node a second time, for one of the readers."""
    place, node = s.node()
    again = onnx.NodeProto.FromString(node.SerializeToString())
    again.name = s.fresh(node.name or "again")
    names = {name: s.fresh(name) for name in node.output if name}
    again.output[:] = [names.get(name, name) for name in node.output]
    k, slot = s.reader(list(names), place)
    s.graph.node[k].input[slot] = names[s.graph.node[k].input[slot]]
    s.graph.node.insert(k, again)
    return f"computed again: {_op(again)}"


def move_node(s: Scene) -> str:
    """Put a node elsewhere, where all that it reads is there and nothing that reads it is."""
    place, node = s.node()
    first = last = place
    read, made = {*reads_of(node)}, {*node.output}
    while first and read.isdisjoint(s.graph.node[first - 1].output):
        first -= 1
    while last + 1 < len(s.graph.node) and made.isdisjoint(reads_of(s.graph.node[last + 1])):
        last += 1
    target = s.r.choice([first, last, s.r.randint(first, last)])
    if target == place:
        raise ValueError
    s.graph.node.insert(target, s.taken_out(place))
    return f"moved {'up' if target < place else 'down'}: {_op(s.graph.node[target])}"


def constancy(s: Scene) -> str:
    """An initializer that a node holds."""
    k = s.r.randrange(len(s.graph.initializer))
    held = onnx.TensorProto.FromString(s.graph.initializer[k].SerializeToString())
    if held.name in {value.name for value in s.graph.input}:
        raise ValueError
    del s.graph.initializer[k]
    node = helper.make_node("Constant", [], [held.name], name=f"{held.name}/held", value=held)
    s.graph.node.insert(0, node)
    return "initializer -> Constant"


_IN_ROWS = (
    *("Add", "Sub", "Mul", "Div", "Tanh", "Sigmoid", "Exp", "Erf", "Sqrt", "Relu", "Neg", "Gelu"),
    *("Log", "Softplus", "MatMul", "Gemm", "Softmax", "LogSoftmax", "LayerNormalization", "Cast"),
    *("Conv", "ReduceSum", "ReduceMean", "Where", "Greater", "Pow", "Gather", "Transpose"),
)
_PART = "a = Constant <value_ints: ints = [{}]> () b = Constant <value_ints: ints = [{}]> () "


def in_parts(s: Scene) -> str:
    """A node on two ranges of its first axis, and the results joined; sometimes one row wrong."""
    place, node = s.node(lambda node: node.op_type in _IN_ROWS and node.output[0] in s.types)
    made = node.output[0]
    rows, rank = s.shape(made)[0], len(s.shape(made))
    cut, wrong = s.r.randrange(1, rows), s.r.random() < 0.3
    known = [(slot, s.shape(name)) for slot, name in enumerate(node.input) if name in s.types]
    if any(node.output[1:]):
        raise ValueError
    node, results = s.taken_out(place), []
    for begin, end in ((0, cut), (cut - wrong, rows - wrong)):
        part = onnx.NodeProto.FromString(node.SerializeToString())
        part.name = s.fresh(f"{node.name}/part")
        for slot in (slot for slot, shape in known if (len(shape), *shape[:1]) == (rank, rows)):
            part.input[slot] = s.fresh("part")
            text = f"{_PART.format(begin, end)} y = Slice (x, a, b)"
            place += len(s.insert(place, text, {"x": node.input[slot], "y": part.input[slot]}))
        results.append(s.fresh("piece"))
        part.output[:] = results[-1:]
        s.graph.node.insert(place, part)
        place += 1
    names = {"a": results[0], "b": results[1], "y": made}
    s.insert(place, "y = Concat <axis: int = 0> (a, b)", names)
    return f"in parts: {_op(node)}"


_HALF = "h = Constant <value_float: float = 0.5> ()"
_ZERO = "z = Constant <value_float: float = 0.0> ()"
_FORMS = {
    "Add": ("y = Sum (a, b)", "n = Neg (b) y = Sub (a, n)", "y = Add (b, a)"),
    "Sub": ("n = Neg (b) y = Add (a, n)",),
    "Mul": ("y = Mul (b, a)",),
    "Div": ("r = Reciprocal (b) y = Mul (a, r)",),
    "Sqrt": (f"{_HALF} y = Pow (a, h)",),
    "Relu": (f"{_ZERO} y = Max (a, z)", f"{_ZERO} y = Clip (a, z)"),
    "Neg": (f"{_ZERO} y = Sub (z, a)",),
    "Greater": ("y = Less (b, a)", "n = LessOrEqual (a, b) y = Not (n)"),
    "GreaterOrEqual": ("n = Less (a, b) y = Not (n)",),
    "Gemm": ("p = MatMul (a, b) y = Add (p, c)",),
    "Sum": ("y = Add (a, b)",),
    "ReduceMean": ("y = ReduceSum (a, b)",),
    "Where": ("n = Not (a) y = Where (n, c, b)",),
    "Tanh": ("n = Neg (a) t = Tanh (n) y = Neg (t)",),
    "Softmax": ("l = LogSoftmax (a) y = Exp (l)",),
}


def other_form(s: Scene) -> str:
    """Other operators that compute the same in exact arithmetic, or nearly do so."""
    place, node = s.node(lambda node: node.op_type in _FORMS and node.output[0] in s.types)
    names = {**dict(zip("abc", node.input, strict=False)), "y": node.output[0]}
    node = s.taken_out(place)
    nodes = s.insert(place, s.r.choice(_FORMS[node.op_type]), names)
    for each in nodes:
        if each.op_type in (node.op_type, "LogSoftmax", "ReduceSum"):
            each.attribute.extend(node.attribute)
    return f"{node.op_type} as {' '.join(each.op_type for each in nodes)}"


Edit = Callable[[Scene], str]
OTHER: tuple[Edit, ...] = (
    *(read_another, read_another, swap_reads, swap_reads, change_attribute, change_attribute),
    *(change_constant, change_constant, relative, relative, remove_node),
)
SAME: tuple[Edit, ...] = (
    *(insert_copy, insert_copy, insert_copy, compute_again, constancy, move_node, move_node),
    *(in_parts, in_parts, other_form, other_form),
)
_TRIES = 40


def edited(model: onnx.ModelProto, types: Mapping[str, Type], r: random.Random) -> list[str]:
    """Edit ``model`` one to three times.

    Args:
        model: is changed.
        types: of the tensors of its main graph; where there are none fewer edits are possible.
        r: draws the edits.

    Returns:
        What was done, in words; nothing where nothing could be.
    """
    said: list[str] = []
    scene = Scene(model, model.graph, dict(types), r)
    wanted = r.choice((1, 1, 1, 1, 2, 2, 3))
    share = r.choice((0.15, 0.5, 0.85))  # of edits that change the result
    for _ in range(_TRIES):
        if len(said) == wanted:
            break
        bodies = list(all_graphs(model.graph))[1:]
        inside = bool(bodies) and r.random() < 0.25
        where = Scene(model, r.choice(bodies), {}, r) if inside else scene
        edit = r.choice(OTHER if r.random() < share else SAME)
        try:
            said.append(f"{'inside, ' if inside else ''}{edit(where)}")
        except IMPOSSIBLE:
            continue
    return said
