"""Foreign operators of onnxruntime-training, lowered and compared.

``Case`` is a small graph with nodes of that runtime; ``outputs_of`` lowers it and evaluates it in
float64; ``check_gradients`` compares what it calls ``x_grad`` with central differences of Σ y·dy by
x, of the same graph's forward part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from helpers.float64_ops import OPS
from helpers.gradients import draw, in_float32, runtime
from memplan.autodiff.lowering.lowered_graph import Lowered, LoweringRequest, lower_model

Array = npt.NDArray[Any]
Run = Callable[[onnx.ModelProto, Mapping[str, Any]], dict[str, Any]]
MICROSOFT, ATEN = "com.microsoft", "org.pytorch.aten"
OPSET = 17
STEP, TOLERANCE = 1e-5, 1e-7


class LayerNormalization(OpRun):
    """ONNX's own evaluator normalizes in float32."""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array | None = None,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,
    ) -> tuple[Array, ...]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        mean = x.mean(axes, keepdims=True)
        inverse = 1 / np.sqrt(x.var(axes, keepdims=True) + epsilon)
        y = (x - mean) * inverse * scale
        return (y if bias is None else y + bias, mean, inverse)[: len(self.output)]


def node(
    op: str,
    inputs: str,
    outputs: str,
    domain: str = MICROSOFT,
    name: str = "",
    **attributes: Any,
) -> onnx.NodeProto:
    """A node; inputs and outputs are names between blanks, ``_`` for one that is left out."""
    names = [
        [text.replace("_", "") if text == "_" else text for text in side.split()]
        for side in (inputs, outputs)
    ]
    return helper.make_node(op, *names, name=name or f"{op}_0", domain=domain, **attributes)


def onnx_node(
    op: str, inputs: str, outputs: str, name: str = "", **attributes: Any
) -> onnx.NodeProto:
    """A node of ONNX's own domain."""
    return node(op, inputs, outputs, "", name, **attributes)


@dataclass(frozen=True)
class Case:
    """Nodes, what they are fed, and the outputs that are looked at.

    Names in ``constants`` are initializers; other feeds are graph inputs.
    """

    nodes: Sequence[onnx.NodeProto]
    feeds: Mapping[str, Array]
    outputs: Sequence[str]
    constants: Mapping[str, Array] = field(default_factory=dict)
    opset: int = OPSET
    types: Mapping[str, int] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        """The foreign model."""
        double = onnx.TensorProto.DOUBLE
        graph = helper.make_graph(
            list(self.nodes),
            "case",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in self.feeds.items()
            ],
            [
                helper.make_tensor_value_info(name, self.types.get(name, double), None)
                for name in self.outputs
            ],
            [numpy_helper.from_array(np.asarray(a), name) for name, a in self.constants.items()],
        )
        imports = [
            helper.make_opsetid("", self.opset),
            helper.make_opsetid(MICROSOFT, 1),
            helper.make_opsetid(ATEN, 1),
            helper.make_opsetid("ai.onnx.preview.training", 1),
        ]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs in float64."""
    names = [value.name for value in model.graph.output]
    given = {value.name for value in model.graph.input}
    evaluator = ReferenceEvaluator(model, new_ops=[*OPS, LayerNormalization])
    values = evaluator.run(None, {k: v for k, v in feeds.items() if k in given})
    return dict(zip(names, map(np.asarray, values), strict=True))


def lowered(case: Case, request: LoweringRequest | None = None) -> Lowered:
    """The case in standard operators, which ONNX's checker accepts."""
    found = lower_model(case.model(), request or LoweringRequest())
    assert {item.domain for item in found.model.opset_import} == {""}
    onnx.checker.check_model(found.model, full_check=True)
    return found


def outputs_of(case: Case, run: Run = evaluate) -> dict[str, Array]:
    """All outputs in float64 by ``run``, compared with those in float32 on stock ONNX Runtime."""
    model = lowered(case).model
    wanted = run(model, case.feeds)
    single = {
        name: array.astype(np.float32) if array.dtype == np.float64 else array
        for name, array in case.feeds.items()
        if name in {value.name for value in model.graph.input}
    }
    found = runtime(lower_model(in_float32(case.model()), LoweringRequest()).model, single)
    for name, value in wanted.items():
        scale = max(1.0, float(np.abs(value.astype(np.float64)).max(initial=0.0)))
        error = np.abs(found[name].astype(np.float64) - value).max(initial=0.0)
        assert found[name].shape == value.shape, name
        assert error <= 1e-4 * scale, (name, error)
    return wanted


def check_gradients(
    case: Case, y: str = "y", dy: str = "y_grad", run: Run = evaluate
) -> dict[str, Array]:
    """Compare every output ``x_grad`` with finite differences of Σ y·dy; the outputs."""
    values, model = outputs_of(case, run), lowered(case).model

    def objective(name: str, moved: Array) -> float:
        return float((run(model, {**case.feeds, name: moved})[y] * case.feeds[dy]).sum())

    for output, grad in values.items():
        name = output.removesuffix("_grad")
        if name == output:
            continue
        start = case.feeds[name]
        assert grad.shape == start.shape, output
        scale = max(1.0, float(np.abs(grad).max()))
        for seed in range(3):
            way = np.random.default_rng(seed).choice([-1.0, 1.0], start.shape)
            ahead = objective(name, start + STEP * way)
            behind = objective(name, start - STEP * way)
            wanted, given = (ahead - behind) / (2 * STEP), float((grad * way).sum())
            assert abs(wanted - given) <= TOLERANCE * scale * start.size, (output, wanted, given)
    return values


def some(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    """Float64 numbers, none close to another."""
    return draw(shape, seed, low, high)
