"""Find fusions of ONNX Runtime that change what a graph computes.

    python tools/probe_ort/fusions.py              # the wrong ones, and how many cases there were
    python tools/probe_ort/fusions.py --family matmul --verbose

Every case is a graph of a few nodes that one of the runtime's optimizers looks for, over shapes and
ranks at the edge: vectors, axes of one element, broadcasts, identity permutations. Its outputs at
every level of optimization are held against those of its own nodes. What is found here and is known
stands in ``memplan/ops/sharp_edges.py``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from fusion_cases import Case, families
from onnx import numpy_helper, parser

LEVELS = ("BASIC", "EXTENDED", "ALL")


@dataclass(frozen=True)
class Found:
    """What the levels made of a case: level → how it differs; ``fused``: operators that the graph
    did not have. ``invalid``: its own nodes do not run."""

    case: Case
    wrong: dict[str, str]
    fused: frozenset[str]
    invalid: str = ""


def model_of(case: Case) -> onnx.ModelProto:
    """The graph of a case; inputs in capitals are constants."""
    given = ", ".join(
        f"{kind}[{','.join(map(str, sizes))}] {name}" if sizes else f"{kind} {name}"
        for name, (kind, sizes) in case.inputs.items()
    )
    text = (
        f'<ir_version: 10, opset_import: ["": {case.opset}, "com.microsoft": 1]> '
        f"g ({given}) => (float y) {{ {case.body} }}"
    )
    model = parser.parse_model(text)
    model.graph.output[0].ClearField("type")
    rng = np.random.default_rng(7)
    values = []
    for value in [v for v in model.graph.input if v.name.isupper()]:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
        values.append(numpy_helper.from_array(_draw(rng, dtype, sizes), value.name))
        model.graph.input.remove(value)
    model.graph.initializer.extend(values)
    return model


def _draw(rng: np.random.Generator, dtype: np.dtype, sizes: Sequence[int]) -> np.ndarray:
    if dtype == np.bool_:
        return rng.random(sizes) > 0.5
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 3, sizes).astype(dtype)
    return (rng.random(sizes) * 2 + 0.25 - (rng.random(sizes) > 0.5)).astype(dtype)


def _session(model: bytes, level: str, saved: str = "") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    name = "ORT_DISABLE_ALL" if level == "NONE" else f"ORT_ENABLE_{level}"
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, name)
    if saved:
        options.optimized_model_filepath = saved
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def tried(case: Case, folder: Path) -> Found:
    """A case at every level."""
    try:
        model = model_of(case)
        data, rng = model.SerializeToString(), np.random.default_rng(11)
        feeds = {}
        for value in model.graph.input:
            tensor = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            feeds[value.name] = _draw(rng, dtype, [d.dim_value for d in tensor.shape.dim])
        expected = _session(data, "NONE").run(None, feeds)[0]
    except Exception as error:
        return Found(case, {}, frozenset(), str(error).splitlines()[0][:160])
    wrong: dict[str, str] = {}
    saved = folder / "fused.onnx"
    for level in LEVELS:
        try:
            got = _session(data, level, str(saved)).run(None, feeds)[0]
        except Exception as error:
            wrong[level] = str(error).splitlines()[0][:160]
            continue
        difference = _difference(expected, got)
        if difference:
            wrong[level] = difference
    own = Counter(node.op_type for node in model.graph.node)
    after = Counter(n.op_type for n in onnx.load(saved).graph.node) if saved.exists() else own
    return Found(case, wrong, frozenset(after - own))


def _difference(expected: np.ndarray, got: np.ndarray) -> str:
    if expected.shape != got.shape:
        return f"shape {got.shape} for {expected.shape}"
    if expected.dtype.kind != "f":
        return "" if np.array_equal(expected, got) else "other values"
    if np.allclose(expected, got, rtol=2e-3, atol=2e-3, equal_nan=True):
        return ""
    return f"off by {np.abs(expected - got).max():.2g}"


def main() -> int:
    """Try all cases; 1 if any level changes a result."""
    arguments = argparse.ArgumentParser(prog="fusions", description=__doc__.splitlines()[0])
    arguments.add_argument("--family", action="append", default=[], help="only this one")
    arguments.add_argument("--verbose", action="store_true", help="also what is no valid graph")
    options = arguments.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, cases in families().items():
            if options.family and name not in options.family:
                continue
            found = [tried(case, Path(folder)) for case in cases]
            bad = [each for each in found if each.wrong]
            invalid = [each for each in found if each.invalid]
            fused = Counter(op for each in found for op in each.fused)
            failures += len(bad)
            print(
                f"{name}: {len(found) - len(invalid)} graphs ({len(invalid)} more are invalid), "
                f"{len(bad)} wrong; made {', '.join(f'{k} {v}' for k, v in sorted(fused.items()))}"
            )
            for each in bad:
                print(f"  WRONG {each.case.label}: {each.wrong} {sorted(each.fused)}")
            for each in invalid if options.verbose else ():
                print(f"  invalid {each.case.label}: {each.invalid}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
