"""Forward nodes and new nodes → one model, without what nobody reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx

from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.value import Value
from memplan.autodiff.hoist import hoist
from memplan.ir.graph import Phase
from memplan.proto.edit import copied, live_nodes, rename_reads, replace_nodes
from memplan.proto.metadata import PHASE_KEY
from memplan.proto.nodes import names_read
from memplan.shapes.tensor_type import UNKNOWN, value_info


def assemble(
    forward: onnx.ModelProto,
    emitter: Emitter,
    outputs: Mapping[str, Value],
    trained: Collection[str],
) -> onnx.ModelProto:
    """The training graph.

    Args:
        forward: the graph that was differentiated (its nodes may have got further outputs).
        emitter: what was built.
        outputs: new graph outputs by their names, which the emitter gave out.
        trained: initializers among these become graph inputs with a default value, as their values
            change from step to step.
    """
    renamed = _named_outputs(emitter, outputs)
    wanted = {value.name for value in forward.graph.output} | renamed.keys()
    new = {node.name for node in emitter.nodes}
    nodes = hoist(_live(forward.graph, emitter, wanted), new, emitter.types, wanted)
    read = names_read(nodes)
    needed = read | wanted
    for node in nodes:
        _drop_unread(node, emitter, needed)
        rename_reads(node, renamed)
        node.output[:] = [renamed.get(name, name) for name in node.output]
    result = copied(forward)
    graph = result.graph
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(t for name, t in emitter.initializers.items() if name in read)
    given = {value.name for value in graph.input}
    for tensor in forward.graph.initializer:
        if tensor.name in trained and tensor.name not in given:
            graph.input.append(value_info(tensor.name, emitter.types[tensor.name]))
    _declare(graph, emitter, renamed)
    return result


def append(model: onnx.ModelProto, emitter: Emitter, outputs: Mapping[str, Value]) -> None:
    """Add what was built to ``model`` itself, with its inputs, constants and some graph outputs,
    whose names the emitter gave out."""
    renamed = _named_outputs(emitter, outputs)
    graph = model.graph
    for node in emitter.nodes:
        rename_reads(node, renamed)
        node.output[:] = [renamed.get(name, name) for name in node.output]
    replace_nodes(graph, [*emitter.placed(graph.node), *emitter.nodes])
    graph.initializer.extend(emitter.initializers.values())
    _declare(graph, emitter, renamed)


def _named_outputs(emitter: Emitter, outputs: Mapping[str, Value]) -> dict[str, str]:
    """The tensor behind each new output → the output's name.

    A backward tensor that is not an output yet takes the name; anything else needs a copy.
    """
    found: dict[str, str] = {}
    for final, value in outputs.items():
        if value.name in found or not emitter.in_backward_part(value):
            with emitter.scope(Scope(final, {PHASE_KEY: Phase.BACKWARD})):
                value = emitter.op("Identity", value)
        found[value.name] = final
    return found


def _live(
    graph: onnx.GraphProto, emitter: Emitter, wanted: Collection[str]
) -> list[onnx.NodeProto]:
    """All forward nodes, and the new ones whose results somebody reads, in order."""
    original = {node.name for node in graph.node}
    placed = [*emitter.placed(graph.node), *emitter.nodes]
    return live_nodes(placed, wanted, lambda node: node.name in original)


def _drop_unread(node: onnx.NodeProto, emitter: Emitter, read: Collection[str]) -> None:
    """Leave out further outputs that a rule asked for and nobody reads."""
    names = [
        "" if name in emitter.further_outputs and name not in read else name for name in node.output
    ]
    while names and not names[-1]:
        names.pop()
    node.output[:] = names


def _declare(graph: onnx.GraphProto, emitter: Emitter, renamed: Mapping[str, str]) -> None:
    """New inputs and outputs, and value infos for computed tensors that have none."""
    graph.input.extend(value_info(name, found) for name, found in emitter.inputs.items())
    for name, final in renamed.items():
        graph.output.append(value_info(final, emitter.types[name]))
    known = {value.name for value in (*graph.value_info, *graph.output, *graph.input)}
    for node in graph.node:
        for name in node.output:
            found = emitter.types.get(name, UNKNOWN)
            if name and name not in known and found.dtype:
                graph.value_info.append(value_info(name, found))
