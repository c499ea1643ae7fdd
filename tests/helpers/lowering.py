"""Graphs with operators of ONNX Runtime's own, and what they are lowered to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from helpers.float64_ops import OPS
from helpers.gradients import draw
from memplan.api.lower import LoweredGraph, lower_model

Array = npt.NDArray[Any]
MICROSOFT, ATEN = "com.microsoft", "org.pytorch.aten"
OPSET = 17


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


def foreign_model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """A graph with nodes of that runtime, which is fed, and whose outputs are of the first feed's
    type; of those with a shape that nobody knows."""
    kinds = {n: helper.np_dtype_to_tensor_dtype(array.dtype) for n, array in feeds.items()}
    first = next(iter(kinds.values()))
    graph = helper.make_graph(
        list(nodes),
        "case",
        [helper.make_tensor_value_info(n, kinds[n], array.shape) for n, array in feeds.items()],
        [helper.make_tensor_value_info(name, first, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    imports = [
        helper.make_opsetid(domain, version)
        for domain, version in (("", opset), (MICROSOFT, 1), (ATEN, 1))
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs in float64."""
    names = [value.name for value in model.graph.output]
    given = {value.name for value in model.graph.input}
    evaluator = ReferenceEvaluator(model, new_ops=[*OPS, LayerNormalization])
    values = evaluator.run(None, {k: v for k, v in feeds.items() if k in given})
    return dict(zip(names, map(np.asarray, values), strict=True))


def lowered(model: onnx.ModelProto, **options: Any) -> LoweredGraph:
    """The model in standard operators, which ONNX's checker accepts; gradients are not checked."""
    found = lower_model(model, Path("model.onnx"), check=False, **options)
    assert {item.domain for item in found.model.opset_import} == {""}
    onnx.checker.check_model(found.model, full_check=True)
    return found


def some(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    """Float64 numbers, none close to another."""
    return draw(shape, seed, low, high)
