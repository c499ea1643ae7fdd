"""What kernels of a device do with memory, and which there are: what CUDA's and WebGPU's probes
share.

A kernel works in place where one request fewer is made when an input has no later reader; it
aliases where it asks for less often than it has outputs; what it holds beyond inputs and outputs is
scratch. Which kernels there are, and for which types, the provider's own registry tells. Tensors on
the host are seen in what a session makes of a one-op model: a kernel that wants an input there gets
a MemcpyToHost in front of it, and what reads an output that lies there is moved to the CPU.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from cases import Case, Const, all_cases, around, cases_of, model_of, node_of
from children import Look
from onnx import helper
from table import head, scratch_row

CPU = "CPUExecutionProvider"
LAST_VERSION = 2**31 - 1


def session(model: onnx.ModelProto, provider: Any, saved: Path | None = None) -> Any:
    """A session that runs the graph as it is, in file order, and knows what runs where."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_pattern = options.enable_mem_reuse = False
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if saved is not None:
        options.optimized_model_filepath = str(saved)
    opened = ort.InferenceSession(model.SerializeToString(), options, [provider])
    opened.disable_fallback()
    return opened


def providers_of(opened: Any) -> dict[str, str]:
    """Node → provider."""
    parts = opened.get_provider_graph_assignment_info()
    return {node.name: part.ep_name for part in parts for node in part.get_nodes()}


# --- Memory ---------------------------------------------------------------------------------------


def sharing(
    case: Case, requests_of: Callable[[onnx.ModelProto, dict[str, np.ndarray]], int], outputs: int
) -> tuple[bool, list[list[int]]]:
    """Whether an output lives in an input's buffer at any time, and which (output, input) do where
    the input has no later reader.

    Args:
        case: is run with every input dying in turn.
        requests_of: how many requests for memory a run of a model makes.
        outputs: of the case, those that take memory.
    """
    model, feeds, copies, late = around(case)
    requests = requests_of(model, feeds) - late
    pairs = []
    for index in copies:
        model, feeds, _, late = around(case, {index})
        if requests_of(model, feeds) - late < requests:
            pairs.append([0, index])
    # Besides the node: every input is sent and copied, every output read once.
    return requests - 2 * len(copies) - len(case.slots) < outputs, pairs


def memory_table(
    provider: str,
    source: str,
    cases: list[Case],
    results: Mapping[int, dict],
    no_kernel: Iterable[str],
    unseen: frozenset[str] = frozenset(),
) -> dict:
    """The table of the cases that ran; ``unseen``: operators whose scratch was not seen."""
    ran = [(cases[k], result) for k, result in sorted(results.items()) if "scratch" in result]
    keys = {case.key for case, _ in ran}
    alias = {case.key for case, result in ran if result["shares"]}
    owning = [(case, result) for case, result in ran if case.key not in alias]
    pairs = defaultdict[str, set](set)
    for case, result in owning:
        pairs[case.key] |= {tuple(pair) for pair in result["pairs"]}
    inplace = {k: sorted(map(list, v)) for k, v in sorted(pairs.items()) if v}
    rows = [
        scratch_row(case, result, 1, result["scratch"])
        for case, result in owning
        if result["scratch"]
    ]
    return {
        **head(provider, source),
        "alias": {key: [[0, 0]] for key in sorted(alias)},
        "inplace": inplace,
        "not_inplace": sorted(keys - alias - set(inplace)),
        "no_kernel": sorted(set(no_kernel) - keys),
        "no_scratch": sorted(keys - {row["op"] for row in rows} - unseen),
        "scratch": [row for row in rows if row["op"] not in unseen],
    }


# --- Kernels --------------------------------------------------------------------------------------


def kernels(definitions: Iterable[Any]) -> dict[str, list]:
    """Operator key -> rows of (first version, last version, {"i0" or "o0": element types})."""
    import onnxruntime.capi._pybind_state as state

    schemas = defaultdict[tuple[str, str], dict](dict)
    for schema in state.get_all_operator_schema():
        schemas[schema.domain, schema.name][schema.since_version] = schema
    merged: dict[str, dict] = defaultdict(dict)
    for kernel in definitions:
        known = schemas.get((kernel.domain, kernel.op_name), {})
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
        _merge(merged[f"{kernel.domain}:{kernel.op_name}"].setdefault((first, last), []), types)
    return {
        key: [
            [first, None if last == LAST_VERSION else last, {k: sorted(v) for k, v in row.items()}]
            for (first, last), rows in sorted(by_version.items())
            for row in rows
        ]
        for key, by_version in sorted(merged.items())
    }


