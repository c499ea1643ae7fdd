"""Nodes that a provider cannot run in the float type that they work in.

``tables/cpu_float_types.json`` is written by ``tools/probe_ort/float_types.py``: it ran every
operator in float16, bfloat16 and float64 on the CPU. Around a node in float16 that has no kernel
the runtime puts Casts; what is left in float16 fails in the middle of a step, as a kernel takes the
type and then does not know it. A session on a GPU leaves nodes without a kernel there to the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import TensorProto, helper

from memplan.ops.kernels import kernels_of, read_table, schema_version
from memplan.proto.bare import without_weights
from memplan.proto.nodes import domain_of, operator_key, subgraphs
from memplan.proto.opset import default_opset
from memplan.providers import PROVIDERS, on_host
from memplan.shapes.infer import run_inference, stated_types
from memplan.shapes.tensor_type import UNKNOWN, TensorType, Types
from memplan.units import counted

_TYPES: Mapping[int, str] = {
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "double",
}
_FLOATS = frozenset({TensorProto.FLOAT, *_TYPES})
_NAMED = 3  # nodes that a sentence names
NO_SESSION = "no session opens"
"""What a sentence of :func:`unsupported_notes` says of a file that no session opens."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A node that a provider cannot run in the type it works in; ``output`` is its first output.

    ``when``: ``open``: no session opens; ``run``: a step fails when it comes to the node.
    """

    node: str
    op: str
    output: str
    dtype: str
    when: str


def unsupported_kernels(
    model: onnx.ModelProto, provider: str = "cpu", types: Types | None = None
) -> tuple[Unsupported, ...]:
    """The nodes of a model, bodies included, that no session on ``provider`` runs.

    Args:
        model: any model.
        provider: nodes that a GPU has no kernel for run on the CPU.
        types: of its tensors, where they are known; else they are inferred.
    """
    if types is None:
        model = run_inference(without_weights(model, statements=True))
        types = stated_types(model.graph)
    return tuple(_in_graph(model.graph, types, provider, default_opset(model)))


def unsupported_notes(found: Sequence[Unsupported], provider: str) -> tuple[str, ...]:
    """What to tell of them: a sentence for each type, and when it fails."""
    where = PROVIDERS[provider].title
    notes = []
    for dtype, when in dict.fromkeys((each.dtype, each.when) for each in found):
        alike = [each for each in found if (each.dtype, each.when) == (dtype, when)]
        names = ", ".join(f"{each.op} '{each.node or each.output}'" for each in alike[:_NAMED])
        fails = "a step fails at it" if when == "run" else NO_SESSION
        notes.append(
            f"ONNX Runtime cannot run {counted(len(alike), 'node')} in {dtype} on {where} "
            f"({names}{' ...' if len(alike) > _NAMED else ''}): {fails}"
        )
    return tuple(notes)


def _in_graph(
    graph: onnx.GraphProto, types: Types, provider: str, opset: int
) -> Iterator[Unsupported]:
    """``types``: of the tensors of ``graph``, and of those around it."""
    asked = any(each.dtype in _TYPES for each in types.values())  # hardly any file has such types
    for node in graph.node:
        if asked and (found := _unsupported(node, types, provider, opset)) is not None:
            yield found
        for body in subgraphs(node):
            yield from _in_graph(body, {**stated_types(body), **types}, provider, opset)


def _unsupported(
    node: onnx.NodeProto, types: Types, provider: str, opset: int
) -> Unsupported | None:
    dtypes = [types.get(name, UNKNOWN).dtype for name in node.input]
    floats = [dtype for dtype in dtypes if dtype in _FLOATS]
    name = _TYPES.get(floats[0]) if floats else None
    when = _fails(node, name) if name else ""
    if not name or not when:
        return None
    if not on_host(provider) and _has_kernel(node, types, opset, provider):
        return None
    return Unsupported(node.name, node.op_type, node.output[0], name, when)


def _fails(node: onnx.NodeProto, dtype: str) -> str:
    """When a session on the CPU fails at a node in the type; empty: it does not."""
    for attribute, value, when in _cpu()[dtype].get(operator_key(node), ()):
        if not attribute or _text(node, attribute) == value:
            return when
    return ""


def _has_kernel(
    node: onnx.NodeProto, types: Mapping[str, TensorType], opset: int, provider: str
) -> bool:
    version = schema_version(domain_of(node), node.op_type, opset)
    inputs, outputs = (
        [types.get(name, UNKNOWN).dtype or None for name in names]
        for names in (node.input, node.output)
    )
    return kernels_of(provider).has(operator_key(node), version, inputs, outputs)


def _text(node: onnx.NodeProto, name: str) -> str:
    found = next((item for item in node.attribute if item.name == name), None)
    if found is None or found.ref_attr_name:
        return ""
    value = helper.get_attribute_value(found)
    return value.decode() if isinstance(value, bytes) else str(value)


@cache
def _cpu() -> Mapping[str, Mapping[str, Sequence[Sequence[str]]]]:
    """Type → operator key → rows of attribute, its value, and when it fails."""
    table = read_table("cpu_float_types")
    return {name: table[name] for name in _TYPES.values()}
