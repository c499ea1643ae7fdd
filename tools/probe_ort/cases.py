"""The probe's catalogue: a case is one node with its inputs; ``catalogue.txt`` has a row of each.

A row stands below the operators that it is of (``domain.Operator``, several on a line)::

    label | inputs | settings

An input is ``float16[2,3]``, float32 where no type is named: an intermediate tensor, random unless
its elements follow in braces. Behind ``=`` it is an initializer, and ``-`` is an input that is left
out. Elements are repeated until the tensor is full; ``0..9`` and ``0..8:2`` count. Settings are
``outputs`` (how many), ``absent`` (which of them have no name), ``opset``, and attributes in JSON.
With ``T=int64,bool`` the row is one case for each of these types, which stand where ``T`` does.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

OPSET, IR_VERSION, MICROSOFT = 20, 11, "com.microsoft"
ROWS = Path(__file__).with_name("catalogue.txt")


@dataclass(frozen=True)
class In:
    """An input that arrives as an intermediate tensor; random unless `value` is given."""

    dtype: str
    shape: tuple[int, ...]
    value: np.ndarray | None = None

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Feed data; positive and small, so that Log, Sqrt, Pow and integer division work."""
        if self.value is not None:
            return self.value
        if self.dtype == "bool":
            return np.asarray(rng.integers(0, 2, self.shape), bool)
        if np.issubdtype(self.dtype, np.integer):
            return np.asarray(rng.integers(1, 9, self.shape), self.dtype)
        return np.asarray(rng.random(self.shape) * 0.8 + 0.1, self.dtype)


@dataclass(frozen=True)
class Const:
    """An input that is an initializer (axes, shapes, constant weights)."""

    value: np.ndarray


Input = In | Const | None


@dataclass(frozen=True)
class Case:
    """One node: its inputs, how many outputs it writes and which of them are left out."""

    op: str
    label: str
    inputs: Sequence[Input]
    attributes: Mapping[str, object] = field(default_factory=dict)
    outputs: int = 1
    absent_outputs: frozenset[int] = frozenset()
    domain: str = ""
    opset: int = OPSET

    @property
    def key(self) -> str:
        """The op's key in the tables: `<domain>:<Op>`."""
        return f"{self.domain}:{self.op}"

    @property
    def slots(self) -> list[int]:
        """The outputs that have a name."""
        return [k for k in range(self.outputs) if k not in self.absent_outputs]

    @property
    def specs(self) -> list:
        """Element type and shape of every input; None where it is left out."""
        rng = np.random.default_rng(0)
        values = [
            i if i is None else i.sample(rng) if isinstance(i, In) else i.value for i in self.inputs
        ]
        return [None if value is None else specs([value])[0] for value in values]


def specs(values: Sequence[object]) -> list:
    """Element type and shape of each."""
    arrays = [np.asarray(value) for value in values]
    return [[int(helper.np_dtype_to_tensor_dtype(a.dtype)), list(a.shape)] for a in arrays]


def node_of(case: Case, inputs: Sequence[str], **changed: object) -> onnx.NodeProto:
    """The case's node, with some attributes changed; its outputs are ``y0``, ``y1`` and so on."""
    outputs = [f"y{k}" if k in case.slots else "" for k in range(case.outputs)]
    attributes = {**case.attributes, **changed}
    return helper.make_node(case.op, inputs, outputs, "node", domain=case.domain, **attributes)


