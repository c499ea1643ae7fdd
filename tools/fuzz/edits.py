"""Small edits of a rewritten file, most of which leave it valid: what a proof must tell apart.

Half of them change what the file computes, by as little as a bit; half do not, or only do so in
exact arithmetic: another kernel, another order of additions, a copy. An edit says in words what it
did; one that finds nothing to work on raises one of :data:`IMPOSSIBLE`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from mutate import graphs_of
from onnx import AttributeProto, TensorProto, helper, numpy_helper

IMPOSSIBLE = (ValueError, IndexError, TypeError, KeyError)

Type = tuple[int, tuple[int, ...] | None]
"""Element type of a tensor, and its shape where every run has the same."""


@dataclass(slots=True)
class Scene:
    """A model that is edited, the graph in it (the main graph or a body), and the types of the
    tensors of the main graph."""

    model: onnx.ModelProto
    graph: onnx.GraphProto
    types: dict[str, Type]
    r: random.Random
    made: int = 0
    taken: set[str] = field(default_factory=set)

    def fresh(self, like: str) -> str:
        """A name that nothing has."""
        if not self.taken:
            for graph in graphs_of(self.model.graph):
                self.taken.update(name for node in graph.node for name in node.output)
                self.taken.update(each.name for each in (*graph.input, *graph.initializer))
        while (name := f"{like}.e{self.made}") in self.taken:
            self.made += 1
        self.taken.add(name)
        if like in self.types:
            self.types[name] = self.types[like]
        return name

    def constant(self, value: object, dtype: int) -> str:
        """A new initializer of the graph."""
        name = self.fresh("const")
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(dtype))
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        self.types[name] = (dtype, array.shape)
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        """A known shape."""
        shape = self.types[name][1]
        if shape is None:
            raise ValueError(name)
        return shape

    def node(self, test: Callable[[onnx.NodeProto], bool] = bool) -> onnx.NodeProto:
        """Any node that passes a test."""
        return self.r.choice([node for node in self.graph.node if test(node)])

    def place(self, node: onnx.NodeProto) -> int:
        """Where a node stands."""
        return next(k for k, each in enumerate(self.graph.node) if each is node or each == node)

    def insert(self, place: int, *nodes: onnx.NodeProto) -> None:
        """Put nodes into the graph."""
        for k, node in enumerate(nodes):
            self.graph.node.insert(place + k, node)

    def before(self, place: int) -> list[str]:
        """Tensors that are there when the node at a place runs."""
        names = [each.name for each in (*self.graph.input, *self.graph.initializer)]
        names += [name for node in self.graph.node[:place] for name in node.output]
        return [name for name in names if name]

    def alike(self, name: str, place: int, *, shaped: bool = True) -> str:
        """Another tensor of the type of ``name`` that is there at a place; one that resembles it by
        name, as copies do, more often than not."""
        kind = self.types[name]
        found = [
            other
            for other in self.before(place)
            if other != name
            and (seen := self.types.get(other)) is not None
            and (seen == kind if shaped else seen[0] == kind[0])
        ]
        near = [other for other in found if other[:6] == name[:6]]
        return self.r.choice(near if near and self.r.random() < 0.5 else found)

    def drop(self, place: int) -> None:
        """Remove a node."""
        del self.graph.node[place]


def _slot(s: Scene, node: onnx.NodeProto) -> int:
    return s.r.choice([k for k, name in enumerate(node.input) if name])


def _op(node: onnx.NodeProto) -> str:
    return node.op_type if not node.domain else f"{node.domain}.{node.op_type}"


# What changes the result


def read_another(s: Scene) -> str:
    """Let a node read another tensor of the same type."""
    node = s.node(lambda node: bool(node.input))
    slot, place = _slot(s, node), s.place(node)
    shaped = s.r.random() < 0.8
    if node.input[slot] in s.types:
        node.input[slot] = s.alike(node.input[slot], place, shaped=shaped)
    else:  # in a body
        node.input[slot] = s.r.choice([n for n in s.before(place) if n != node.input[slot]])
    return f"reads another: {_op(node)} input {slot}"


def swap_reads(s: Scene) -> str:
    """Exchange two inputs of a node."""
    node = s.node(lambda node: len(set(node.input)) > 1)
    a, b = s.r.sample(range(len(node.input)), 2)
    if node.input[a] == node.input[b]:
        raise ValueError
    node.input[a], node.input[b] = node.input[b], node.input[a]
    return f"swapped inputs {min(a, b)} and {max(a, b)}: {_op(node)}"


def change_attribute(s: Scene) -> str:
    """Another value of an attribute, or its default."""
    node = s.node(lambda node: any(not a.HasField("g") for a in node.attribute))
    k = s.r.choice([k for k, a in enumerate(node.attribute) if not a.HasField("g")])
    attribute = node.attribute[k]
    said = f"attribute {attribute.name}: {_op(node)}"
    if s.r.random() < 0.2:
        del node.attribute[k]
        return f"no {said}"
    if attribute.type == AttributeProto.INT:
        attribute.i = s.r.choice((attribute.i + 1, attribute.i - 1, 1 - attribute.i))
    elif attribute.type == AttributeProto.FLOAT:
        near = float(np.nextafter(np.float32(attribute.f), np.float32(9)))
        attribute.f = s.r.choice((near, attribute.f + 0.5, -attribute.f))
    elif attribute.type == AttributeProto.INTS:
        at = s.r.randrange(len(attribute.ints))
        attribute.ints[at] += s.r.choice((1, -1))
    elif attribute.type == AttributeProto.STRING:
        words = (b"VALID", b"SAME_UPPER", b"linear", b"nearest", b"none", b"add", b"tanh", b"mul")
        attribute.s = s.r.choice(words)
    elif attribute.type == AttributeProto.TENSOR:
        _change_content(attribute.t, s.r)
    else:
        raise ValueError
    return said


def _change_content(tensor: onnx.TensorProto, r: random.Random) -> str:
    array = numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    k, how = r.randrange(flat.size), r.randrange(4)
    if array.dtype == bool:
        flat[k] = not flat[k]
    elif how == 0 or array.dtype.kind not in "fiu":
        raw = bytearray(array.tobytes())
        raw[k * array.itemsize + r.randrange(array.itemsize)] ^= 1 << r.randrange(8)
        array = np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)
    elif how == 1 and array.dtype.kind == "f":
        flat[k] = np.copysign(flat[k], -1) if not np.signbit(flat[k]) else np.abs(flat[k])
    elif how == 2:
        flat[k] = r.choice((0, 1, 2, 2, 127)) if array.dtype.kind != "f" else r.choice(_NUMBERS)
    else:
        flat[k] += r.choice((1, -1)) if array.dtype.kind == "i" else 1
    if array.tobytes() == numpy_helper.to_array(tensor).tobytes():
        raise ValueError
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{array.dtype}{list(array.shape)}"


_NUMBERS = (0.0, -0.0, 1.0, 0.5, float("nan"), float("inf"), float("-inf"), 1e-40, 65504.0)


def change_constant(s: Scene) -> str:
    """Another bit, sign or number in a constant."""
    whole = [tensor for tensor in s.graph.initializer if tensor.dims or tensor.raw_data]
    tensor = s.r.choice(whole)
    return f"constant of {_change_content(tensor, s.r)}"


def move_node(s: Scene) -> str:
    """Put a node elsewhere, where all that it reads is there and nothing that reads it is."""
    place = s.r.randrange(len(s.graph.node))
    node = onnx.NodeProto()
    node.CopyFrom(s.graph.node[place])
    reads, makes = set(_reads(node)), set(node.output)
    first = last = place
    while first and not reads & set(s.graph.node[first - 1].output):
        first -= 1
    while last + 1 < len(s.graph.node) and not makes & set(_reads(s.graph.node[last + 1])):
        last += 1
    target = s.r.choice([first, last, s.r.randint(first, last)])
    if target == place:
        raise ValueError
    s.drop(place)
    s.insert(target, node)
    return f"moved {'up' if target < place else 'down'}: {_op(node)}"


def _reads(node: onnx.NodeProto) -> list[str]:
    """What a node and its bodies read."""
    found = list(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in graphs_of(attribute.g):
                found += [name for each in inner.node for name in each.input]
                found += [value.name for value in inner.output]
    return found


def another_output(s: Scene) -> str:
    """Give another tensor of the type under the name of an output, or exchange two outputs."""
    names = [value.name for value in s.graph.output]
    name = s.r.choice(names)
    rest = [other for other in names if other != name and s.types.get(other) == s.types.get(name)]
    if rest and s.r.random() < 0.4:
        other = s.r.choice(rest)
        _rename(s, {name: other, other: name})
        return "outputs exchanged"
    source = s.alike(name, len(s.graph.node))
    kept = s.fresh(name)
    _rename(s, {name: kept})
    s.insert(len(s.graph.node), helper.make_node("Identity", [source], [name], name=kept))
    return "another output"


def _rename(s: Scene, names: Mapping[str, str]) -> None:
    """Rename tensors that nodes make, but not what the graph hands out."""
    for graph in graphs_of(s.graph):
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]


_RELATIVES = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"),
    ("And", "Or", "Xor"),
    ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare"),
    ("Tanh", "Sigmoid", "Relu", "Identity", "Neg", "Exp", "Erf", "Abs", "Sqrt", "Softplus"),
    ("Sin", "Cos"),
    ("ArgMax", "ArgMin"),
    ("MaxPool", "AveragePool"),
    ("Softmax", "LogSoftmax", "Hardmax"),
    ("Reshape", "Expand"),
    ("Squeeze", "Unsqueeze"),
    ("Gelu", "FastGelu", "QuickGelu"),
)


def relative(s: Scene) -> str:
    """A near relative of the operator."""
    known = {op: family for family in _RELATIVES for op in family}
    node = s.node(lambda node: node.op_type in known)
    was = node.op_type
    node.op_type = s.r.choice([op for op in known[was] if op != was])
    return f"operator {was} -> {node.op_type}"


def initial_state(s: Scene) -> str:
    """A loop that begins with something else."""
    node = s.node(lambda node: node.op_type in ("Scan", "Loop", "LSTM", "GRU", "RNN"))
    place, slot = s.place(node), _slot(s, node)
    name = node.input[slot]
    if s.r.random() < 0.5:
        dtype, shape = s.types[name][0], s.shape(name)
        tiny = 1e-9 if dtype == TensorProto.FLOAT else 1
        node.input[slot] = s.constant(np.full(shape, s.r.choice((0, tiny, 1))), dtype)
    elif s.r.random() < 0.5:
        node.input[slot] = s.alike(name, place)
    else:
        changed = s.fresh(name)
        s.insert(place, helper.make_node("Neg", [name], [changed], name=changed))
        s.graph.node[place + 1].input[slot] = changed
    return f"loop begins otherwise: {node.op_type} input {slot}"


def remove_node(s: Scene) -> str:
    """Hand on what a node reads instead of what it makes."""
    place = s.r.randrange(len(s.graph.node))
    node = s.graph.node[place]
    made, source, op = node.output[0], node.input[0], _op(node)
    if made in {value.name for value in s.graph.output}:
        raise ValueError
    s.drop(place)
    for graph in graphs_of(s.graph):
        for each in graph.node:
            each.input[:] = [source if name == made else name for name in each.input]
    return f"removed: {op}"


def read_twin(s: Scene) -> str:
    """Let a node read what another node of the same kind makes."""
    node = s.node(lambda node: bool(node.input))
    place, slot = s.place(node), _slot(s, node)
    makers = {name: each for each in s.graph.node[:place] for name in each.output if name}
    own = makers[node.input[slot]]
    at = list(own.output).index(node.input[slot])
    twins = [
        each.output[at]
        for each in s.graph.node[:place]
        if each is not own and each.op_type == own.op_type and len(each.output) > at
    ]
    node.input[slot] = s.r.choice([name for name in twins if name and name != node.input[slot]])
    return f"reads a twin's: {_op(node)} input {slot} of {_op(own)}"


def seed(s: Scene) -> str:
    """Another seed of a random operator, or none, or one where there was none."""
    node = s.node(lambda node: node.op_type in ("Dropout", "Bernoulli", "RandomNormal"))
    found = [k for k, a in enumerate(node.attribute) if a.name == "seed"]
    if found and s.r.random() < 0.5:
        del node.attribute[found[0]]
    else:
        for k in found:
            del node.attribute[k]
        node.attribute.append(helper.make_attribute("seed", s.r.randrange(1, 9)))
    return f"seed: {_op(node)}"


# What does not, or only in the last bits


def _copies(s: Scene, name: str) -> Sequence[tuple[str, list[object], dict[str, object]]]:
    """Operators, one behind the other, that give what they are given: name, further inputs and
    attributes of each."""
    dtype, shape = s.types[name]
    rank = len(shape) if shape is not None else None
    ways: list[list[tuple[str, list[object], dict[str, object]]]] = [
        [("Identity", [], {})],
        [("Cast", [], {"to": dtype})],
    ]
    i64 = TensorProto.INT64
    if shape is not None and rank:
        turned = s.r.sample(range(rank), rank)
        back = [turned.index(axis) for axis in range(rank)]
        to, none = (list(shape), i64), ([0] * rank, i64)
        ways += [
            [("Transpose", [], {"perm": turned}), ("Transpose", [], {"perm": back})],
            [("Reshape", [to], {})],
            [("Reshape", [([-1], i64)], {}), ("Reshape", [to], {})],
            [("Unsqueeze", [([0], i64)], {}), ("Squeeze", [([0], i64)], {})],
            [("Expand", [to], {})],
            [("Slice", [none, to], {})],
            [("Pad", [([0] * (2 * rank), i64)], {})],
            [("Tile", [([1] * rank, i64)], {})],
            [("Concat", [], {"axis": 0})],
        ]
    wider = {1: (11,), 10: (1, 11), 6: (7, 11), 7: (11, 6), 9: (1, 2, 3, 7), 2: (7, 1)}
    narrower = {1: (10, 16), 11: (1,), 7: (6, 3, 1), 6: (3, 1, 2)}
    for other in (*wider.get(dtype, ()), *narrower.get(dtype, ())):
        ways.append([("Cast", [], {"to": other}), ("Cast", [], {"to": dtype})])
    if dtype in (1, 10, 11):
        ways += [
            [("Neg", [], {}), ("Neg", [], {})],
            [("Mul", [(1, dtype)], {})],
            [("Div", [(1, dtype)], {})],
            [("Add", [(0, dtype)], {})],
            [("Add", [(-0.0, dtype)], {})],
            [("Sub", [(0, dtype)], {})],
            [("Max", [(-np.inf, dtype)], {})],
            [("Dropout", [], {})],
            [("Clip", [], {})],
        ]
    if dtype in (6, 7):
        ways += [[("Add", [(3, dtype)], {}), ("Sub", [(3, dtype)], {})], [("Abs", [], {})]]
        ways += [[("Sub", [(3, dtype)], {}), ("Add", [(3, dtype)], {})]]
    if dtype == 9:
        ways += [[("Not", [], {}), ("Not", [], {})]]
    return s.r.choice(ways)


def insert_copy(s: Scene) -> str:
    """Something between a tensor and one of its readers that gives what it is given."""
    node = s.node(lambda node: any(name in s.types for name in node.input))
    place = s.place(node)
    slot = s.r.choice([k for k, name in enumerate(node.input) if name in s.types])
    name = source = node.input[slot]
    steps = _copies(s, name)
    for k, (op, more, attributes) in enumerate(steps):
        last = k == len(steps) - 1
        made = s.fresh(name if last else "between")
        inputs = [source, *(s.constant(*each) for each in more)]  # type: ignore[misc]
        s.insert(place + k, helper.make_node(op, inputs, [made], name=made, **attributes))
        source = made
    s.graph.node[place + len(steps)].input[slot] = source
    said = " ".join(op for op, *_ in steps)
    return f"inserted {said}: {_op(s.graph.node[place + len(steps)])} input {slot}"


def compute_again(s: Scene) -> str:
    """The same node a second time, for one of the readers."""
    place = s.r.randrange(len(s.graph.node))
    node = s.graph.node[place]
    again = onnx.NodeProto()
    again.CopyFrom(node)
    again.name = s.fresh(node.name or "again")
    names = {name: s.fresh(name) for name in node.output if name}
    again.output[:] = [names.get(name, name) for name in node.output]
    readers = [
        (k, slot)
        for k, each in enumerate(s.graph.node)
        for slot, name in enumerate(each.input)
        if name in names and k > place
    ]
    k, slot = s.r.choice(readers)
    s.graph.node[k].input[slot] = names[s.graph.node[k].input[slot]]
    s.insert(k, again)
    return f"computed again: {_op(node)}"


def optional_output(s: Scene) -> str:
    """An optional output more, or one that nothing reads less."""
    known = {"MaxPool": 2, "Dropout": 2, "LayerNormalization": 3, "BatchNormalization": 3}
    known |= {"LSTM": 3, "GRU": 2, "RNN": 2, "SkipLayerNormalization": 4, "Attention": 4}
    node = s.node(lambda node: node.op_type in known)
    read = {name for graph in graphs_of(s.model.graph) for n in graph.node for name in n.input}
    read |= {value.name for value in s.model.graph.output}
    unread = [k for k, name in enumerate(node.output) if name and k and name not in read]
    blank = [k for k in range(1, known[node.op_type]) if not dict(enumerate(node.output)).get(k)]
    if unread and (not blank or s.r.random() < 0.5):
        node.output[s.r.choice(unread)] = ""
        while node.output and not node.output[-1]:
            del node.output[-1]
        return f"without an optional output: {_op(node)}"
    slot = s.r.choice(blank)
    while len(node.output) <= slot:
        node.output.append("")
    node.output[slot] = s.fresh("optional")
    return f"with an optional output: {_op(node)} output {slot}"


def constancy(s: Scene) -> str:
    """A constant that is computed, or held otherwise."""
    k = s.r.randrange(len(s.graph.initializer))
    tensor = s.graph.initializer[k]
    name, how = tensor.name, s.r.randrange(3)
    if name in {value.name for value in s.graph.input}:
        raise ValueError
    first = min((p for p, node in enumerate(s.graph.node) if name in _reads(node)), default=0)
    if how == 0:
        held = onnx.TensorProto()
        held.CopyFrom(tensor)
        del s.graph.initializer[k]
        s.insert(first, helper.make_node("Constant", [], [name], name=f"{name}/held", value=held))
        return "initializer -> Constant"
    kept = s.fresh(name)
    tensor.name = kept
    if how == 1:
        s.insert(first, helper.make_node("Identity", [kept], [name], name=f"{name}/copied"))
        return "initializer behind Identity"
    array = numpy_helper.to_array(tensor)
    if array.size < 2:
        raise ValueError
    parts = np.split(array, [array.shape[0] // 2])
    names = [s.constant(part, tensor.data_type) for part in parts]
    s.insert(first, helper.make_node("Concat", names, [name], name=f"{name}/joined", axis=0))
    return "initializer put together"


_IN_ROWS = (
    *("Add", "Sub", "Mul", "Div", "Tanh", "Sigmoid", "Exp", "Erf", "Sqrt", "Relu", "Neg", "Gelu"),
    *("Log", "Softplus", "MatMul", "Gemm", "Softmax", "LogSoftmax", "LayerNormalization", "Cast"),
    *("Conv", "ReduceSum", "ReduceMean", "Where", "Greater", "Pow", "Gather", "Transpose"),
)


def in_parts(s: Scene) -> str:
    """A node on two ranges of its first axis, and the results joined; sometimes one row wrong."""
    node = s.node(lambda node: node.op_type in _IN_ROWS and node.output[0] in s.types)
    place, made = s.place(node), node.output[0]
    rows = s.shape(made)[0]
    cut = s.r.randrange(1, rows)
    axis = 0
    sliced = [
        slot
        for slot, name in enumerate(node.input)
        if name in s.types and len(s.shape(name)) == len(s.shape(made)) and s.shape(name)[0] == rows
    ]
    wrong = s.r.random() < 0.3
    results, nodes = [], []
    for begin, end in ((0, cut), (cut, rows)):
        if wrong and begin:
            begin, wrong = begin - 1, False
            end = begin + (rows - cut)
        part = onnx.NodeProto()
        part.CopyFrom(node)
        part.name = s.fresh(f"{node.name}/part")
        for slot in sliced:
            bounds = [s.constant([number], TensorProto.INT64) for number in (begin, end, axis)]
            name = s.fresh("part")
            slice_ = helper.make_node("Slice", [node.input[slot], *bounds], [name], name=name)
            nodes.append(slice_)
            part.input[slot] = name
        results.append(s.fresh("piece"))
        part.output[:] = results[-1:]
        nodes.append(part)
    op = _op(node)
    nodes.append(helper.make_node("Concat", results, [made], name=f"{node.name}/join", axis=0))
    if len(node.output) > 1 and any(node.output[1:]):
        raise ValueError
    s.drop(place)
    s.insert(place, *nodes)
    return f"in parts: {op}"


def _forms(
    s: Scene, node: onnx.NodeProto
) -> Sequence[Sequence[tuple[str, list[str], dict[str, object]]]]:
    """What computes the same in exact arithmetic; the last of each gives the result, ``^`` is what
    the one before made."""
    reads, op = list(node.input), node.op_type
    dtype = s.types[node.output[0]][0]
    found: dict[str, list[list[tuple[str, list[str], dict[str, object]]]]] = {
        "Add": [[("Sum", reads, {})], [("Neg", reads[1:2], {}), ("Sub", [reads[0], "^"], {})]],
        "Sub": [[("Neg", reads[1:2], {}), ("Add", [reads[0], "^"], {})]],
        "Div": [[("Reciprocal", reads[1:2], {}), ("Mul", [reads[0], "^"], {})]],
        "Sqrt": [[("Pow", [reads[0], "0.5"], {})]],
        "Relu": [[("Max", [reads[0], "0"], {})], [("Clip", [reads[0], "0"], {})]],
        "Neg": [[("Mul", [reads[0], "-1"], {})], [("Sub", ["0", reads[0]], {})]],
        "Greater": [[("Less", reads[::-1], {})], [("LessOrEqual", reads, {}), ("Not", ["^"], {})]],
        "GreaterOrEqual": [[("Less", reads, {}), ("Not", ["^"], {})]],
        "Gemm": [[("MatMul", reads[:2], {}), ("Add", ["^", *reads[2:3]], {})]],
        "Sum": [[("Add", reads[:2], {})]],
        "Mul": [[("Mul", reads[::-1], {})]],
        "ReduceMean": [[("ReduceSum", reads, {})]],
        "Where": [[("Not", reads[:1], {}), ("Where", ["^", reads[2], reads[1]], {})]],
        "Tanh": [[("Neg", reads[:1], {}), ("Tanh", ["^"], {}), ("Neg", ["^"], {})]],
        "Or": [[("Or", reads[::-1], {})]],
        "Identity": [[("Cast", reads, {"to": dtype})]],
        "Softmax": [[("LogSoftmax", reads, {}), ("Exp", ["^"], {})]],
    }
    return found[op]


def other_form(s: Scene) -> str:
    """Other operators that compute the same in exact arithmetic."""
    node = s.node(lambda node: bool(node.input) and node.output[0] in s.types)
    place, was = s.place(node), _op(node)
    steps = s.r.choice(_forms(s, node))
    made, dtype = node.output[0], s.types[node.input[0]][0]
    last, nodes = "", []
    for k, (op, reads, attributes) in enumerate(steps):
        names = [last if name == "^" else name for name in reads]
        names = [s.constant(float(n), dtype) if n in ("0", "-1", "0.5") else n for n in names]
        out = made if k == len(steps) - 1 else s.fresh("step")
        nodes.append(helper.make_node(op, names, [out], name=s.fresh(node.name), **attributes))
        if op in (node.op_type, "LogSoftmax"):
            nodes[-1].attribute.extend(node.attribute)
        last = out
    s.drop(place)
    s.insert(place, *nodes)
    return f"{was} as {' '.join(op for op, *_ in steps)}"


def rebuilt_dropout(s: Scene) -> str:
    """Dropout's output from its mask, divided by the share that is kept or times its inverse."""
    node = s.node(lambda node: node.op_type == "Dropout" and len(node.input) > 2)
    place, made, source = s.place(node), node.output[0], node.input[0]
    held = {tensor.name: tensor for tensor in s.graph.initializer}
    ratio = np.float32(numpy_helper.to_array(held[node.input[1]]).reshape(-1)[0])
    share = np.float32(1) - ratio
    divided = s.r.random() < 0.5
    scale = share if divided else np.float32(1) / share
    if s.r.random() < 0.3:
        scale = np.nextafter(scale, np.float32(9))
    if len(node.output) < 2 or not node.output[1]:
        node.output[:] = [made, s.fresh("mask")]
    mask = node.output[1]
    readers = [
        (k, slot)
        for k, each in enumerate(s.graph.node)
        for slot, name in enumerate(each.input)
        if name == made
    ]
    k, slot = s.r.choice(readers)
    names = [s.fresh("cast"), s.fresh("kept"), s.fresh(made)]
    op = "Div" if divided else "Mul"
    number = s.constant(scale, TensorProto.FLOAT)
    s.graph.node[k].input[slot] = names[2]
    s.insert(
        max(k, place + 1),
        helper.make_node("Cast", [mask], [names[0]], name=names[0], to=TensorProto.FLOAT),
        helper.make_node("Mul", [names[0], source], [names[1]], name=names[1]),
        helper.make_node(op, [names[1], number], [names[2]], name=names[2]),
    )
    return f"Dropout rebuilt by {op}"


