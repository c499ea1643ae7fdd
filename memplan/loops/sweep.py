"""Takes out what nobody reads any longer, in a graph and in the bodies of its loops."""

from __future__ import annotations

import onnx

from memplan.loops.call import body_of
from memplan.ops.memory import EFFECT_OPS
from memplan.proto.nodes import captured_names


def sweep(graph: onnx.GraphProto, before: onnx.GraphProto) -> None:
    """Take out of ``graph`` what was read in ``before`` only: nodes, stacked tensors, constants."""
    had = _read(before)
    while True:
        read = _read(graph)
        gone = had - read
        dead = [
            node
            for node in graph.node
            if node.output and all(not n or n in gone for n in node.output)
        ]
        for node in dead:
            graph.node.remove(node)
        trimmed = [n for n in graph.node if n.op_type in ("Scan", "Loop") and _trim(n, gone)]
        if not dead and not trimmed:
            break
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in gone:
            del graph.initializer[index]
    made = {name for node in graph.node for name in node.output}
    made.update(tensor.name for tensor in graph.initializer)
    made.update(value.name for value in graph.input)
    for index in reversed(range(len(graph.value_info))):
        if graph.value_info[index].name not in made:
            del graph.value_info[index]


def _read(graph: onnx.GraphProto) -> set[str]:
    found = {name for node in graph.node for name in (*node.input, *captured_names(node))}
    return {name for name in found if name} | {value.name for value in graph.output}


def _trim(node: onnx.NodeProto, gone: set[str]) -> bool:
    """Let a loop stack no more what nobody reads; whether there was such."""
    body = body_of(node)
    first = 0 if node.op_type == "Scan" else 1
    states = (
        len(node.input) - next(a.i for a in node.attribute if a.name == "num_scan_inputs")
        if node.op_type == "Scan"
        else len(node.input) - 2
    )
    changed = False
    for slot in reversed(range(states, len(node.output))):
        if node.output[slot] not in gone:
            continue
        del node.output[slot], body.output[slot + first]
        for attribute in node.attribute:
            named = attribute.name in ("scan_output_axes", "scan_output_directions")
            if named and slot - states < len(attribute.ints):
                del attribute.ints[slot - states]
        changed = True
    if changed:
        sweep_body(body)
    return changed


def sweep_body(body: onnx.GraphProto) -> None:
    """Take out nodes that no output of the body needs."""
    needed = {value.name for value in body.output}
    for index in reversed(range(len(body.node))):
        node = body.node[index]
        key = f"{'' if node.domain == 'ai.onnx' else node.domain}:{node.op_type}"
        if key in EFFECT_OPS or any(name in needed for name in node.output):
            needed.update((*node.input, *captured_names(node)))
        else:
            del body.node[index]
    for index in reversed(range(len(body.initializer))):
        if body.initializer[index].name not in needed:
            del body.initializer[index]
