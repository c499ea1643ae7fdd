"""Random graphs in float64: ONNX's own node tests, one behind the other.

ONNX has a test of every form of every operator, with inputs that lie in its domain. A graph strings
some of them together: what a test feeds is a new input of the graph, alone or a little moved by
what was computed before, sometimes behind a transposition, and sometimes one tensor is read twice.
"""

import random
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ended  # noqa: F401  (puts tests/ on the path)
import numpy as np
import onnx
from onnx import helper, numpy_helper

from helpers.gradients import Array, reference
from helpers.node_tests import MODULES, Form, Rejected, forms
from memplan.proto.nodes import names_read, reads_of

_OPSETS = (18, 20, 20, 21, 22, 23, 24)
_SYMBOLIC = 0.12  # share of graphs whose inputs have symbolic dimensions
_MOST_ELEMENTS = 3000
_LARGEST_VALUE = 1e4
_LIKELY = ("matmul", "gemm", "mul", "add", "transpose", "reshape", "einsum", "conv", "softmax")


@dataclass(slots=True)
class Draft:
    """A graph under construction: ``arrays`` is the value of every tensor, ``leaves`` are the float
    inputs that are differentiated by, ``made`` floats that nodes made."""

    r: random.Random
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    leaves: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    fresh: int = 0

    def name(self, stem: str) -> str:
        self.fresh += 1
        return f"{stem}{self.fresh}"

    def maybe(self, share: float) -> bool:
        return self.r.random() < share

    def numbers(self, shape: Sequence[int], size: float = 1.0) -> Array:
        """Evenly spread and shuffled: none close to another."""
        spread = np.linspace(-size, size, int(np.prod(shape, dtype=int)) + 2)[1:-1]
        order = np.random.default_rng(self.r.randrange(1 << 30)).permutation(len(spread))
        return spread[order].reshape(tuple(shape))

    def tensor(self, array: Array, *, moving: bool) -> str:
        """A new input, or an initializer or the output of a Constant."""
        name = self.name("x" if moving else "c")
        self.arrays[name] = array
        if moving:
            self.leaves.append(name)
        elif self.maybe(0.3) or array.dtype.kind not in "fiub":
            tensor = numpy_helper.from_array(array, name)
            self.nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
        else:
            self.constants.append(name)
        return name

    def operand(self, array: Array) -> str:
        """A float of the shape of an array, and near it."""
        alike = [n for n in (*self.made, *self.leaves) if self.arrays[n].shape == array.shape]
        near = [n for n in alike if np.abs(self.arrays[n] - array).max(initial=0.0) < 0.5]
        if near and self.maybe(0.3):
            return self.r.choice(near)
        # Away from ties and corners, where there is no derivative.
        array = array + 0.02 * self.numbers(array.shape)
        if array.ndim > 1 and self.maybe(0.3):
            order = self.r.choice(
                (list(range(array.ndim)), self.r.sample(range(array.ndim), array.ndim))
            )
            turned = self.tensor(array.transpose(np.argsort(order)), moving=True)
            return self.add("Transpose", [turned], perm=order)[0]
        leaf = self.tensor(array, moving=not self.maybe(0.1))
        known = [n for n in self.made[-6:] if self.arrays[n].size]
        if not known or not array.size or self.maybe(0.3):
            return leaf
        if alike and self.maybe(0.5):
            source = self.r.choice(alike)
        else:
            flat = [self.r.choice(known), self.tensor(np.array([-1]), moving=False)]
            wanted = [self.tensor(np.array([array.size]), moving=False)]
            (line,) = self.add("Reshape", flat)
            times = -(-array.size // self.arrays[line].size)
            (line,) = self.add("Tile", [line, self.tensor(np.array([times]), moving=False)])
            begin = self.tensor(np.array([0]), moving=False)
            (line,) = self.add("Slice", [line, begin, *wanted])
            shape = self.tensor(np.array(array.shape, np.int64), moving=False)
            (source,) = self.add("Reshape", [line, shape])
        (bounded,) = self.add(self.r.choice(("Sin", "Tanh", "Sigmoid")), [source])
        share = self.tensor(np.array(0.05), moving=False)
        return self.add("Add", [leaf, *self.add("Mul", [bounded, share])])[0]

    def form(self, form: Form) -> None:
        """A node test, in this graph.

        Raises:
            Rejected: it is none of this opset, or does not run here.
        """
        schema = onnx.defs.get_schema(form.node.op_type, self.opset)
        known = {item.name for item in form.node.attribute} <= set(schema.attributes)
        if not known or len(form.fed) > schema.max_input or schema.deprecated:
            raise Rejected
        names: list[str] = []
        for place, array in enumerate(form.fed):
            if array is None:
                names.append("")
            elif place in form.moving:
                alike = [n for n in filter(None, names) if self.arrays[n].shape == array.shape]
                again = alike and self.arrays[alike[-1]].dtype == array.dtype and self.maybe(0.15)
                names.append(alike[-1] if again else self.operand(array))
            else:
                names.append(self.tensor(array, moving=False))
        node = onnx.NodeProto.FromString(form.node.SerializeToString())
        node.input[:] = names
        node.output[:] = [name and self.name("t") for name in node.output]
        self.append(node)

    def add(self, op: str, inputs: list[str], **attributes: Any) -> list[str]:
        """A node with one output."""
        self.append(helper.make_node(op, inputs, [self.name("t")], **attributes))
        return list(self.nodes[-1].output)

    def append(self, node: onnx.NodeProto) -> None:
        """A node whose floats can be read by others.

        Raises:
            Rejected: it cannot be evaluated, or gives what is not finite or too large.
        """
        node.name = self.name(f"{node.op_type}_")
        given = [name for name in node.input if name]
        outputs = [name for name in node.output if name]
        model = self.as_model(
            helper.make_graph(
                [node],
                "one",
                [info(name, self.arrays[name], False) for name in given],
                [helper.make_empty_tensor_value_info(name) for name in outputs],
            )
        )
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = reference(model, {name: self.arrays[name] for name in given})
        except Exception as error:
            raise Rejected from error
        arrays = [np.asarray(array) for array in found.values()]
        for array in arrays:
            if array.size > _MOST_ELEMENTS or array.dtype.kind not in "fiub":
                raise Rejected
            if array.dtype.kind == "f" and not (np.abs(array) < _LARGEST_VALUE).all():
                raise Rejected
        self.nodes.append(node)
        self.arrays.update(zip(outputs, arrays, strict=True))
        self.made += [n for n, a in zip(outputs, arrays, strict=True) if a.dtype == np.float64]

    def as_model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10
        )

    def attempt(self, form: Form) -> None:
        """Draw a form; what it left is taken back if it is rejected."""
        fields = ("nodes", "leaves", "constants", "made")
        before = {name: list(getattr(self, name)) for name in fields}
        try:
            self.form(form)
        except (Rejected, onnx.defs.SchemaError):
            for name, items in before.items():
                setattr(self, name, items)


