"""The exporter's ONNX graph as memplan writes it: modules, sizes and seeds by readable names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import helper

from memplan.errors import ModelError
from memplan.proto.metadata import CALL_KEY, CHECKPOINT_KEY, LINE_KEY, MODULE_KEY
from memplan.proto.nodes import all_nodes

FIRST_SEED = 1000
_SCOPES = "pkg.torch.onnx.name_scopes"
_NO_MODULE = "_empty_nn_module_stack"
_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_IR_VERSION = 10
INTEGER_SEEDS = frozenset({"Dropout"})
"""Random operators whose seed is an integer; that of others is a float."""
RANDOM = INTEGER_SEEDS | {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


def tidy(
    model: onnx.ModelProto,
    dynamic: Mapping[str, Mapping[int, str]],
    regions: Mapping[str, int] | None = None,
    calls: Mapping[str, str] | None = None,
    lines: Mapping[str, str] | None = None,
) -> int:
    """Rewrite what is not computation, in place.

    Every node tells its module (``memplan.module``), those that make a tensor of ``calls`` (by its
    name) which call of PyTorch that is, and those made for one of ``lines`` (by name of the
    program's node) that line of the source; nothing else tells where that lies. Symbols have the
    names in ``dynamic`` (axis → name, by input), and every random operator a seed of its own, so
    that the same file computes the same numbers. The tensors that enter or leave one of the
    ``regions`` (by name of the program's node) are marked as checkpoints; how many they are.

    Raises:
        ModelError: a dimension that was to be dynamic is not.
    """
    graph = model.graph
    _name_nodes_apart(graph.node)
    region_of = {node.name: (regions or {}).get(_program_node(node)) for node in graph.node}
    model.producer_name, model.producer_version = "memplan capture", ""
    model.ir_version = min(model.ir_version, _IR_VERSION)
    graph.name, graph.doc_string, model.doc_string = "training_step", "", ""
    module = ""
    for node in reversed(graph.node):
        # What torch's optimizer made anew tells nothing, and belongs to what reads it.
        module = _module(node) if _scopes(node) else module
        line = (lines or {}).get(_program_node(node))
        del node.metadata_props[:]
        node.doc_string = ""
        if module:
            node.metadata_props.add(key=MODULE_KEY, value=module)
        if line:
            node.metadata_props.add(key=LINE_KEY, value=line)
        call = (calls or {}).get(next(iter(node.output), ""))
        if call is not None:
            node.metadata_props.add(key=CALL_KEY, value=call)
    for item in (model, graph, *graph.initializer):
        del item.metadata_props[:]
    for value in (*graph.input, *graph.output, *graph.value_info):
        del value.metadata_props[:]
        value.doc_string = ""
    _seed(graph.node)
    _name_symbols(graph, dynamic)
    return mark(graph, region_of) if regions else 0


def _scopes(node: onnx.NodeProto) -> list[str]:
    """Modules from the outside in, then the node of the program that an ONNX node was made for."""
    scopes = next((item.value for item in node.metadata_props if item.key == _SCOPES), "[]")
    try:
        return [str(name) for name in ast.literal_eval(scopes)]
    except (ValueError, SyntaxError):
        return []


def _program_node(node: onnx.NodeProto) -> str:
    return next(iter(_scopes(node)[-1:]), "")


def _module(node: onnx.NodeProto) -> str:
    """The path of the innermost module that made a node, as the user knows it."""
    names = _scopes(node)
    inner = [name for name in names[:-1] if name and not name.startswith(_NO_MODULE)]
    if not inner:
        return "loss" if len(names) > 1 else ""
    path = inner[-1]
    return "" if path == "model" else path.removeprefix("model.")


def _name_nodes_apart(nodes: Iterable[onnx.NodeProto]) -> None:
    seen: set[str] = set()
    for node in nodes:
        name, count = node.name.removeprefix("node_") or node.op_type, 0
        node.name = name
        while node.name in seen:
            count += 1
            node.name = f"{name}_{count}"
        seen.add(node.name)


def _seed(nodes: Iterable[onnx.NodeProto]) -> None:
    for index, node in enumerate(n for n in all_nodes(nodes) if n.op_type in RANDOM):
        kept = [item for item in node.attribute if item.name != "seed"]
        kind = int if node.op_type in INTEGER_SEEDS else float
        made = helper.make_attribute("seed", kind(FIRST_SEED + index))
        attributes = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del node.attribute[:]
        node.attribute.extend([*attributes, made])


def _name_symbols(graph: onnx.GraphProto, dynamic: Mapping[str, Mapping[int, str]]) -> None:
    """The exporter calls sizes ``s53``; expressions of them are renamed, too.

    Raises:
        ModelError: a dimension that was to be dynamic has become a number on the way.
    """
    names: dict[str, str] = {}
    for value in graph.input:
        for axis, label in dynamic.get(value.name, {}).items():
            dim = value.type.tensor_type.shape.dim[axis]
            if not dim.dim_param.isidentifier():
                raise ModelError(
                    f"the dynamic dimension '{label}' of '{value.name}' became "
                    f"{dim.dim_param or dim.dim_value}: an operator fixes it",
                    "leave it out of the dynamic dimensions",
                )
            names[dim.dim_param] = label
    for dim in _dims((*graph.input, *graph.output, *graph.value_info)):
        if dim.dim_param:
            dim.dim_param = _SYMBOL.sub(lambda m: names.get(m[0], m[0]), dim.dim_param)


def _dims(
    values: Sequence[onnx.ValueInfoProto],
) -> Iterable[onnx.TensorShapeProto.Dimension]:
    return (dim for value in values for dim in value.type.tensor_type.shape.dim)


def mark(graph: onnx.GraphProto, region_of: Mapping[str, int | None]) -> int:
    """Mark the nodes whose results enter or leave a region (by name of the node); how many."""
    makers = {name: node for node in graph.node for name in node.output if name}
    marked: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        for name in node.input:
            maker = makers.get(name)
            if maker is not None and region_of[maker.name] != region_of[node.name]:
                marked[maker.name] = maker
    for node in marked.values():
        node.metadata_props.add(key=CHECKPOINT_KEY, value="true")
    return len(marked)
