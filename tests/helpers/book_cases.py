"""Every operator that the book chunks, applied: what its axis rule says is tried on these."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from helpers.chunking import Array

_SOURCE = np.random.default_rng(0)
OPSET = 23


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

    @property
    def key(self) -> str:
        """``domain:Op``."""
        return f"{self.domain}:{self.op}"

    def __str__(self) -> str:
        shapes = ["-" if a is None else "x".join(map(str, a.shape)) for a in self.given]
        return f"{self.op}({','.join(shapes)}){self.attributes or ''}"

    def node(self, given: tuple[Array | None, ...]) -> onnx.NodeProto:
        """The operator applied to ``i0``, ``i1`` ..., as ``o0`` ..."""
        return helper.make_node(
            self.op,
            ["" if array is None else f"i{slot}" for slot, array in enumerate(given)],
            [f"o{slot}" for slot in range(self.outputs)],
            name="node",
            domain=self.domain,
            **self.attributes,
        )

    def model(self, given: tuple[Array | None, ...], *, sized: bool = True) -> onnx.ModelProto:
        """A model of the one node; its inputs state their sizes, or none."""
        inputs, constants = [], []
        for slot, array in enumerate(given):
            if array is None:
                continue
            if slot in self.fixed:
                constants.append(numpy_helper.from_array(array, f"i{slot}"))
            else:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                shape = array.shape if sized else [None] * array.ndim
                inputs.append(helper.make_tensor_value_info(f"i{slot}", kind, shape))
        outputs = [onnx.ValueInfoProto(name=f"o{slot}") for slot in range(self.outputs)]
        graph = helper.make_graph([self.node(given)], "g", inputs, outputs, constants)
        return as_model(graph)

    def feeds(self, given: tuple[Array | None, ...]) -> dict[str, Array]:
        """What the model is given."""
        return {
            f"i{slot}": array
            for slot, array in enumerate(given)
            if array is not None and slot not in self.fixed
        }


def as_model(graph: onnx.GraphProto) -> onnx.ModelProto:
    """A graph with the operators of ONNX and of the runtime."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


