"""Random graphs in float64: ONNX's own node tests, one behind the other.

ONNX has a test of every form of every operator, with inputs that lie in its domain. A graph strings
some of them together: what a test feeds is a new input of the graph, alone or a little moved by
what was computed before, sometimes behind a transposition, and sometimes one tensor is read twice.
"""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node as node_tests
from onnx.reference import ReferenceEvaluator

from memplan.autodiff.emit.gradient_registry import registered

Array = npt.NDArray[Any]
DOUBLE = TensorProto.DOUBLE
_OPSETS = (18, 20, 20, 21, 22, 23, 24)
_SYMBOLIC = 0.12  # share of graphs whose inputs have symbolic dimensions
_MOST_ELEMENTS = 3000
_LARGEST_VALUE = 1e4
_LIKELY = ("matmul", "gemm", "mul", "add", "transpose", "reshape", "einsum", "conv", "softmax")
TESTS = node_tests.__name__
MODULES = tuple(sorted(path.stem for path in Path(node_tests.__file__).parent.glob("[a-z]*.py")))


class Rejected(Exception):
    """A form that cannot be had here: another is drawn."""


@dataclass(frozen=True, slots=True)
class Form:
    """A node test: its node, and what it is fed, by place; None is left out. ``moving`` are the
    places of floats that it may be differentiated by."""

    node: onnx.NodeProto
    fed: tuple[Array | None, ...]
    moving: frozenset[int]


@cache
def forms(module: str) -> Sequence[Form]:
    """The node tests of a module of ONNX that have a gradient here, in float64."""
    before = len(node_tests._NodeTestCases)
    # What functions expand to takes most of the time, and is no form of its own.
    no_functions = mock.patch.object(node_tests, "function_testcase_helper", return_value=([], 0))
    with no_functions, warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        importlib.import_module(f"{TESTS}.{module}")
    with_gradient = {op for domain, op in registered() if not domain}
    found = []
    for test in node_tests._NodeTestCases[before:]:
        node, fed = test.model.graph.node[0], test.data_sets[0][0]
        if node.op_type in with_gradient and not node.domain:
            with suppress(Rejected):
                found.append(_form(node, fed))
    return found


def _form(node: onnx.NodeProto, fed: Sequence[Any]) -> Form:
    schema = onnx.defs.get_schema(node.op_type)
    node = onnx.NodeProto.FromString(node.SerializeToString())
    _widened(node)
    values, moving = iter(fed), set()
    arrays: list[Array | None] = []
    for place, name in enumerate(node.input):
        array = next(values) if name else None
        if not (array is None or isinstance(array, np.ndarray | np.generic)):
            raise Rejected  # a sequence, an optional
        slot = schema.inputs[min(place, len(schema.inputs) - 1)]
        array = None if array is None else np.asarray(array)
        if (
            array is not None
            and array.dtype in (np.float32, np.float64)
            and "double" in str(slot.types)
        ):
            array = array.astype(np.float64)
            fixed = slot.differentiation_category.name == "NonDifferentiable"
            moving |= set() if fixed else {place}
        elif array is not None and array.dtype.kind not in "fiub":
            raise Rejected
        arrays.append(array)
    if node.op_type == "BatchNormalization" and any(
        item.name == "training_mode" and item.i for item in node.attribute
    ):
        moving &= {0, 1, 2}  # ONNX Runtime writes over the others in training mode
    draws = node.op_type == "Dropout" and len(arrays) > 2 and np.any(arrays[2])
    if not moving or draws:
        raise Rejected
    return Form(node, tuple(arrays), frozenset(moving))


def _widened(node: onnx.NodeProto) -> None:
    """Floats that a node names are of double precision: of a Cast, and in bodies."""
    for item in node.attribute:
        if item.name in ("to", "dtype", "stash_type") and item.i == TensorProto.FLOAT:
            item.i = DOUBLE if item.name != "stash_type" else item.i
        if item.HasField("g"):
            for value in (*item.g.input, *item.g.output):
                if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                    value.type.tensor_type.elem_type = DOUBLE
            for inner in item.g.node:
                _widened(inner)
        if item.HasField("t") and item.t.data_type == TensorProto.FLOAT:
            wide = numpy_helper.to_array(item.t).astype(np.float64)
            item.t.CopyFrom(numpy_helper.from_array(wide, item.t.name))


@dataclass(slots=True)
class Draft:
    """A graph under construction: ``arrays`` is the value of every tensor, ``leaves`` are the float
    inputs that are differentiated by, ``made`` floats that nodes made."""

    r: random.Random
    opset: int
    evaluators: Sequence[Any]
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
                evaluator = ReferenceEvaluator(model, new_ops=list(self.evaluators))
                found = evaluator.run(None, {name: self.arrays[name] for name in given})
        except Exception as error:
            raise Rejected from error
        arrays = [np.asarray(array) for array in found]
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


def drawn(
    r: random.Random, evaluators: Sequence[Any], modules: Sequence[str] = MODULES, most: int = 8
) -> Case:
    """A random case of up to ``most`` forms."""
    while True:
        d = Draft(r, r.choice(_OPSETS), evaluators)
        for _ in range(r.randint(2, most)):
            likely = [name for name in _LIKELY if name in modules]
            module = r.choice(likely if likely and d.maybe(0.25) else modules)
            if forms(module):
                d.attempt(r.choice(forms(module)))
        with suppress(Rejected):
            return finished(d)


def finished(d: Draft) -> Case:
    """The graph of a draft, with some tensors as outputs whether others read them or not."""
    read = {name for node in d.nodes for name in (*node.input, *captured(node))}
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
        read = {*filter(None, node.input), *captured(node)}
        whole = set().union(*(found.get(name, {name}) for name in read))
        for name in filter(None, node.output):
            found[name] = {name} | whole
    return found


def captured(node: onnx.NodeProto) -> set[str]:
    """What the bodies of a node read from around them."""
    found: set[str] = set()
    for item in node.attribute:
        if item.type == onnx.AttributeProto.GRAPH:
            own = {value.name for value in item.g.input}
            own |= {name for inner in item.g.node for name in inner.output}
            read = {name for inner in item.g.node for name in inner.input if name}
            read |= {value.name for value in item.g.output}
            found |= read - own
    return found


def info(name: str, array: Array, symbolic: bool | None) -> onnx.ValueInfoProto:
    """The type of a tensor; ``symbolic`` None: without a shape, True: sizes have names."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    dims = [f"d{n}" if symbolic and n > 1 else n for n in array.shape]
    return helper.make_tensor_value_info(name, kind, None if symbolic is None else dims)
