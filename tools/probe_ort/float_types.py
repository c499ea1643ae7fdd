"""Which nodes ONNX Runtime's CPU provider cannot run in float16, bfloat16 or float64.

Every case of the catalogue that runs in float32 is tried with its float32 tensors in the other
type. Some nodes are refused when a session opens (``open``); others have a kernel that is only then
found not to know the type, in the middle of a step (``run``). Where a case more or less of an
operator fails, the values of its attributes tell which: a row is ``[attribute, value, when]``, or
``["", "", when]`` where all cases fail.
"""

import sys
from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import onnxruntime as ort
from cases import Case, Const, In, Input, all_cases, around
from children import Probe
from onnx import TensorProto, helper
from table import head

LATER = 22
"""The opset in which most operators take bfloat16."""
TYPES = {
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "double": TensorProto.DOUBLE,
}


def in_type(case: Case, code: int, opset: int, constants: bool) -> Case:
    """The case whose float32 tensors have another element type, its ``constants`` too."""
    dtype, rng = helper.tensor_dtype_to_np_dtype(code), np.random.default_rng(0)

    def changed(item: Input) -> Input:
        if item is None:
            return None
        array = item.value if isinstance(item, Const) else item.sample(rng)
        if array.dtype == np.float32 and (constants or isinstance(item, In)):
            array = array.astype(dtype)
        if isinstance(item, Const):
            return Const(array)
        return In(array.dtype.name, array.shape, array)

    attributes = {
        name: code if name in ("to", "dtype") and value == TensorProto.FLOAT else value
        for name, value in case.attributes.items()
    }
    inputs = [changed(item) for item in case.inputs]
    return replace(case, inputs=inputs, attributes=attributes, opset=opset)


def outcome(case: Case, code: int) -> tuple[str | None, str]:
    """``""`` where it runs, else when it fails, and the runtime's words; None: the operator does
    not take the type, in this opset and in a later one."""
    words = ""
    for opset, constants in product(dict.fromkeys((case.opset, LATER)), (True, False)):
        when, words = _tried(in_type(case, code, opset, constants))
        if when is not None:
            return when, words
    return None, words


def _tried(case: Case) -> tuple[str | None, str]:
    model, feeds, _, _ = around(case, bare=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        return "open" if "NOT_IMPLEMENTED" in text else None, text
    try:
        session.run_with_ort_values(None, {name: _fed(value) for name, value in feeds.items()})
    except Exception as error:
        return "run", " ".join(str(error).split())[:200]
    return "", ""


def _fed(value: np.ndarray) -> ort.OrtValue:
    code = helper.np_dtype_to_tensor_dtype(value.dtype)
    if code != TensorProto.BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy(value)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(value.view(np.uint16), code)


def _is_float(case: Case) -> bool:
    """Whether the first of its float tensors, which decides on the kernel, is in float32."""
    for item in case.inputs:
        dtype = (
            item.value.dtype if isinstance(item, Const) else np.dtype(getattr(item, "dtype", bool))
        )
        if dtype.kind == "f":
            return bool(dtype == np.float32)
    return False


def look(case: Case) -> dict | None:
    """When the case fails in each type; None where it does not run in float32."""
    if not _is_float(case) or "nchwc" in case.domain or outcome(case, TensorProto.FLOAT)[0] != "":
        return None
    found = {name: outcome(case, code) for name, code in TYPES.items()}
    notes = [f"{name}: {when}: {words}" for name, (when, words) in found.items() if when]
    return {**{name: when for name, (when, _) in found.items()}, "notes": notes}


def _table(cases: list[Case], results: dict[int, dict]) -> dict:
    """Type → operator key → rows."""
    found: dict[str, object] = {**head("cpu"), "schema": "memplan.float-types/1"}
    for name in TYPES:
        by_key: dict[str, list[tuple[Case, str]]] = defaultdict(list)
        for index, result in sorted(results.items()):
            if result.get(name) is not None:
                by_key[cases[index].key].append((cases[index], result[name]))
        rows = {key: _rows(tried) for key, tried in sorted(by_key.items())}
        found[name] = {key: each for key, each in rows.items() if each}
    return found


def _rows(tried: list[tuple[Case, str]]) -> list[list[str]]:
    """What fails, by the attribute that tells."""
    failing = [when for _, when in tried if when]
    if not failing:
        return []
    if len(failing) == len(tried) and len(set(failing)) == 1:
        return [["", "", failing[0]]]
    for attribute in sorted({name for case, _ in tried for name in case.attributes}):
        by_value: dict[str, set[str]] = defaultdict(set)
        for case, when in tried:
            by_value[str(case.attributes.get(attribute, ""))].add(when)
        if all(len(seen) == 1 for seen in by_value.values()):
            return [
                [attribute, value, when]
                for value, seen in sorted(by_value.items())
                for when in seen
                if when
            ]
    labels = [case.label for case, when in tried if when]
    print(f"no attribute tells which fail: {tried[0][0].key} {labels}", file=sys.stderr)
    return []


PROBES = {"cpu_float_types": Probe(all_cases, lambda: look, _table)}
