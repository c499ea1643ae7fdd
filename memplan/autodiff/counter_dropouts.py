"""Dropouts whose masks are made of a counter, by operators that may run again.

``Dropout`` draws from a generator inside its kernel, on one thread: its mask cannot be made twice,
and a session that goes on from a checkpoint draws others. Here a mask is arithmetic on whole
numbers, so that it is the same bits wherever, however often and by how many threads it is computed:

1. Every axis of what is dropped has a vector of multipliers, one for each index: odd 32-bit numbers
   of the counter-based generator Squares (Widynski 2020, arXiv:2004.06278, four rounds). Its key
   is that of the seed and the axis, by SplitMix64 (Steele, Lea and Flood 2014); its counter is the
   number of the step, then the index.
2. The hash of an element is the product of the multipliers of its indices, modulo 2³²:
   multiplicative hashing (Dietzfelbinger et al. 1997), by numbers that are fresh in every step.
3. An element is kept where its hash is above the ratio, times 2³².

So what is as large as the tensor is one product and one comparison. A hash that mixes every element
(murmur3, lowbias32) takes three shifts and as many exclusive ors, for which ONNX Runtime's CPU
kernels need three times as long each (1.3 to 1.5 ms of 3.1 million elements beside 0.5 ms), and
memory for two of its numbers an element. The price: three and more elements are independent on
average over steps, not within each: masks, and nothing that needs a generator for its own sake.

Vectors of one length are made together. An axis without a size takes it from a graph input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from memplan.errors import UsageError
from memplan.ir.graph import Phase
from memplan.ops.book import RANDOM_OPS
from memplan.proto.counter_masks import DROPOUT_STEP
from memplan.proto.graph_edit import GraphEdit, node_protos
from memplan.proto.metadata import CHECKPOINT_KEY, PHASE_KEY
from memplan.proto.nodes import all_nodes, is_constant, operator_key
from memplan.shapes.fold import small_constants
from memplan.shapes.infer import declared_values
from memplan.shapes.tensor_type import FLOATS, Dim, TensorType, read_type, value_info
from memplan.solver.strategies.spec import build, split_spec
from memplan.units import counted

Array = npt.NDArray[Any]

OPERATOR = "operator"
"""The other way: the operator draws."""
_BOOL, _INT64 = onnx.TensorProto.BOOL, onnx.TensorProto.INT64
_UINT32, _UINT64 = onnx.TensorProto.UINT32, onnx.TensorProto.UINT64
_HALF = 1 << 32
_WORD = (1 << 64) - 1
_USUAL_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class CounterDropout:
    """Masks from a counter. ``seed``: other masks for another one."""

    name: ClassVar[str] = "counter"
    seed: int = 0

    @property
    def text(self) -> str:
        """As ``--dropout`` takes it."""
        return f"{self.name}{{seed={self.seed}}}" if self.seed else self.name


def parse_dropout(text: str) -> CounterDropout | None:
    """``operator``, which is None, ``counter`` or ``counter{seed=7}``.

    Raises:
        UsageError: it is none of these.
    """
    spec = split_spec(text)
    if spec is not None and spec.name == OPERATOR and not spec.options:
        return None
    if spec is not None and spec.name == CounterDropout.name:
        return build(CounterDropout, spec, "dropout", "--dropout: ")
    raise UsageError(
        f"unknown --dropout '{text}' ({OPERATOR}, {CounterDropout.name})",
        "a seed is an option, as in counter{seed=7}",
    )


@dataclass(frozen=True, slots=True)
class Counted:
    """A model whose masks come from the counter ``state``, an input whose next value is ``new``
    (both empty if there is none). ``masks``: how many do; ``left``: operators that still draw."""

    model: onnx.ModelProto
    state: str = ""
    new: str = ""
    masks: int = 0
    left: int = 0

    @property
    def new_values(self) -> Mapping[str, str]:
        """Output → the input whose next value it is."""
        return {self.new: self.state} if self.state else {}

    @property
    def notes(self) -> Iterator[str]:
        """What the user should know."""
        if self.masks:
            yield f"{counted(self.masks, 'dropout mask')} from the counter '{self.state}'"
        if self.left:
            yield (
                f"{counted(self.left, 'random operator')} still drawn from a generator: --dropout "
                "counter is for Dropout with a constant ratio and known sizes"
            )


def from_counter(model: onnx.ModelProto, counter: CounterDropout | None) -> Counted:
    """``model`` with the dropouts of its main graph made of a counter, where their ratio is
    constant and their sizes are numbers or those of inputs. None: the model as it is."""
    if counter is None:
        return Counted(model)
    sizes = _sizes_of_inputs(model.graph)
    sites = [site for site in _sites(model) if all(_known(dim, sizes) for dim in site.shape)]
    constants = small_constants(model.graph)
    left = sum(_draws(node, constants) for node in all_nodes(model.graph.node)) - len(sites)
    if not sites:
        return Counted(model, left=left)
    writer = _Writer(GraphEdit(model), counter, sizes)
    vectors = writer.multipliers(sites)
    for place, site in enumerate(sites):
        writer.replace(site, [vectors[place, axis] for axis in site.axes])
    new = writer.count()
    return Counted(writer.edit.finished(is_constant), writer.state, new, len(sites), left)


@dataclass(frozen=True, slots=True)
class _Site:
    """A ``Dropout`` that drops, by its number in the file."""

    number: int
    node: onnx.NodeProto
    ratio: float
    kind: int
    shape: tuple[Dim, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        """Those that have multipliers: all with more than one index."""
        return tuple(k for k, size in enumerate(self.shape) if size != 1) or (len(self.shape) - 1,)


def _sites(model: onnx.ModelProto) -> Iterator[_Site]:
    constants = small_constants(model.graph)
    types = {value.name: read_type(value.type) for value in declared_values(model.graph)}
    for number, node in enumerate(node_protos(model)):
        if operator_key(node) != ":Dropout" or len(node.input) < 3:
            continue
        ratio, on, found = node.input[1], constants.get(node.input[2]), types.get(node.input[0])
        share = constants.get(ratio) if ratio else np.asarray(_USUAL_RATIO)
        if on is None or not on.item() or share is None or not 0 < share.item() < 1:
            continue
        if found is not None and found.shape and found.dtype in FLOATS:
            yield _Site(number, node, float(share.item()), found.dtype, found.shape)


def _draws(node: onnx.NodeProto, constants: Mapping[str, Array]) -> bool:
    """Whether a node takes random numbers."""
    if operator_key(node) != ":Dropout":
        return operator_key(node) in RANDOM_OPS
    on = constants.get([*node.input, "", ""][2])
    return len(node.input) > 2 and (on is None or bool(on.item()))


def _sizes_of_inputs(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    """Named sizes → an input, and the axis of it that has this size."""
    found: dict[str, tuple[str, int]] = {}
    for value in graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                found.setdefault(dim.dim_param, (value.name, axis))
    return found


def _known(dim: Dim, sizes: Mapping[str, tuple[str, int]]) -> bool:
    return dim in sizes if isinstance(dim, str) else 0 < dim < _HALF


def _mixed(number: int) -> int:
    """SplitMix64's output for a state."""
    number = (number + 0x9E3779B97F4A7C15) & _WORD
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _WORD
    return number ^ number >> 31


