"""ONNX's own tests of single nodes: every form of every operator, with inputs of its domain."""

import importlib
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case import node as node_tests

from memplan.autodiff.emit.gradient_registry import registered

Array = npt.NDArray[Any]
DOUBLE = TensorProto.DOUBLE
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
        importlib.import_module(f"{node_tests.__name__}.{module}")
    with_gradient = {op for domain, op in registered() if not domain}
    found = []
    for test in node_tests._NodeTestCases[before:]:
        node, fed = test.model.graph.node[0], test.data_sets[0][0]
        if node.op_type in with_gradient and not node.domain:
            with suppress(Rejected):
                found.append(_form(node, fed))
    return found


def all_forms() -> None:
    """Read all that there are, which takes seconds."""
    for module in MODULES:
        forms(module)


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
