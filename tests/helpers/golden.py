"""Golden files: models as text that people can read and compare."""

import onnx
import onnx.parser
import onnx.printer

from memplan.proto.metadata import node_metadata

UPDATE = "MEMPLAN_UPDATE_GOLDEN"


def as_text(model: onnx.ModelProto) -> str:
    """The model, and behind it the nodes' metadata, which the printer leaves out."""
    notes = [
        f"# {node.name}: " + ", ".join(f"{k} = {v}" for k, v in node_metadata(node).items())
        for node in model.graph.node
        if node.metadata_props
    ]
    lines = [line.rstrip() for line in onnx.printer.to_text(model).splitlines()]
    return "\n".join([*lines, *notes]) + "\n"
