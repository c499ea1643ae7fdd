"""The CPU's kernels: the runs of a case that separate alias, in-place and scratch."""

from functools import partial

import numpy as np
from cases import Case, In, all_cases, specs
from children import Look, Probe
from measure import ProbeError, has_kernel, read
from onnx import helper
from shim import Trace, compiled
from table import table

THREADS = (1, 2, 4)


def _output_specs(case: Case, produced: list[np.ndarray]) -> list:
    present = iter(produced)
    return [
        None if k in case.absent_outputs else specs([next(present)])[0] for k in range(case.outputs)
    ]


def _eligible(case: Case, outputs: list) -> list[list[int]]:
    """(output, input) pairs of identical shape and element size: those in-place could serve."""
    codes = [*range(1, 8), *range(9, 14), 16]
    size = {k: np.dtype(helper.tensor_dtype_to_np_dtype(k)).itemsize for k in codes}
    return [
        [k, i]
        for k, out in enumerate(outputs)
        if out is not None
        for i, item in enumerate(case.inputs)
        if isinstance(item, In)
        and list(item.shape) == out[1]
        and np.dtype(item.dtype).itemsize == size.get(out[0])
    ]


def _error(error: Exception) -> dict:
    text = " ".join(str(error).split())
    missing = "NOT_IMPLEMENTED" in text or "not a registered function/op" in text
    return {"missing" if missing else "error": text[:300]}


def measure_case(trace: Trace, case: Case) -> dict:
    """All readings of one case as a JSON-able dict; "missing" when the op has no kernel."""
    try:
        return _measure(case, trace)
    except ProbeError as error:
        return {"error": f"probe: {error}"}
    except Exception as error:  # onnxruntime raises a family of its own exceptions
        return _error(error)


def _measure(case: Case, trace: Trace) -> dict:
    if not has_kernel(case):
        return {"missing": "inlined, or wrapped into casts"}
    kept = {threads: read(case, set(), threads, trace) for threads in THREADS}
    outputs = _output_specs(case, kept[1].produced[: case.outputs - len(case.absent_outputs)])
    alias, inplace = [], []
    for index, item in enumerate(case.inputs):
        if not isinstance(item, In):
            continue
        dying = read(case, {index}, 1, trace)
        for output, source in dying.shares.items():
            if source == index:
                (alias if output in kept[1].without_block else inplace).append([output, index])
    return {
        "alias": alias,
        "inplace": inplace,
        "eligible": _eligible(case, outputs),
        "inputs": case.specs,
        "outputs": outputs,
        "scratch": {str(threads): kept[threads].scratch for threads in THREADS},
        "notes": [
            f"output {k} without block, source unknown"
            for k in kept[1].without_block
            if k not in {a[0] for a in alias}
        ],
    }


def _opened() -> Look:
    return partial(measure_case, Trace())


PROBES = {
    "cpu": Probe(
        all_cases,
        _opened,
        table,
        lambda folder: {"LD_PRELOAD": str(compiled("memshim.c", folder / "memshim.so"))},
    )
}