def _slots(schema: Any) -> dict[str, str]:
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


REGISTRY = Case("", "the provider's kernels", ())
"""Stands among the cases of a table of kernels for what is asked once."""


def kernel_cases() -> list[Case]:
    """The catalogue, with a case in which an input that is mostly left out is on the host."""
    more = cases_of(["Pad"], "value", "[2,3,7] =int64[6]{0,0,1,2,0,0} =[]{1}")
    return [REGISTRY, *all_cases(), *more]


def kernel_look(own: tuple[str, dict[str, str]], definitions: Iterable[Any]) -> Look:
    """Which of a case's inputs and outputs a kernel of ``own`` (the provider and its options) has
    on the host; and which kernels the provider's ``definitions`` are."""

    def look(case: Case) -> dict:
        if case is REGISTRY:
            return {"kernels": kernels(definitions)}
        said = ""
        for computed in (True, False):
            try:
                return {"slots": [sorted(each) for each in _host_slots(case, computed, own)]}
            except Exception as error:
                said = str(error)[:150]
        return {"error": said}

    return look


def _host_slots(
    case: Case, computed: bool, own: tuple[str, dict[str, str]]
) -> tuple[set[int], set[int]]:
    """Host inputs and outputs of the case's node; none when it does not run on the provider."""
    feeds, constants, nodes, names = {}, {"flat": np.array([-1], np.int64)}, [], []
    rng = np.random.default_rng(0)
    for index, item in enumerate(case.inputs):
        names.append("" if item is None else f"x{index}")
        if isinstance(item, Const) and not computed:
            constants[f"x{index}"] = item.value
        elif item is not None:
            value = item.value if isinstance(item, Const) else item.sample(rng)
            feeds[f"g{index}"] = value
            constants[f"s{index}"] = np.asarray(value.shape, np.int64)
            # A view: on CUDA for every type; on WebGPU not for int64.
            view = [f"g{index}", f"s{index}"]
            nodes.append(helper.make_node("Reshape", view, [f"x{index}"], name=f"maker{index}"))
    nodes.append(node_of(case, names))
    nodes += [
        helper.make_node("Reshape", [f"y{k}", "flat"], [f"r{k}"], name=f"reader{k}")
        for k in case.slots
    ]
    model = model_of(case, nodes, feeds, constants, [f"r{k}" for k in case.slots])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.onnx"
        provider = providers_of(session(model, own, path))
        saved = onnx.load(path).graph.node
    if provider.get("node") != own[0]:
        return set(), set()
    # The host side of a copy, which the runtime renames.
    made = {name for n in saved if n.op_type == "MemcpyToHost" for name in n.output}
    sent = {n.output[0] for n in saved if n.op_type == "MemcpyFromHost"}
    reads = {node.name: node.input for node in saved}
    host = {name.removeprefix("maker") for name, where in provider.items() if where == CPU}
    return (
        {
            i
            for i, name in enumerate(reads["node"])
            if name in made or (str(i) in host and name not in sent)
        },
        {
            k
            for k in case.slots
            if provider.get(f"reader{k}") == CPU and reads[f"reader{k}"][0] not in made
        },
    )


def kernel_table(
    provider: str, source: str, cases: list[Case], results: Mapping[int, dict]
) -> dict:
    """What was found, one line per operator."""
    host = defaultdict[str, set](set), defaultdict[str, set](set)
    for index, result in results.items():
        for by_key, slots in zip(host, result.get("slots", ((), ())), strict=True):
            by_key[cases[index].key] |= {*slots}
    slots = [{k: sorted(v) for k, v in sorted(by_key.items()) if v} for by_key in host]
    return {
        **head(provider, source),
        "schema": "memplan.kernels/1",
        "host_inputs": slots[0],
        "host_outputs": slots[1],
        "kernels": results.get(0, {}).get("kernels", {}),
    }