X = floats(4, 6, 8)
POSITIVE = np.abs(X) + np.float32(0.5)
ROWS = floats(4, 6)
ROUND = _SOURCE.integers(0, 3, (4, 6, 8)).astype(np.float32)
_ANY, _ALL = (0, 1, 2), (0, 1)
_UNARY = (
    *("Abs", "Sign", "Exp", "Tanh", "Sigmoid", "Relu", "Elu", "LeakyRelu", "Selu", "Celu"),
    *("HardSigmoid", "Softplus", "Softsign", "Erf", "Gelu", "Sin", "Cos", "Floor", "Ceil"),
    *("Round", "IsNaN", "IsInf", "Neg", "Identity"),
)
_NORMS = ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")
_REDUCTIONS = (
    *("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)
_ELEMENTWISE: Mapping[str, tuple[Array | None, ...]] = {
    **dict.fromkeys(_UNARY, (X,)),
    **dict.fromkeys(("Log", "Sqrt", "Reciprocal"), (POSITIVE,)),
    **dict.fromkeys(("Add", "Sub"), (X, floats(6, 8))),
    **dict.fromkeys(("Mul", "Div"), (X, floats(4, 1, 8))),
    **dict.fromkeys(("Sum", "Max", "Min", "Mean"), (X, floats(6, 1), floats(4, 1, 8))),
    "Pow": (POSITIVE, floats(8)),
    "PRelu": (X, floats(6, 1)),
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"), (ROUND, ROUND)),
    **dict.fromkeys(("And", "Or", "Xor"), (X > 0, floats(6, 8) > 0)),
    "Not": (X > 0,),
    "Where": (X > 0, X, floats(1)),
    "Clip": (X, np.asarray(-0.5, np.float32), None),
}

CASES = [
    *(Case(op, given, _ANY) for op, given in _ELEMENTWISE.items()),
    *(Case(op, (X,), _ANY, domain="com.microsoft") for op in ("Gelu", "QuickGelu", "FastGelu")),
    Case("FastGelu", (X, floats(8)), _ANY, domain="com.microsoft"),
    Case("BiasGelu", (X, floats(8)), _ANY, domain="com.microsoft"),
    Case("Add", (X, floats(1, 6, 1)), _ANY),
    # Halves of one element, which are not repeated.
    Case("Add", (floats(2, 4), floats(2, 1)), _ALL),
    Case("Add", (floats(2, 4), floats(2, 4)), _ALL),
    Case("MatMul", (floats(2, 2, 4), floats(1, 4, 2)), _ANY, sums=1),
    Case("Gemm", (floats(2, 4), floats(4, 2), floats(2, 2)), _ALL, sums=1),
    Case("Cast", (X,), _ANY, attributes={"to": onnx.TensorProto.DOUBLE}),
    Case("Mod", (X, floats(4, 6, 1)), _ANY, attributes={"fmod": 1}),
    Case("Softmax", (X,), _ALL, attributes={"axis": -1}),
    Case("Softmax", (X,), (1, 2), attributes={"axis": 0}),
    Case("LogSoftmax", (X,), (0, 2), attributes={"axis": 1}),
    *(Case(op, (X, floats(8)), _ALL) for op in _NORMS),
    *(Case(op, (X, floats(6, 8)), (0,), attributes={"axis": 1}) for op in _NORMS),
    Case("LayerNormalization", (X, floats(8), floats(8)), _ALL, outputs=3),
    Case("LayerNormalization", (X, floats(8), None), _ALL),
    Case(
        "SkipLayerNormalization",
        (X, floats(4, 6, 8), floats(8), floats(8)),
        _ALL,
        domain="com.microsoft",
        attributes={"epsilon": 1e-5},
    ),
    Case("ReduceSum", (X, ints(2)), _ALL, sums=1, fixed=(1,), attributes={"keepdims": 0}),
    Case("ReduceSum", (X, ints(0)), (1, 2), sums=1, fixed=(1,)),
    Case("ReduceSum", (X,), (), sums=3, attributes={"keepdims": 0}),
    *(Case(op, (POSITIVE, ints(-1)), _ALL, fixed=(1,)) for op in _REDUCTIONS),
    *(
        Case(op, (POSITIVE, ints(1)), _ALL, fixed=(1,), attributes={"keepdims": 0})
        for op in _REDUCTIONS
    ),
    *(Case(op, (X,), (1, 2)) for op in ("ArgMax", "ArgMin")),
    Case("ArgMax", (X,), _ALL, attributes={"axis": 1, "keepdims": 0}),
    Case("MatMul", (ROWS, floats(6, 8)), _ALL, sums=1),
    Case("MatMul", (X, floats(4, 8, 6)), _ANY, sums=1),
    Case("MatMul", (X, floats(8, 6)), _ANY, sums=1),
    Case("MatMul", (floats(2, 1, 4, 6), floats(4, 6, 8)), (0, 1, 2, 3), sums=1),
    Case(
        "FusedMatMul",
        (floats(6, 4), floats(8, 6)),
        _ALL,
        sums=1,
        domain="com.microsoft",
        attributes={"transA": 1, "transB": 1, "alpha": 0.5},
    ),
    Case(
        "FusedMatMul",
        (floats(2, 6, 4), floats(2, 6, 8)),
        _ANY,
        sums=1,
        domain="com.microsoft",
        attributes={"transA": 1},
    ),
    Case("Gemm", (ROWS, floats(6, 8), floats(8)), _ALL, sums=1),
    Case("Gemm", (ROWS, floats(6, 8), floats(4, 1)), _ALL, sums=1),
    Case("Gemm", (ROWS, floats(6, 8), floats(4, 8)), _ALL, sums=1),
    Case("Gemm", (floats(6, 4), floats(6, 8)), _ALL, sums=1, attributes={"transA": 1}),
    Case("Gemm", (ROWS, floats(6, 8), floats(8)), _ALL, attributes={"beta": 2.0}),
    Case("Reshape", (X, ints(24, 8)), _ALL, fixed=(1,)),
    Case("Reshape", (X, ints(4, 1, 2, -1)), (0, 2), fixed=(1,)),
    Case("Reshape", (floats(24, 8), ints(4, 6, 8)), (0, 2), fixed=(1,)),
    Case("Flatten", (X,), _ALL),
    Case("Unsqueeze", (X, ints(1)), (0, 2, 3), fixed=(1,)),
    Case("Squeeze", (floats(4, 1, 6), ints(1)), _ALL, fixed=(1,)),
    Case("Transpose", (X,), _ANY, attributes={"perm": [2, 0, 1]}),
    Case("Transpose", (X,), _ANY),
    Case("Expand", (floats(4, 1), ints(4, 6)), _ALL, fixed=(1,)),
    Case("Expand", (floats(), ints(4, 6)), _ALL, fixed=(1,)),
    Case("ConstantOfShape", (ints(4, 6),), _ALL, fixed=(0,)),
    Case("Gather", (ROWS, ints(1, 0, 3, 2)), _ALL, attributes={"axis": 0}),
    Case("Gather", (X, _SOURCE.integers(0, 6, (2, 4))), (0, 1, 2, 3), attributes={"axis": 1}),
    Case("Gather", (X, _SOURCE.integers(0, 8, (2,))), _ANY, attributes={"axis": -1}),
    Case("GatherElements", (ROWS, _SOURCE.integers(0, 6, (4, 2))), (0,), attributes={"axis": 1}),
    Case("GatherElements", (ROWS, _SOURCE.integers(0, 6, (2, 6))), (), attributes={"axis": 1}),
    Case(
        "ScatterElements",
        (ROWS, _SOURCE.integers(0, 6, (4, 2)), floats(4, 2)),
        (0,),
        attributes={"axis": 1, "reduction": "add"},
    ),
    Case("OneHot", (ints(1, 0, 3, 2), ints(4), floats(2)), (0,), fixed=(1,)),
    Case("OneHot", (ints(1, 0), ints(4), floats(2)), (1,), fixed=(1,), attributes={"axis": 0}),
    Case("Concat", (X, floats(4, 6, 2)), _ALL, attributes={"axis": 2}),
    Case("Split", (X,), _ALL, outputs=2, attributes={"axis": 2, "num_outputs": 2}),
    Case("Slice", (X, ints(1), ints(5), ints(1)), (0, 2), fixed=(1, 2, 3)),
    Case("Slice", (X, ints(0, 1), ints(2, 5)), (2,), fixed=(1, 2)),
    Case("Slice", (X, ints(-1), ints(-9), ints(-1), ints(-1)), _ALL, fixed=(1, 2, 3, 4)),
    Case("Pad", (ROWS, ints(0, 1, 0, 2)), (0,), fixed=(1,)),
    Case("Pad", (X, ints(0, 1, 0, 0, 0, 0)), (0, 2), fixed=(1,), attributes={"mode": "reflect"}),
    Case("Trilu", (X,), (0,)),
]
