"""Models run in float64, by ONNX Runtime or, where it has no kernel, by ``onnx.reference``."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import ended  # noqa: F401  (puts tests/ on the path)
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from helpers.float64_ops import OPS
from helpers.sessions import RAW, session

Array = npt.NDArray[Any]


class MeanVarianceNormalization(OpRun):
    """By definition; ONNX's own cannot be had of this operator alone."""

    def _run(self, x: Array, axes: Sequence[int] = (0, 2, 3)) -> tuple[Array]:
        along = tuple(axes)
        deviation = np.sqrt((x**2).mean(along, keepdims=True) - x.mean(along, keepdims=True) ** 2)
        return ((x - x.mean(along, keepdims=True)) / (deviation + 1e-9),)


class NotEvaluatedError(Exception):
    """No evaluator has the operators of a graph in float64, or they are not a number."""


def reference(model: onnx.ModelProto) -> ReferenceEvaluator:
    """ONNX's own evaluator, with operators in float64 that it rounds or gets wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(model, new_ops=[*OPS, MeanVarianceNormalization])


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
        self.is_valid = True
        try:
            self._run = session(model, RAW).run
            self.first = self.run(feeds)
        except Exception as error:
            no_kernel = any(text in str(error) for text in ("NOT_IMPLEMENTED", "double yet"))
            self.is_valid = "(double)" not in str(error)
            if self.is_valid and not no_kernel:
                raise
            try:
                self._run = reference(model).run
                self.first = self.run(feeds)
            except Exception as other:
                raise NotEvaluatedError(f"{type(other).__name__}: {other}"[:200]) from other

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self._run(None, {name: np.asarray(array) for name, array in feeds.items()})
        return dict(zip(self.names, map(np.asarray, found), strict=True))


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
    items = [item for node in graph.node for item in node.attribute]
    for tensor in (*graph.initializer, *(item.t for item in items if item.HasField("t"))):
        if tensor.data_type == source:
            array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for item in items:
        if item.HasField("g"):
            _convert(item.g, kind, source)
        elif item.name == "to" and item.i in (TensorProto.DOUBLE, TensorProto.FLOAT):
            item.i = kind
