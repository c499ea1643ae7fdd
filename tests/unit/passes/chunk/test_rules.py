"""Every use of an operator: its chunks, run on their own, are the whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from helpers.chunking import Array, runs
from helpers.graphs import open_text
from memplan.ir.graph import ABSENT
from memplan.passes.chunk.axis_rules import uses
from memplan.passes.chunk.uses import RULES, SUM, WHOLE, Facts, Use
from memplan.shapes.fold import small_constants
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import opened

_SOURCE = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return _SOURCE.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.asarray(values, np.int64)


@dataclass(frozen=True)
class Case:
    """An operator applied: ``given`` are arrays, constants where they are whole numbers in
    ``fixed`` slots; ``axes`` along which the first output is chunked, ``sums``: how many uses sum.
    """

    op: str
    given: tuple[Array | None, ...]
    axes: tuple[int, ...]
    sums: int = 0
    fixed: tuple[int, ...] = ()
    outputs: int = 1
    attributes: dict[str, object] = field(default_factory=dict)
    domain: str = ""

    def __str__(self) -> str:
        shapes = ["-" if a is None else "x".join(map(str, a.shape)) for a in self.given]
        return f"{self.op}({','.join(shapes)}){self.attributes or ''}"


X = floats(4, 6, 8)
ROWS = floats(4, 6)
CASES = [
    Case("Add", (X, floats(6, 8)), (0, 1, 2)),
    Case("Mul", (X, floats(4, 1, 8)), (0, 1, 2)),
    Case("Where", (X > 0, X, floats(1)), (0, 1, 2)),
    Case("Exp", (X,), (0, 1, 2)),
    Case("Cast", (X,), (0, 1, 2), attributes={"to": onnx.TensorProto.DOUBLE}),
    Case("Clip", (X, floats(), None), (0, 1, 2)),
    Case("Equal", (X, X), (0, 1, 2)),
    Case("Gelu", (X,), (0, 1, 2), domain="com.microsoft"),
    Case("FastGelu", (X, floats(8)), (0, 1, 2), domain="com.microsoft"),
    Case("Softmax", (X,), (0, 1), attributes={"axis": -1}),
    Case("LogSoftmax", (X,), (0, 2), attributes={"axis": 1}),
    Case("LayerNormalization", (X, floats(8), floats(8)), (0, 1), outputs=3),
    Case("LayerNormalization", (X, floats(6, 8)), (0,), attributes={"axis": 1}),
    Case(
        "SkipLayerNormalization",
        (X, floats(4, 6, 8), floats(8), floats(8)),
        (0, 1),
        domain="com.microsoft",
        attributes={"epsilon": 1e-5},
    ),
    Case("ReduceSum", (X, ints(2)), (0, 1), sums=1, fixed=(1,), attributes={"keepdims": 0}),
    Case("ReduceSum", (X, ints(0)), (1, 2), sums=1, fixed=(1,)),
    Case("ReduceSum", (X,), (), sums=3, attributes={"keepdims": 0}),
    Case("ReduceMax", (X, ints(1)), (0, 1), fixed=(1,), attributes={"keepdims": 0}),
    Case("ReduceMean", (X, ints(-1)), (0, 1), fixed=(1,)),
    Case("ArgMax", (X,), (0, 1), attributes={"axis": 1, "keepdims": 0}),
    Case("MatMul", (ROWS, floats(6, 8)), (0, 1), sums=1),
    Case("MatMul", (X, floats(4, 8, 6)), (0, 1, 2), sums=1),
    Case("MatMul", (X, floats(8, 6)), (0, 1, 2), sums=1),
    Case("MatMul", (floats(2, 1, 4, 6), floats(4, 6, 8)), (0, 1, 2, 3), sums=1),
    Case(
        "FusedMatMul",
        (floats(6, 4), floats(8, 6)),
        (0, 1),
        sums=1,
        domain="com.microsoft",
        attributes={"transA": 1, "transB": 1, "alpha": 0.5},
    ),
    Case("Gemm", (ROWS, floats(6, 8), floats(8)), (0, 1), sums=1),
    Case("Gemm", (ROWS, floats(6, 8), floats(4, 1)), (0, 1), sums=1),
    Case("Gemm", (floats(6, 4), floats(6, 8)), (0, 1), sums=1, attributes={"transA": 1}),
    Case("Gemm", (ROWS, floats(6, 8), floats(8)), (0, 1), attributes={"beta": 2.0}),
    Case("Reshape", (X, ints(24, 8)), (0, 1), fixed=(1,)),
    Case("Reshape", (X, ints(4, 1, 2, -1)), (0, 2), fixed=(1,)),
    Case("Reshape", (floats(24, 8), ints(4, 6, 8)), (0, 2), fixed=(1,)),
    Case("Flatten", (X,), (0, 1)),
    Case("Unsqueeze", (X, ints(1)), (0, 2, 3), fixed=(1,)),
    Case("Squeeze", (floats(4, 1, 6), ints(1)), (0, 1), fixed=(1,)),
    Case("Transpose", (X,), (0, 1, 2), attributes={"perm": [2, 0, 1]}),
    Case("Expand", (floats(4, 1), ints(4, 6)), (0, 1), fixed=(1,)),
    Case("Expand", (floats(), ints(4, 6)), (0, 1), fixed=(1,)),
    Case("ConstantOfShape", (ints(4, 6),), (0, 1), fixed=(0,)),
    Case("Gather", (ROWS, ints(1, 0, 3, 2)), (0, 1), attributes={"axis": 0}),
    Case("Gather", (X, _SOURCE.integers(0, 6, (2, 4))), (0, 1, 2, 3), attributes={"axis": 1}),
    Case("GatherElements", (ROWS, _SOURCE.integers(0, 6, (4, 2))), (0,), attributes={"axis": 1}),
    Case(
        "ScatterElements",
        (ROWS, _SOURCE.integers(0, 6, (4, 2)), floats(4, 2)),
        (0,),
        attributes={"axis": 1, "reduction": "add"},
    ),
    Case("OneHot", (ints(1, 0, 3, 2), ints(4), floats(2)), (0,), fixed=(1,)),
    Case("OneHot", (ints(1, 0), ints(4), floats(2)), (1,), fixed=(1,), attributes={"axis": 0}),
    Case("Concat", (X, floats(4, 6, 2)), (0, 1), attributes={"axis": 2}),
    Case("Split", (X,), (0, 1), outputs=2, attributes={"axis": 2, "num_outputs": 2}),
    Case("Slice", (X, ints(1), ints(5), ints(1)), (0, 2), fixed=(1, 2, 3)),
    Case("Pad", (ROWS, ints(0, 1, 0, 2)), (0,), fixed=(1,)),
    Case("Trilu", (X,), (0,)),
]


def applied(case: Case, given: tuple[Array | None, ...]) -> onnx.ModelProto:
    """A model of one node."""
    names = [None if array is None else f"i{slot}" for slot, array in enumerate(given)]
    made = [f"o{slot}" for slot in range(case.outputs)]
    node = helper.make_node(
        case.op,
        [name or "" for name in names],
        made,
        name="node",
        domain=case.domain,
        **case.attributes,
    )
    inputs, constants = [], []
    for slot, (name, array) in enumerate(zip(names, given, strict=True)):
        if name is None or array is None:
            continue
        if slot in case.fixed:
            constants.append(numpy_helper.from_array(array, name))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
    outputs = [onnx.ValueInfoProto(name=name) for name in made]
    graph = helper.make_graph([node], "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds(case: Case, given: tuple[Array | None, ...]) -> dict[str, Array]:
    return {
        f"i{slot}": array
        for slot, array in enumerate(given)
        if array is not None and slot not in case.fixed
    }


def chunk(case: Case, use: Use, shape: tuple[int, ...], place: int) -> tuple[Array | None, ...]:
    """What the second or first half reads; ``shape`` is that of the whole output."""
    parts: list[Array | None] = []
    for slot, (array, axis) in enumerate(zip(case.given, use.reads, strict=True)):
        if slot == use.shape_slot:
            half = [d // 2 if k == use.makes[0] else d for k, d in enumerate(shape)]
            parts.append(ints(*half))
        elif slot == use.addend and place:
            parts.append(None)
        elif array is None or axis == WHOLE:
            parts.append(array)
        else:
            parts.append(np.split(array, 2, axis)[place])
    return tuple(parts)


@pytest.mark.ort
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_chunks_of_every_use_are_the_whole(case: Case) -> None:
    proto = applied(case, case.given)
    whole = list(runs(proto, feeds(case, case.given)).values())
    for value, array in zip(proto.graph.output, whole, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, array.shape))
    model = opened(prepare(proto, Path("case.onnx"), {}))
    facts = Facts(model.graph, small_constants(model.prepared.bound.graph))
    every = uses(facts, model.graph.nodes[0])
    assert sorted(use.makes[0] for use in every if not use.sums) == list(case.axes)
    assert sum(use.sums for use in every) == case.sums
    for use in every:
        halves = [chunk(case, use, whole[0].shape, place) for place in (0, 1)]
        made = [list(runs(applied(case, half), feeds(case, half)).values()) for half in halves]
        for slot, axis in enumerate(use.makes):
            assert model.graph.nodes[0].outputs[slot] != ABSENT
            parts = [outputs[slot] for outputs in made]
            joined = sum(parts) if axis == SUM else np.concatenate(parts, axis)
            np.testing.assert_allclose(joined, whole[slot], rtol=1e-5, atol=1e-6)


def test_every_rule_has_a_case() -> None:
    families = {RULES[f"{case.domain}:{case.op}"] for case in CASES}
    assert families == set(RULES.values())


@pytest.mark.parametrize(
    "text",
    [
        # Batch statistics: a chunk has others.
        "g (float[4, 2, 2] x, float[2] s) => (float[4, 2, 2] y) "
        "{ [n] y = BatchNormalization(x, s, s, s, s) }",
        # Random numbers: a chunk would draw others.
        "g (float[4, 2] x, bool t) => (float[4, 2] y) <float r = {0.5}> "
        "{ [n] y = Dropout(x, r, t) }",
        # Without axes, a chunk of one row would lose that axis, too.
        "g (float[4, 1, 2] x) => (float[4, 2] y) { [n] y = Squeeze(x) }",
        # Which axes is not known.
        "g (float[4, 2] x, int64[1] a) => (float[4, 1] y) { [n] y = ReduceSum(x, a) }",
        # A body.
        "g (float[4, 2] x, bool c) => (float[4, 2] y) { [n] y = If (c) "
        "<then_branch = a () => (float[4, 2] u) { u = Neg(x) }, "
        "else_branch = b () => (float[4, 2] v) { v = Exp(x) }> }",
    ],
    ids=["batch statistics", "random", "squeeze", "unknown axes", "body"],
)
def test_what_is_not_known_has_no_use(text: str) -> None:
    model = open_text(text)
    facts = Facts(model.graph, small_constants(model.prepared.bound.graph))
    assert uses(facts, model.graph.nodes[0]) == ()
