"""Run with the stub: every one-op model of the probe's catalogue, placed by us and by the runtime.

Prints a JSON object: how many were compared, and those that differ.
"""

import json
import sys
from pathlib import Path

import onnx
import onnxruntime as ort

from memplan.errors import MemplanError
from memplan.ir.build_graph import build_graph
from memplan.providers import PROVIDERS
from memplan.runtime.plugins import register
from memplan.shapes.prepare import prepare
from memplan.simulate.devices import place

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Compare; what the runtime or ONNX's inference refuses is left out."""
    sys.path.append(str(ROOT / "tools" / "probe_ort"))
    from cases import all_cases, around

    provider = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    register(provider)
    compared, different = 0, []
    for case in all_cases():
        if case.op in ("If", "Loop", "Scan"):
            continue
        try:
            model = around(case, bare=True)[0]
            session = load(model, provider)
        except Exception:
            continue
        placed = {
            node.name: part.ep_name
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        }
        if "node" not in placed or not describe(model, session):
            continue
        try:
            prepared = prepare(model, Path("case.onnx"), {})
        except MemplanError:
            continue
        graph = build_graph(prepared.bound, prepared.types)
        on_cpu = 0 in place(graph, provider)[1].host_nodes
        compared += 1
        if on_cpu != (placed["node"] == "CPUExecutionProvider"):
            different.append(f"{case.key}/{case.label}")
    json.dump({"compared": compared, "different": different}, sys.stdout)


def load(model: onnx.ModelProto, provider: str) -> ort.InferenceSession:
    """A session that says where nodes are."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    known = PROVIDERS[provider]
    own = (known.runtime_name, dict(known.settings))
    return ort.InferenceSession(model.SerializeToString(), options, providers=[own])


def describe(model: onnx.ModelProto, session: ort.InferenceSession) -> bool:
    """Give the outputs the types that the runtime found; False where they are no tensors."""
    names = {"float": "FLOAT", "double": "DOUBLE", "float16": "FLOAT16", "bool": "BOOL"}
    for value, output in zip(model.graph.output, session.get_outputs(), strict=True):
        text = output.type.removeprefix("tensor(").removesuffix(")")
        code = getattr(onnx.TensorProto, names.get(text, text.upper()), None)
        if code is None:
            return False
        shape = [size if isinstance(size, int) else 1 for size in output.shape]
        value.CopyFrom(onnx.helper.make_tensor_value_info(output.name, code, shape))
    return True


if __name__ == "__main__":
    main()
