"""Which nodes ONNX Runtime's CPU provider cannot run in float16, bfloat16 or float64, as JSON.

    python tools/probe_ort/float_types.py --out memplan/ops/tables/cpu_float_types.json

Every case of the catalogue that runs in float32 is tried with its float32 tensors in the other
type. Some nodes are refused when a session opens (``open``); others have a kernel that is only then
found not to know the type, in the middle of a step (``run``). Where a case more or less of an
operator fails, the values of its attributes tell which: a row is ``[attribute, value, when]``, or
``["", "", when]`` where all cases fail.
"""

import argparse
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from cases import Case, Const, all_cases, model_of, node_of
from onnx import TensorProto, helper
from table import head, render

LATER = 22
"""The opset in which most operators take bfloat16."""
TYPES = {
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "double": TensorProto.DOUBLE,
}


def in_type(
    case: Case, code: int, opset: int, constants: bool
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model in which the case's float32 tensors have another element type, its ``constants``
    too."""
    nodes, names = [], []
    feeds: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(0)
    for index, item in enumerate(case.inputs):
        name = "" if item is None else f"i{index}"
        names.append(name)
        if item is None:
            continue
        array = item.value if isinstance(item, Const) else item.sample(rng)
        changed = array.dtype == np.float32
        if isinstance(item, Const):
            wide = changed and constants
            dtype = helper.tensor_dtype_to_np_dtype(code) if wide else array.dtype
            weights[name] = array.astype(dtype)
            continue
        feeds[f"x{index}"] = array
        cast = {"to": code} if changed else {}
        nodes.append(
            helper.make_node("Cast" if changed else "Identity", [f"x{index}"], [name], **cast)
        )
    changed = {
        name: code
        for name, value in case.attributes.items()
        if name in ("to", "dtype") and value == TensorProto.FLOAT
    }
    nodes.append(node_of(case, names, **changed))
    results = [f"y{k}" for k in case.slots]
    return model_of(case, nodes, feeds, weights, results, opset), feeds


def outcome(case: Case, code: int) -> tuple[str | None, str]:
    """``""`` where it runs, else when it fails, and the runtime's words; None: the operator does
    not take the type, in this opset and in a later one."""
    words = ""
    for opset, constants in product(dict.fromkeys((case.opset, LATER)), (True, False)):
        when, words = _tried(*in_type(case, code, opset, constants))
        if when is not None:
            return when, words
    return None, words


def _tried(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[str | None, str]:
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
        session.run_with_ort_values(
            None, {k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in feeds.items()}
        )
    except Exception as error:
        return "run", " ".join(str(error).split())[:200]
    return "", ""


def _is_float(case: Case) -> bool:
    """Whether the first of its float tensors, which decides on the kernel, is in float32."""
    for item in case.inputs:
        dtype = (
            item.value.dtype if isinstance(item, Const) else np.dtype(getattr(item, "dtype", bool))
        )
        if dtype.kind == "f":
            return bool(dtype == np.float32)
    return False


def measured(verbose: bool) -> dict[str, dict[str, list[list[str]]]]:
    """Type → operator key → rows."""
    found: dict[str, dict[str, list[list[str]]]] = {}
    cases = [case for case in all_cases() if _is_float(case) and "nchwc" not in case.domain]
    cases = [case for case in cases if outcome(case, TensorProto.FLOAT)[0] == ""]
    for name, code in TYPES.items():
        by_key: dict[str, list[tuple[Case, str]]] = defaultdict(list)
        for case in cases:
            when, words = outcome(case, code)
            if when and verbose:
                print(f"{name} {case.key}/{case.label}: {when}: {words}", file=sys.stderr)
            if when is not None:
                by_key[case.key].append((case, when))
        found[name] = {
            key: rows for key, all_of in sorted(by_key.items()) if (rows := _rows(all_of))
        }
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
            by_value[_text(case.attributes.get(attribute, ""))].add(when)
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


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def main() -> int:
    """Measure and write the table."""
    arguments = argparse.ArgumentParser(prog="float_types", description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, help="table to write (default: standard output)")
    arguments.add_argument("--verbose", action="store_true", help="the runtime's words")
    options = arguments.parse_args()
    first = {**head("cpu"), "schema": "memplan.float-types/1"}
    text = render({**first, **measured(options.verbose)})
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