def exchange_names(s: Scene) -> str:
    """The names of two nodes, which a rule may go by."""
    one, other = s.r.sample(range(len(s.graph.node)), 2)
    first, second = s.graph.node[one], s.graph.node[other]
    first.name, second.name = second.name, first.name
    return f"names exchanged: {_op(first)}, {_op(second)}"


Edit = Callable[[Scene], str]
_OTHER: tuple[Edit, ...] = (
    *(read_another, read_another, read_twin, swap_reads, swap_reads),
    *(change_attribute, change_attribute, change_constant, change_constant, change_constant),
    *(another_output, relative, relative, initial_state, remove_node, seed),
)
_SAME: tuple[Edit, ...] = (
    *(insert_copy, insert_copy, insert_copy, compute_again, optional_output, constancy),
    *(move_node, move_node, in_parts, in_parts, other_form, other_form, rebuilt_dropout),
    exchange_names,
)
_INSIDE: tuple[Edit, ...] = (
    *(read_another, swap_reads, change_attribute, change_constant, relative, remove_node),
    *(move_node, read_twin),
)
_TRIES = 40


def edited(model: onnx.ModelProto, types: Mapping[str, Type], r: random.Random) -> list[str]:
    """Edit ``model`` one to three times.

    Args:
        model: is changed.
        types: of the tensors of its main graph.
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
        bodies = list(graphs_of(model.graph))[1:]
        if bodies and r.random() < 0.25:
            inner = Scene(model, r.choice(bodies), {}, r, scene.made)
            edit: Edit = r.choice(_INSIDE)
            said += [f"inside, {words}" for words in _tried(edit, inner)]
        else:
            said += _tried(r.choice(_OTHER if r.random() < share else _SAME), scene)
    return said


def _tried(edit: Edit, scene: Scene) -> list[str]:
    try:
        return [edit(scene)]
    except IMPOSSIBLE:
        return []
