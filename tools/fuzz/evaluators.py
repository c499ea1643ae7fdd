"""Models run in float64, by ONNX Runtime or, where it has no kernel, by ``onnx.reference``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from drafts import Array
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

ROOT = Path(__file__).resolve().parents[2]


class MeanVarianceNormalization(OpRun):
    """By definition; ONNX's own cannot be had of this operator alone."""

    def _run(self, x: Array, axes: Sequence[int] = (0, 2, 3)) -> tuple[Array]:
        along = tuple(axes)
        deviation = np.sqrt((x**2).mean(along, keepdims=True) - x.mean(along, keepdims=True) ** 2)
        return ((x - x.mean(along, keepdims=True)) / (deviation + 1e-9),)


class NotEvaluatedError(Exception):
    """No evaluator has the operators of a graph in float64, or they are not a number."""


@cache
def reference_operators() -> Sequence[Any]:
    """Operators in float64 that ``onnx.reference`` rounds or gets wrong."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        from helpers.float64_ops import OPS
    finally:
        sys.path.remove(str(ROOT / "tests"))
    return (*OPS, MeanVarianceNormalization)


class Evaluator:
    """A model in float64, ready to be run many times: by ONNX Runtime, or by ``onnx.reference``
    where that has no kernel, or the operator no such type (``is_valid``)."""

    def __init__(self, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
        """Open a model and run it once.

        Raises:
            NotEvaluatedError: neither can run it.
            Exception: ONNX Runtime finds something else wrong.
        """
        self.names = [value.name for value in model.graph.output]
        self.on_runtime = self.is_valid = True
        try:
            self._run = session(model).run
            self.first = self.run(feeds)
        except Exception as error:
            no_kernel = any(text in str(error) for text in ("NOT_IMPLEMENTED", "double yet"))
            self.is_valid = "(double)" not in str(error)
            if self.is_valid and not no_kernel:
                raise
            self.on_runtime = False
            self._by_reference(model, feeds)

    def _by_reference(self, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                evaluator = ReferenceEvaluator(model, new_ops=list(reference_operators()))
                self._run = evaluator.run
                self.first = self.run(feeds)
        except Exception as error:
            raise NotEvaluatedError(f"{type(error).__name__}: {error}"[:200]) from error

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name."""
        with np.errstate(all="ignore"):
            found = self._run(None, {name: np.asarray(array) for name, array in feeds.items()})
        return dict(zip(self.names, map(np.asarray, found), strict=True))


def session(model: onnx.ModelProto) -> Any:
    """A session that runs the graph as it is, in this thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def in_kind(model: onnx.ModelProto, kind: int, source: int = TensorProto.DOUBLE) -> onnx.ModelProto:
    """The model with all floats of ``source`` of another element type, those of Casts too."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _convert(result.graph, kind, source)
    return result


def _convert(graph: onnx.GraphProto, kind: int, source: int) -> None:
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == source:
            value.type.tensor_type.elem_type = kind
    for tensor in graph.initializer:
        _convert_tensor(tensor, kind, source)
    for node in graph.node:
        for item in node.attribute:
            if item.type == onnx.AttributeProto.GRAPH:
                _convert(item.g, kind, source)
            elif item.type == onnx.AttributeProto.TENSOR:
                _convert_tensor(item.t, kind, source)
            elif item.name == "to" and item.i in (TensorProto.DOUBLE, TensorProto.FLOAT):
                item.i = kind


def _convert_tensor(tensor: onnx.TensorProto, kind: int, source: int) -> None:
    if tensor.data_type == source:
        narrow = helper.tensor_dtype_to_np_dtype(kind)
        array = numpy_helper.to_array(tensor).astype(narrow)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def opened(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with all that is fed as inputs, so that other values than those stored can be."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = [t for t in result.graph.initializer if t.name not in feeds]
    for tensor in result.graph.initializer:
        if tensor.name in feeds:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            result.graph.input.append(info)
    kept = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
    del result.graph.initializer[:]
    result.graph.initializer.extend(kept)
    return result