@dataclass(slots=True)
class _Writer:
    """Puts the nodes into the file: those of all multipliers in front."""

    edit: GraphEdit
    counter: CounterDropout
    sizes: Mapping[str, tuple[str, int]]
    state: str = ""
    _front: list[onnx.NodeProto] = field(default_factory=list)
    _constants: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def constant(self, value: object, kind: int) -> str:
        """The name of a constant; equal ones are one."""
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(kind))
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.edit.constant(array, f"{DROPOUT_STEP}/constant")
        return self._constants[key]

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node in front of all others; its outputs."""
        names = [self.edit.fresh(f"{DROPOUT_STEP}/{op}") for _ in range(outputs)]
        made = helper.make_node(op, inputs, names, names[0], **attributes)
        self._front.append(made)
        return names

    def one(self, op: str, left: str, right: str | int) -> str:
        """A node of two unsigned 64-bit numbers."""
        other = self.constant(right, _UINT64) if isinstance(right, int) else right
        return self.node(op, left, other)[0]

    # -- multipliers -----------------------------------------------------------------------------

    def multipliers(self, sites: list[_Site]) -> dict[tuple[int, int], str]:
        """The vector of every site and axis, along that axis."""
        self.state = self.edit.fresh(DROPOUT_STEP)
        given = value_info(self.state, TensorType(_INT64, ()))
        self.edit.graph.input.append(given)
        self.edit.initialize(self.state, np.asarray(1, np.int64))
        begin = self.one("Mul", self.node("Cast", self.state, to=_UINT64)[0], _HALF)
        users: dict[Dim, list[tuple[int, int]]] = {}
        seed, keys = _mixed(self.counter.seed & _WORD), dict[tuple[int, int], int]()
        for place, site in enumerate(sites):
            for axis in site.axes:
                keys[place, axis] = _mixed(seed + len(keys) & _WORD) | 1
                users.setdefault(site.shape[axis], []).append((place, axis))
        found: dict[tuple[int, int], str] = {}
        for size, of in users.items():
            # A row for each of them.
            counters = self.one("Add", begin, self._indices(size))
            own = self.constant([[keys[user]] for user in of], _UINT64)
            rows = [self._squares(counters, own)]
            if len(of) > 1:
                ones = self.constant([1] * len(of), _INT64)
                rows = self.node("Split", rows[0], ones, outputs=len(of), axis=0)
            for row, (place, axis) in zip(rows, of, strict=True):
                shape = [1] * len(sites[place].shape)
                shape[axis] = -1
                found[place, axis] = self.node("Reshape", row, self.constant(shape, _INT64))[0]
        self.edit.put_before(0, *self._front)
        return found

    def _indices(self, size: Dim) -> str:
        """0, 1, ... below a size."""
        if isinstance(size, int):
            end = self.constant(size, _INT64)
        else:
            given, axis = self.sizes[size]
            shape = self.node("Shape", given)[0]
            end = self.node("Gather", shape, self.constant(axis, _INT64))[0]
        zero, one = self.constant(0, _INT64), self.constant(1, _INT64)
        return self.node("Cast", self.node("Range", zero, end, one)[0], to=_UINT64)[0]

    def _squares(self, counters: str, keys: str) -> str:
        """Odd numbers of 32 bits: the upper half of Squares' last round, but for its lowest bit."""
        y = x = self.one("Mul", counters, keys)
        z = self.one("Add", y, keys)
        for more in (y, z, y):
            x = self.one("Add", self.one("Mul", x, x), more)
            x = self.one("Add", self.one("Div", x, _HALF), self.one("Mul", x, _HALF))  # halves turn
        x = self.one("Add", self.one("Mul", x, x), z)
        x = self.one("Add", self.one("Mul", self.one("Div", x, 2 * _HALF), 2), 1)
        return self.node("Cast", x, to=_UINT32)[0]

    # -- masks -----------------------------------------------------------------------------------

    def replace(self, site: _Site, vectors: list[str]) -> None:
        """Let a mask be compared out of products, and keep what it keeps."""
        node, (first, *others) = site.node, vectors
        made = []

        def put(op: str, *inputs: str, out: str = "") -> str:
            name = self.edit.fresh(f"{node.name or node.output[0]}/{op}")
            last = out == node.output[0]  # a mark as a checkpoint is of the result alone
            made.append(helper.make_node(op, inputs, [out or name], node.name if last else name))
            told = (i for i in node.metadata_props if last or i.key != CHECKPOINT_KEY)
            made[-1].metadata_props.extend(told)
            return out or name

        for vector in others:
            first = put("Mul", first, vector)
        mask = node.output[1] if len(node.output) > 1 else ""
        # Above the number below the bound: to ONNX, GreaterOrEqual is a function of two operators.
        bound = max(round(site.ratio * _HALF), 1) - 1
        mask = put("Greater", first, self.constant(bound, _UINT32), out=mask)
        graph = self.edit.graph
        if all(value.name != mask for value in (*graph.value_info, *graph.output)):
            graph.value_info.append(value_info(mask, TensorType(_BOOL, site.shape)))
        kept = put("Where", mask, node.input[0], self.constant(0, site.kind))
        scale = self.constant(1 / (1 - site.ratio), site.kind)
        put("Mul", kept, scale, out=node.output[0])
        self.edit.put_instead(site.number, *made)

    def count(self) -> str:
        """Let the counter count itself, whatever becomes of the step; its next value."""
        new = self.edit.fresh(f"{self.state}_new")
        made = helper.make_node("Add", [self.state, self.constant(1, _INT64)], [new], new)
        made.metadata_props.add(key=PHASE_KEY, value=Phase.UPDATE)
        self.edit.put_behind(self.edit.count - 1, made)
        self.edit.graph.output.append(value_info(new, TensorType(_INT64, ())))
        return new