def model_of(
    case: Case,
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray],
    results: Sequence[str],
    opset: int = 0,
) -> onnx.ModelProto:
    """A model of nodes in the case's opset, or another; results have no type."""
    graph = helper.make_graph(
        nodes,
        "probe",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    imports = [helper.make_opsetid("", opset or case.opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


EAGER = {"Shape", "Size"}  # run as soon as their input exists, whatever the order of the file
Mark = Callable[[list[onnx.NodeProto], dict[str, np.ndarray], dict[str, np.ndarray]], str]
"""Adds a node that shows in a trace, its constants and feeds; gives the name of its output."""


def around(
    case: Case,
    dying: Collection[int] = (),
    *,
    bare: bool = False,
    seed: int = 0,
    mark: Mark | None = None,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[int], int]:
    """The case's model, feeds, copied inputs, and number of late readers.

    Bare: graph inputs and outputs only. Else inputs are copies that all but those in ``dying`` are
    read again after the node, and every output is read once. ``mark`` stands before the node, and
    before each of the readers.
    """
    rng = np.random.default_rng(seed)
    names, nodes, copies, results = [], [], [], []
    constants, feeds = {"same": np.zeros(0, np.int64)}, {}

    def copied(source: str, target: str) -> str:
        nodes.append(helper.make_node("Expand", [source, "same"], [target], name=f"copy_{target}"))
        return target

    def marked(wanted: bool = True) -> None:
        if wanted and mark is not None:
            results.append(mark(nodes, constants, feeds))

    marked(case.op in EAGER)
    for index, item in enumerate(case.inputs):
        names.append("" if item is None else f"x{index}")
        if isinstance(item, Const):
            constants[f"x{index}"] = item.value
        elif item is not None:
            name = f"x{index}" if bare else f"g{index}"
            feeds[name] = item.sample(rng)
            copies.append(index)
            if not bare:
                copied(name, f"x{index}")
    marked(case.op not in EAGER)
    nodes.append(node_of(case, names))
    if bare:
        return model_of(case, nodes, feeds, constants, [f"y{k}" for k in case.slots]), feeds, [], 0
    for k in case.slots:
        marked()
        results.append(copied(f"y{k}", f"r{k}"))
    marked()
    late = [copied(f"x{index}", f"l{index}") for index in copies if index not in dying]
    return model_of(case, nodes, feeds, constants, [*results, *late]), feeds, copies, len(late)


def all_cases() -> list[Case]:
    """The catalogue in a fixed order.

    Raises:
        ValueError: two cases of an operator have one label.
    """
    found = [*_read(ROWS.read_text(encoding="utf-8")), *_with_bodies()]
    labels = Counter(f"{case.key}/{case.label}" for case in found)
    twice = [label for label, count in labels.items() if count > 1]
    if twice:
        raise ValueError(f"exist twice: {twice}")
    return found


def _read(text: str) -> Iterator[Case]:
    for block in text.split("\n\n"):
        lines = block.splitlines()
        ops = " ".join(line for line in lines if not line.startswith(" ")).split()
        for line in lines:
            if line.startswith(" "):
                yield from cases_of(ops, *(part.strip() for part in line.split("|")))


def cases_of(ops: Sequence[str], label: str, inputs: str, settings: str = "") -> Iterator[Case]:
    """The cases of one row."""
    given = dict(part.split("=", 1) for part in settings.split())
    dtypes = given.pop("T", "").split(",")
    attributes = {name: json.loads(text) for name, text in given.items()}
    outputs, opset = attributes.pop("outputs", 1), attributes.pop("opset", OPSET)
    absent = frozenset(attributes.pop("absent", ()))
    for op in ops:
        domain, _, name = op.rpartition(".")
        for dtype in dtypes:
            own, read = (
                re.sub(r"\bT\b", dtype, text) if dtype else text for text in (label, inputs)
            )
            slots = [_input(part) for part in read.split()]
            yield Case(name, own, slots, attributes, outputs, absent, domain, opset)


_INPUT = re.compile(r"(=?)(\w*)\[([\d,]*)\](?:\{(.*)\})?")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?")


def _input(text: str) -> Input:
    if text == "-":
        return None
    match = _INPUT.fullmatch(text)
    if match is None:
        raise ValueError(f"not an input: {text!r}")
    constant, dtype, sizes, elements = match.groups()
    dtype, shape = dtype or "float32", tuple(map(int, filter(None, sizes.split(","))))
    value = None if elements is None else _value(elements, dtype, shape)
    return Const(value) if constant else In(dtype, shape, value)


def _value(text: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    counted = _RANGE.fullmatch(text)
    if counted is None:
        elements = [json.loads(part) for part in text.split(",") if part]
    else:
        first, last, step = (int(part or 1) for part in counted.groups())
        elements = list(range(first, last + 1, step))
    return np.resize(np.asarray(elements, dtype), shape)


# --- Operators with bodies ----------------------------------------------------------------------

_LOOP = """turn (int64 i, bool go, float[5,17,24] state)
    => (bool go_on, float[5,17,24] next, float[5,17,24] seen)
    { go_on = Identity (go) next = Neg (state) seen = Exp (next) }"""
_SCAN = """step (float[17,24] state, float[17,24] row) => (float[17,24] next, float[17,24] seen)
    { next = Add (state, row) seen = Exp (next) }"""
_BRANCH = "OP () => (float[5,17,24] OP_out) { OP_out = OP (OP_in) }"


def _with_bodies() -> Iterator[Case]:
    body = parser.parse_graph(_LOOP)
    counts = _input("=int64[]{3}"), _input("bool[]{true}")
    yield Case("Loop", "carried and scanned", (*counts, _input("[5,17,24]")), {"body": body}, 2)
    branches = {"then_branch": _branch("Neg"), "else_branch": _branch("Exp")}
    for choice in (True, False):
        yield Case("If", f"branch {choice}", (In("bool", (), np.array(choice)),), branches)
    scanned = {"body": parser.parse_graph(_SCAN), "num_scan_inputs": 1}
    yield Case("Scan", "one state", (_input("[17,24]"), _input("[5,17,24]")), scanned, 2)


def _branch(op: str) -> onnx.GraphProto:
    """A body that reads a tensor of its own instead of one of the outer graph."""
    graph = parser.parse_graph(_BRANCH.replace("OP", op))
    ones = np.ones((5, 17, 24), np.float32)
    graph.initializer.append(numpy_helper.from_array(ones, f"{op}_in"))
    return graph
