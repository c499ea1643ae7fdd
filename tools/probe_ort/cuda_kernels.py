"""Which kernels ONNX Runtime's CUDA provider has, and which of their tensors lie on the host.

    python tools/probe_ort/cuda_kernels.py --out memplan/ops/tables/cuda_kernels.json

Asks the real provider, on a machine without a GPU: the CUDA runtime is the stub of tests/helpers.
Types come from the provider's own registry. Host tensors are seen in what a session makes of a
one-op model: a kernel that wants an input on the host gets a MemcpyToHost in front of it, and what
reads an output that lies on the host is moved to the CPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
from on_stub import run_on_stub
from onnx import helper

LAST_VERSION = 2**31 - 1
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
SOURCE = (
    "onnxruntime-gpu's own kernel registry and sessions on one-op models, over a stub of the CUDA "
    "runtime, without a GPU (tools/probe_ort/cuda_kernels.py)"
)


def kernels(definitions: list | None = None) -> dict[str, list]:
    """Operator key -> rows of (first version, last version, {"i0" or "o0": element types}); of the
    definitions of a plugin's kernels, or of CUDA's."""
    import onnxruntime.capi._pybind_state as state

    schemas = defaultdict(dict)
    for schema in state.get_all_operator_schema():
        schemas[schema.domain, schema.name][schema.since_version] = schema
    merged: dict[str, dict] = defaultdict(dict)
    if definitions is None:
        every = state.get_all_opkernel_def()
        definitions = [each for each in every if each.provider == CUDA]
    for kernel in definitions:
        known = schemas.get((kernel.domain, kernel.op_name))
        if not known:
            continue
        first, last = kernel.version_range
        fitting = [version for version in known if first <= version <= last]
        if not fitting:
            continue
        slots = _slots(known[max(fitting)])
        types = {
            slots[name]: frozenset(code for text in allowed if (code := _code(text)))
            for name, allowed in kernel.type_constraints.items()
            if name in slots
        }
        # Kernels that differ in one slot only (usually one per element type) share a row.
        key = f"{kernel.domain}:{kernel.op_name}"
        _merge(merged[key].setdefault((first, last), []), types)
    return {
        key: [
            [first, None if last == LAST_VERSION else last, {k: sorted(v) for k, v in row.items()}]
            for (first, last), rows in sorted(by_version.items())
            for row in rows
        ]
        for key, by_version in sorted(merged.items())
    }


def _slots(schema: object) -> dict[str, str]:
    """Type parameter -> the first slot that it types (T of Add is "i0")."""
    found: dict[str, str] = {}
    for letter, values in (("i", schema.inputs), ("o", schema.outputs)):
        for index, value in enumerate(values):
            found.setdefault(value.typeStr, f"{letter}{index}")
    return found


def _code(text: str) -> int | None:
    """``tensor(float)`` as the number of ``TensorProto.DataType``; None for other types."""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    return getattr(onnx.TensorProto, name, None) if text.startswith("tensor(") else None


def _merge(rows: list[dict], types: dict) -> None:
    for row in rows:
        differing = [slot for slot in types if row.get(slot) != types[slot]]
        if row.keys() == types.keys() and len(differing) <= 1:
            for slot in differing:
                row[slot] |= types[slot]
            return
    rows.append(dict(types))


def host_slots(
    provider: str = CUDA, settings: dict[str, str] | None = None
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Operator key -> inputs, and outputs, that its kernel has on the host."""
    from cases import all_cases, cases_of

    more = cases_of(["Pad"], "value", "[2,3,7] =int64[6]{0,0,1,2,0,0} =[]{1}")
    inputs: dict[str, set[int]] = defaultdict(set)
    outputs: dict[str, set[int]] = defaultdict(set)
    for case in (*all_cases(), *more):
        for computed in (True, False):
            try:
                found = _look(case, computed, provider, settings or {})
            except Exception as error:
                if not computed:
                    print(f"{case.key}/{case.label}: {str(error)[:150]}", file=sys.stderr)
                continue
            if found is not None:
                inputs[case.key] |= found[0]
                outputs[case.key] |= found[1]
            break
    return (
        {key: sorted(slots) for key, slots in sorted(inputs.items()) if slots},
        {key: sorted(slots) for key, slots in sorted(outputs.items()) if slots},
    )


