"""Random graphs in float64 for :mod:`values`, of layers that look for the odd forms of operators.

Every node is evaluated as it is drawn, so that layers know shapes and values of their operands.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]
Shape = Sequence[int]
DOUBLE = TensorProto.DOUBLE
_MOST_ELEMENTS = 200
_LARGEST_VALUE = 100.0
AGAIN = " again"
"""What the names of layers end with that make operators likelier to be drawn."""
_OPSETS = (13, 13, 14, 15, 16, 17, 17, 18, 18, 19, 20, 20, 21, 22, 23, 24)
_SYMBOLIC = 0.12  # share of graphs whose inputs have symbolic dimensions


class Rejected(Exception):
    """A layer that cannot be had of these operands: another is drawn."""


@dataclass(slots=True)
class Draft:
    """A graph under construction: ``arrays`` is the value of every tensor, ``leaves`` are the float
    inputs that are differentiated by."""

    r: random.Random
    opset: int
    evaluators: Sequence[Any]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    leaves: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    fresh: int = 0

    # -- operands ------------------------------------------------------------------------------

    def name(self, stem: str) -> str:
        self.fresh += 1
        return f"{stem}{self.fresh}"

    def maybe(self, share: float) -> bool:
        return self.r.random() < share

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """A shape of small sizes, often 1 and seldom 0."""
        rank = self.r.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5)) if rank is None else rank
        empty = self.maybe(0.04)
        sizes = (1, 2, 3, 4) if rank < 4 else (1, 2, 3)
        return tuple(0 if empty and self.maybe(0.3) else self.r.choice(sizes) for _ in range(rank))

    def numbers(self, shape: Shape, low: float = -1.9, high: float = 2.1) -> Array:
        """Evenly spread and shuffled: none close to another."""
        count = int(np.prod(shape, dtype=int))
        spread = low + (high - low) * (np.arange(count) + 0.2 + 0.6 * self.r.random()) / max(
            count, 1
        )
        self.r.shuffle(order := list(range(count)))
        return np.asarray(spread[order].reshape(tuple(shape)), np.float64)

    def leaf(self, shape: Shape, low: float = -1.9, high: float = 2.1) -> str:
        """A new float input of the graph."""
        name = self.name("x")
        self.arrays[name] = self.numbers(shape, low, high)
        self.leaves.append(name)
        return name

    def constant(self, value: object, kind: Any = np.float64) -> str:
        """An initializer, or the output of a node."""
        array = np.asarray(value, kind)
        name = self.name("c")
        self.arrays[name] = array
        if self.maybe(0.3):
            tensor = numpy_helper.from_array(array, name)
            self.nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
        else:
            self.constants.append(name)
        return name

    def ints(self, value: object) -> str:
        return self.constant(value, np.int64)

    def pick(
        self, fits: Callable[[tuple[int, ...]], bool] = lambda _: True, shape: Shape | None = None
    ) -> str:
        """A float tensor whose shape fits: an earlier one, mostly, or a new input."""
        known = [n for n in (*self.leaves, *self.made) if fits(self.arrays[n].shape)]
        if known and self.maybe(0.8):
            return self.r.choice(known[-8:])
        for _ in range(20):
            wanted = self.shape() if shape is None else tuple(shape)
            if fits(wanted):
                return self.leaf(wanted)
        raise Rejected

    def ranked(self, low: int, high: int = 5) -> str:
        """A tensor of a rank."""
        ranks = range(low, high + 1)
        return self.pick(lambda s: len(s) in ranks, self.shape(self.r.choice(ranks)))

    def full(self, low: int, high: int = 5) -> str:
        """A tensor of a rank, with elements."""
        shape = [n or 1 for n in self.shape(self.r.randint(low, high))]
        return self.pick(lambda s: low <= len(s) <= high and 0 not in s, shape)

    def of(self, shape: Shape) -> str:
        """A tensor of a shape: an earlier one, a new input, or a constant."""
        known = [n for n in (*self.leaves, *self.made) if self.arrays[n].shape == tuple(shape)]
        if known and self.maybe(0.4):
            return self.r.choice(known)
        return self.constant(self.numbers(shape)) if self.maybe(0.2) else self.leaf(shape)

    def within(self, name: str, low: float, high: float) -> str:
        """The tensor, brought between two bounds where it is not."""
        array = self.arrays[name]
        if not array.size or (array.min() > low and array.max() < high):
            return name
        (share,) = self.add("Sigmoid", [name])
        (wide,) = self.add("Mul", [share, self.constant(0.9 * (high - low))])
        return self.add("Add", [wide, self.constant(low + 0.05 * (high - low))])[0]

    def beside(self, name: str) -> str:
        """A tensor that broadcasts with another, in either direction; or the same."""
        if self.maybe(0.3):
            return name
        shape = list(self.arrays[name].shape)
        kind = self.r.random()
        if kind < 0.4:
            shape = [1 if self.maybe(0.4) else n for n in shape[self.r.randint(0, len(shape)) :]]
        elif kind < 0.55 and len(shape) < 5:
            shape = [self.r.choice((1, 2)), *shape]
        elif kind < 0.7:
            shape = [self.r.choice((1, 2, 3)) if n == 1 else n for n in shape]
        return self.of(shape)

    def axis(self, rank: int) -> int:
        """An axis, counted from either end."""
        if not rank:
            raise Rejected
        return self.r.randrange(-rank, rank)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        """Some axes, in any order, each counted from either end (before opset 11 the front)."""
        found = self.r.sample(range(rank), self.r.randint(min(least, rank), rank))
        return [k - rank if self.maybe(0.4) and self.opset >= 11 else k for k in found]

    # -- nodes ---------------------------------------------------------------------------------

    def add(self, op: str, inputs: list[str], count: int = 1, **attributes: Any) -> list[str]:
        """A node, and the names of its outputs; those of it that are float can be picked.

        Raises:
            Rejected: it cannot be evaluated, or gives what is not finite or too large.
        """
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        given = {key: item for key, item in attributes.items() if item is not None and item != []}
        outputs = [self.name("t") for _ in range(count)]
        node = helper.make_node(op, inputs, outputs, name=self.name(f"{op}_"), **given)
        found = self.evaluated(node)
        for array in found:
            if array.size > _MOST_ELEMENTS or array.ndim > 6:
                raise Rejected
            if array.dtype.kind == "f" and not (np.abs(array) < _LARGEST_VALUE).all():
                raise Rejected  # too large, or not finite
        self.nodes.append(node)
        for name, array in zip(outputs, found, strict=True):
            self.arrays[name] = array
            if array.dtype.kind == "f":
                self.made.append(name)
        return outputs

    def with_axes(
        self, op: str, x: str, axes: list[int] | None, since: int, **attributes: Any
    ) -> str:
        """A node whose axes are an input from an opset on, and an attribute before."""
        if axes is None:
            return self.add(op, [x], **attributes)[0]
        if self.opset >= since:
            return self.add(op, [x, self.ints(axes)], **attributes)[0]
        return self.add(op, [x], axes=axes, **attributes)[0]

    def evaluated(self, node: onnx.NodeProto) -> list[Array]:
        """The outputs of one node."""
        read = {*filter(None, node.input), *captured(node)} & self.arrays.keys()
        graph = helper.make_graph(
            [node],
            "node",
            [info(name, self.arrays[name], None) for name in read],
            [helper.make_empty_tensor_value_info(name) for name in node.output],
        )
        model = self.as_model(graph)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                evaluator = ReferenceEvaluator(model, new_ops=list(self.evaluators))
                found = evaluator.run(None, {name: self.arrays[name] for name in read})
        except Exception as error:  # whatever an evaluator finds wrong with a random node
            raise Rejected from error
        return [np.asarray(array) for array in found]

    def as_model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        domains = [helper.make_opsetid("", self.opset)]
        if self.functions:
            domains.append(helper.make_opsetid("local", 1))
        return helper.make_model(
            graph, opset_imports=domains, ir_version=10, functions=self.functions
        )

    def attempt(self, layer: Callable[[Draft], object]) -> bool:
        """Draw a layer; what it left is taken back if it is rejected."""
        before = {
            name: list(getattr(self, name))
            for name in ("nodes", "leaves", "constants", "made", "functions")
        }
        arrays = dict(self.arrays)
        with suppress(Rejected):
            layer(self)
            return True
        for name, items in before.items():
            setattr(self, name, items)
        self.arrays = arrays
        return False


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
    xs = [x for x in d.leaves if any(x in reach[y] for y in ys)]
    other = [n for n in d.arrays if n in reach and n not in ys and d.maybe(0.08)]
    weights = {y: d.numbers(d.arrays[y].shape) for y in ys}
    symbolic = d.maybe(_SYMBOLIC)
    stored = {x for x in d.leaves if d.maybe(0.3)}
    inputs = [n for n in d.leaves if n not in stored]
    graph = helper.make_graph(
        d.nodes,
        "random",
        [info(n, d.arrays[n], symbolic) for n in inputs],
        [info(n, d.arrays[n], None) for n in (*ys, *other)],
        [numpy_helper.from_array(d.arrays[n], n) for n in (*sorted(stored), *d.constants)],
    )
    model = d.as_model(graph)
    return Case(model, {x: d.arrays[x] for x in d.leaves}, tuple(xs), weights)


def ancestors(nodes: Sequence[onnx.NodeProto]) -> dict[str, set[str]]:
    """What each tensor depends on, itself included; inputs are in none of the keys."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        read = {*filter(None, node.input), *captured(node)}
        whole = set().union(*(found.get(name, {name}) for name in read))
        for name in node.output:
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


def drawn(r: random.Random, layers: Mapping[str, Callable[[Draft, str], object]], ops: Any) -> Case:
    """A random case of 3 to 12 layers."""
    while True:
        d = Draft(r, r.choice(_OPSETS), ops)
        for _ in range(r.randint(1, 3)):
            d.leaf(d.shape())
        for _ in range(r.randint(3, 12)):
            name = r.choice(list(layers))
            op = name.removesuffix(AGAIN)
            if _exists(op, d.opset):
                d.attempt(lambda draft, name=name, op=op: layers[name](draft, op))
        with suppress(Rejected):
            return finished(d)


def _exists(op: str, opset: int) -> bool:
    with suppress(onnx.defs.SchemaError):
        return bool(onnx.defs.get_schema(op, opset))
    return not onnx.defs.has(op)  # a function of the model
