"""From case results to the table file.

- ``alias``, ``inplace``: ``[output, input]``: lives in the input's buffer always, or at its last
  use where shape and element size are equal
- ``not_inplace``, ``never_eligible``: probed, neither; or no case could show it
- ``no_kernel``, ``no_kernel_dtypes``: no kernel at all, or none for these TensorProto types of the
  first input
- ``scratch``, ``no_scratch``: bytes beyond inputs and outputs, per case; rows for 2 and 4 threads
  where they differ
"""

import json
from collections.abc import Mapping

import numpy as np
import onnxruntime as ort
from cases import Case, In
from onnx import helper

WITH_BODY = {":If", ":Loop", ":Scan"}  # what they take is what their body takes


def _pairs(results: list[dict], field: str) -> list[list[int]]:
    return [list(pair) for pair in sorted({tuple(p) for r in results for p in r[field]})]


def _most_scratch(results: list[dict]) -> int:
    return max(amount for result in results for amount in result["scratch"].values())


def _plain(attributes: Mapping[str, object]) -> dict[str, object]:
    """The attributes without subgraphs."""
    return {k: v for k, v in attributes.items() if isinstance(v, int | float | str | list)}


def _leading_dtype(case: Case) -> int:
    """The element type of the first intermediate input (0 when there is none)."""
    first = next((item for item in case.inputs if isinstance(item, In)), None)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(first.dtype))) if first else 0


def head(provider: str, source: str = "") -> dict:
    """What every table begins with: what was measured, and of devices how."""
    runtime = f"onnxruntime {ort.__version__}"
    found = {"schema": "memplan.probe/1", "runtime": runtime, "provider": provider}
    return {**found, "source": source} if source else found


def scratch_row(case: Case, result: dict, threads: int, amount: int) -> dict:
    """A row of ``scratch``."""
    return {
        "op": case.key,
        "case": case.label,
        "opset": case.opset,
        "inputs": result["inputs"],
        "outputs": result["outputs"],
        "attributes": _plain(case.attributes),
        "threads": threads,
        "scratch_bytes": amount,
    }


def table(cases: list[Case], results: dict[int, dict]) -> dict:
    """The table of all results; ops whose every case failed to load are listed as no_kernel."""
    by_key: dict[str, list[dict]] = {}
    missing: dict[str, set[int]] = {}
    working: dict[str, set[int]] = {}
    scratch = []
    for index, result in results.items():
        case = cases[index]
        if "scratch" not in result:
            if "missing" in result:
                missing.setdefault(case.key, set()).add(_leading_dtype(case))
            continue
        by_key.setdefault(case.key, []).append(result)
        working.setdefault(case.key, set()).add(_leading_dtype(case))
        one = result["scratch"]["1"]
        for threads, amount in result["scratch"].items():
            if threads != "1" and amount == one:
                continue
            scratch.append(scratch_row(case, result, int(threads), amount))
    alias = {k: p for k, r in by_key.items() if (p := _pairs(r, "alias"))}
    inplace = {k: p for k, r in by_key.items() if (p := _pairs(r, "inplace"))}
    return {
        **head("cpu"),
        "alias": dict(sorted(alias.items())),
        "inplace": dict(sorted(inplace.items())),
        "not_inplace": sorted(k for k in by_key if k not in alias and k not in inplace),
        "never_eligible": sorted(k for k, r in by_key.items() if not _pairs(r, "eligible")),
        "no_kernel": sorted(set(missing) - set(by_key)),
        "no_kernel_dtypes": {
            k: sorted(v - working[k])
            for k, v in sorted(missing.items())
            if k in by_key and v - working[k]
        },
        "no_scratch": sorted(
            k for k, r in by_key.items() if k not in WITH_BODY and not _most_scratch(r)
        ),
        "scratch": sorted(scratch, key=lambda row: (row["op"], row["case"], row["threads"])),
    }


def kept(before: dict, after: dict) -> dict:
    """The table as it was, where only the runtime is another, which it names beside its own."""
    apart = ("runtime", "same_on")
    if {k: v for k, v in before.items() if k not in apart} != {
        k: v for k, v in after.items() if k != "runtime"
    }:
        return after
    same_on = sorted({*before.get("same_on", ()), after["runtime"]} - {before["runtime"]})
    first = {key: before[key] for key in ("schema", "runtime")}
    return {**first, **({"same_on": same_on} if same_on else {}), **after, **first}


def render(content: dict) -> str:
    """JSON with one line per table entry, so that a changed runtime gives a readable diff."""
    parts = []
    for field, value in content.items():
        if isinstance(value, dict):
            body = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            parts.append(f' "{field}": {{\n{body}\n }}' if value else f' "{field}": {{}}')
        elif isinstance(value, list):
            body = ",\n".join(f"  {json.dumps(v)}" for v in value)
            parts.append(f' "{field}": [\n{body}\n ]' if value else f' "{field}": []')
        else:
            parts.append(f' "{field}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"