def _look(
    case: object, computed: bool, own: str, settings: dict[str, str]
) -> tuple[set[int], set[int]] | None:
    """Host inputs and outputs of the case's node; None when it does not run on the provider."""
    import onnxruntime as ort
    from cases import Const, model_of, node_of

    feeds, constants, nodes, names = {}, {"flat": np.array([-1], np.int64)}, [], []
    rng = np.random.default_rng(0)
    for index, item in enumerate(case.inputs):
        if item is None:
            names.append("")
        elif isinstance(item, Const) and not computed:
            constants[f"x{index}"] = item.value
            names.append(f"x{index}")
        else:
            value = item.value if isinstance(item, Const) else item.sample(rng)
            feeds[f"g{index}"] = value
            constants[f"s{index}"] = np.asarray(value.shape, np.int64)
            # A view: on CUDA for every type; on WebGPU not for int64.
            view = [f"g{index}", f"s{index}"]
            nodes.append(helper.make_node("Reshape", view, [f"x{index}"], name=f"maker{index}"))
            names.append(f"x{index}")
    nodes.append(node_of(case, names))
    nodes += [
        helper.make_node("Reshape", [f"y{k}", "flat"], [f"r{k}"], name=f"reader{k}")
        for k in case.slots
    ]
    model = model_of(case, nodes, feeds, constants, [f"r{k}" for k in case.slots])
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "saved.onnx")
        session = ort.InferenceSession(model.SerializeToString(), options, [(own, settings)])
        saved = onnx.load(options.optimized_model_filepath).graph.node
    provider = {
        node.name: part.ep_name
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    }
    if provider.get("node") != own:
        return None
    copied = {n.output[0]: n.input[0] for n in saved if n.op_type == "MemcpyToHost"}
    sent = {n.output[0] for n in saved if n.op_type == "MemcpyFromHost"}
    reads = {node.name: node.input for node in saved}
    host = {name.removeprefix("maker") for name, where in provider.items() if where == CPU}
    return (
        {
            i
            for i, name in enumerate(reads["node"])
            if name in copied or _copied(name, saved) or (str(i) in host and name not in sent)
        },
        {
            k
            for k in case.slots
            if provider.get(f"reader{k}") == CPU and not _copied(reads[f"reader{k}"][0], saved)
        },
    )


def _copied(name: str, nodes: list) -> bool:
    """Whether ``name`` is the host side of a copy (the runtime renames either side)."""
    return any(n.op_type == "MemcpyToHost" and name in n.output for n in nodes)


def write_table(out: Path, provider: str, source: str, rows: dict, slots: tuple) -> None:
    """Write what was found, one line per row: long, but a change is a change of one line."""
    import onnxruntime as ort

    table = {
        "schema": "memplan.kernels/1",
        "runtime": f"onnxruntime {ort.__version__}",
        "provider": provider,
        "source": source,
        "host_inputs": slots[0],
        "host_outputs": slots[1],
        "kernels": rows,
    }
    lines = []
    for line in json.dumps(table, indent=1).splitlines():
        if lines and line.startswith("   "):
            lines[-1] += line.strip() if lines[-1].endswith(("[", "{")) else " " + line.strip()
        elif lines and line.startswith("  ]") and "host" not in lines[-1]:
            lines[-1] += line.strip()
        else:
            lines.append(line)
    out.write_text("\n".join(lines) + "\n")


def _child(out: Path) -> None:
    slots = host_slots()
    write_table(out, "cuda", SOURCE, kernels(), slots)


def main() -> int:
    """Build the stub and look at the provider in a child that runs on it."""
    return run_on_stub(__file__, __doc__.splitlines()[0], _child)


if __name__ == "__main__":
    sys.exit(main())
