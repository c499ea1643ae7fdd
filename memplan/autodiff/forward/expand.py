"""Forward nodes that are rewritten before they are differentiated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.autodiff.activity import Activity, find_activity
from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.gradient_registry import entry_for, fitting
from memplan.autodiff.forward.annotate import Annotator, constants_of
from memplan.autodiff.forward.patterns import see_patterns
from memplan.errors import MemplanError, ModelError
from memplan.proto import native
from memplan.proto.edit import rename_reads, replace_nodes
from memplan.proto.names import NameAuthority, names_in_use
from memplan.proto.nodes import is_standard
from memplan.proto.opset import default_opset, schema_of
from memplan.shapes.one_node import is_function
from memplan.shapes.prepare import name_nodes
from memplan.shapes.tensor_type import UNKNOWN, Types, value_info

_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Expanded:
    """``model`` with every node on the way rewritten, and what is known of it.

    ``nodes`` is what the reverse pass sees of it: functions that were written out are one node
    each. ``fixed`` are the initializers that nothing is differentiated by.
    """

    model: onnx.ModelProto
    emitter: Emitter
    nodes: Sequence[onnx.NodeProto]
    activity: Activity
    fixed: frozenset[str]


def expand_all(
    model: onnx.ModelProto,
    ys: Collection[str],
    xs: Collection[str],
    names: NameAuthority | None = None,
    mark: str = "",
    *,
    portable: bool = False,
) -> Expanded:
    """Rewrite nodes by their expansions, and inline function operators without a rule.

    ``model`` is changed. Only operators that gradients flow through are touched, and those of
    which no kernel may be left. ``names`` and ``mark``: see :func:`emitter_for`; ``portable``: see
    :class:`Emitter`.
    """
    for _ in range(_ROUNDS):
        emitter = emitter_for(model, xs, names, mark)
        emitter.portable = portable
        nodes = list(model.graph.node)
        activity = find_activity(nodes, emitter.types, ys, xs)
        active = [nodes[index] for index in sorted(activity.nodes)]
        todo = [
            node
            for index, node in enumerate(nodes)
            if (entry := entry_for(node)) and entry.expands(node, index in activity.nodes)
        ]
        if todo:
            _expand(model, emitter, todo)
            continue
        functions = {node.op_type for node in active if _is_function(node, emitter.opset)}
        if not functions:
            kept = {*xs, *ys, *(value.name for value in model.graph.output)}
            seen = see_patterns(nodes, emitter.constants, kept, emitter.types)
            activity = find_activity(seen, emitter.types, ys, xs)
            fixed = frozenset(tensor.name for tensor in model.graph.initializer) - set(xs)
            return Expanded(model, emitter, seen, activity, fixed)
        model = _inlined(model, sorted(functions))
    raise ModelError("function operators are nested too deeply to be differentiated")


def emitter_for(
    model: onnx.ModelProto, xs: Collection[str], names: NameAuthority | None = None, mark: str = ""
) -> Emitter:
    """An emitter that knows the types, constants and names of ``model``.

    Where ``model`` stands for a body, ``names`` gives out those of the whole model, and
    ``mark`` tells its unnamed dimensions from those around it.
    """
    graph = model.graph
    constants = constants_of(graph, xs)
    types = Annotator(model, constants, mark).run()
    names = NameAuthority() if names is None else names
    names.taken |= set(types) | names_in_use(graph)
    emitter = Emitter(default_opset(model), types, constants, names, model.ir_version, mark)
    for node in graph.node:
        made = [name for name in node.output if name]
        emitter.places.update(dict.fromkeys(made, node.name))
        emitter.makers.update(dict.fromkeys(made, node))
    return emitter


def _expand(model: onnx.ModelProto, emitter: Emitter, todo: Sequence[onnx.NodeProto]) -> None:
    replaced = {node.name: replacement(emitter, node) for node in todo}
    replace_nodes(model.graph, emitter.placed(model.graph.node, replaced))
    model.graph.initializer.extend(emitter.initializers.values())
    placed = (name for name, place in emitter.places.items() if place is not None)
    state_types(model.graph, emitter.types, placed)


def state_types(graph: onnx.GraphProto, types: Types, made: Iterable[str]) -> None:
    """Write down what an expansion said of its tensors: inference cannot find all of it again."""
    stated = {value.name for value in (*graph.value_info, *graph.output)}
    for name in made:
        found = types.get(name, UNKNOWN)
        if found.dtype and found.shape is not None and name not in stated:
            graph.value_info.append(value_info(name, found))


def replacement(emitter: Emitter, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes that compute the outputs of ``node`` instead of it."""
    entry = entry_for(node)
    assert entry is not None
    assert entry.expansion is not None
    with fitting(node), emitter.scope(Scope(node.name)), emitter.placed_behind(node.name):
        values = entry.expansion(Context(emitter, node))
        made = emitter.behind.pop(node.name, [])
        own = {name for item in made for name in item.output}
        names: dict[str, str] = {}
        for name, value in zip(node.output, values, strict=False):
            if not name:
                continue
            if value is None:
                raise MemplanError(f"the expansion of {node.op_type} lacks output '{name}'")
            if value.name in own and value.name not in names:
                names[value.name] = name
            else:
                made.append(helper.make_node("Identity", [value.name], [name], name=name))
    for item in made:
        rename_reads(item, names)
        item.output[:] = [names.get(name, name) for name in item.output]
        item.metadata_props.extend(node.metadata_props)
    return made


def _is_function(node: onnx.NodeProto, opset: int) -> bool:
    """Whether ONNX defines the node's operator by others, and no rule of ours knows it."""
    entry = entry_for(node)
    known = entry is not None and (entry.rule or entry.zero or entry.expands(node))
    if not is_standard(node.domain) or known:
        return False
    schema = schema_of("", node.op_type, opset)
    return schema is not None and is_function(schema)


def _inlined(model: onnx.ModelProto, ops: list[str]) -> onnx.ModelProto:
    try:
        model = native.inline_functions(model, ops)
    except Exception as error:  # the binding raises bare C++ exceptions of several types
        reason = str(error).splitlines()[0]
        raise ModelError(f"operators {', '.join(ops)} cannot be inlined: {reason}") from None
    name_nodes(model.graph)
    return model