@dataclass(frozen=True, slots=True)
class Case:
    """A forward graph in float64, the values of its inputs, and what is differentiated: the sum of
    each of ``ys`` times its weights, by each of ``xs``."""

    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    xs: tuple[str, ...]
    weights: Mapping[str, Array]

    @property
    def ys(self) -> tuple[str, ...]:
        return tuple(self.weights)

    @property
    def dims(self) -> dict[str, int]:
        """The sizes of symbolic dimensions."""
        shapes = {value.name: value.type.tensor_type.shape.dim for value in self.model.graph.input}
        pairs = (zip(dims, self.feeds[x].shape, strict=True) for x, dims in shapes.items())
        return {dim.dim_param: n for each in pairs for dim, n in each if dim.dim_param}


def drawn(r: random.Random, modules: Sequence[str] = MODULES, most: int = 8) -> Case:
    """A random case of up to ``most`` forms."""
    while True:
        d = Draft(r, r.choice(_OPSETS))
        for _ in range(r.randint(2, most)):
            likely = [name for name in _LIKELY if name in modules]
            module = r.choice(likely if likely and d.maybe(0.25) else modules)
            if forms(module):
                d.attempt(r.choice(forms(module)))
        with suppress(Rejected):
            return finished(d)


def finished(d: Draft) -> Case:
    """The graph of a draft, with some tensors as outputs whether others read them or not."""
    read = names_read(d.nodes)
    reach = ancestors(d.nodes)
    moving = [n for n in d.made if reach[n] & set(d.leaves)]
    if not moving:
        raise Rejected
    ends = [name for name in moving if name not in read] or moving[-1:]
    ys = d.r.sample(ends, min(len(ends), d.r.choice((1, 2, 2, 3))))
    if d.maybe(0.25):
        ys.append(d.r.choice(moving))
    ys = list(dict.fromkeys(ys))
    needed = set().union(*(reach[y] for y in ys))
    nodes = [node for node in d.nodes if needed.intersection(node.output)]
    xs = [x for x in d.leaves if x in needed]
    weights = {y: d.numbers(d.arrays[y].shape) for y in ys}
    symbolic = d.maybe(_SYMBOLIC)
    stored = {x for x in xs if d.maybe(0.3)}
    constants = [n for n in d.constants if n in needed]
    graph = helper.make_graph(
        nodes,
        "random",
        [info(n, d.arrays[n], symbolic) for n in xs if n not in stored],
        [info(n, d.arrays[n], None) for n in ys],
        [numpy_helper.from_array(d.arrays[n], n) for n in (*sorted(stored), *constants)],
    )
    return Case(d.as_model(graph), {x: d.arrays[x] for x in xs}, tuple(xs), weights)


def ancestors(nodes: Sequence[onnx.NodeProto]) -> dict[str, set[str]]:
    """What each tensor depends on, itself included; inputs are in none of the keys."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        whole = set().union(*(found.get(name, {name}) for name in reads_of(node)))
        for name in filter(None, node.output):
            found[name] = {name} | whole
    return found


def info(name: str, array: Array, symbolic: bool | None) -> onnx.ValueInfoProto:
    """The type of a tensor; ``symbolic`` None: without a shape, True: sizes have names."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    dims = [f"d{n}" if symbolic and n > 1 else n for n in array.shape]
    return helper.make_tensor_value_info(name, kind, None if symbolic is None else dims)
