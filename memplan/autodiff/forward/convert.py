"""A file with operators of ONNX Runtime's own, at a new opset; foreign nodes are set aside.

ONNX's version converter passes over nodes of other domains, but stops at operators that
ONNX Runtime put into ONNX's own domain, and knows none of the other domains' versions. So
those are set aside while it works; and it is given no weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx

from memplan.errors import ModelError
from memplan.proto import native
from memplan.proto.bare import without_weights
from memplan.proto.edit import copied, replace_nodes
from memplan.proto.nodes import domain_of, names_read, subgraphs
from memplan.proto.opset import OPSET, allow_initializers, default_opset, schema_of

MICROSOFT, ATEN = "com.microsoft", "org.pytorch.aten"
_IR_VERSION = 9  # of that opset
_TRAINING_MODE = 14
"""The first opset in which a BatchNormalization says whether it trains."""
ADOPTED = frozenset({"LayerNormalization"})
"""Operators of the runtime that ONNX has defined since, as they were."""


def is_foreign(node: onnx.NodeProto, opset: int) -> bool:
    """Whether ONNX does not define a node's operator at an opset.

    ONNX Runtime put some of its own into ONNX's domain.
    """
    return bool(domain_of(node)) or schema_of("", node.op_type, opset) is None


def in_own_domain(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose operators that ONNX does not define are not in its domain; the model itself, if
    it has none of those."""
    opset = default_opset(model)
    found = [
        k
        for k, node in enumerate(model.graph.node)
        if not domain_of(node) and is_foreign(node, opset)
    ]
    if not found:
        return model
    result = copied(model)
    for k in found:
        result.graph.node[k].domain = MICROSOFT
    return result


def at_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose ONNX operators are those of opset 20, or of the file's own, if that is newer.

    Operators that ONNX has defined since are its own from then on (LayerNormalization).

    Raises:
        ModelError: ONNX's converter refuses an operator.
    """
    result, before = in_own_domain(model), default_opset(model)
    result = copied(model) if result is model else result
    graph = result.graph
    keep_domains(result, {domain_of(node) for node in graph.node})
    if before < OPSET:
        training = _in_training(graph) if before < _TRAINING_MODE else set()
        converted = _converted(without_weights(result, statements=True))
        _tell(converted.graph, graph)
        for node in converted.graph.node:
            if node.output[0] in training:
                node.attribute.add(name="training_mode", type=onnx.AttributeProto.INT, i=1)
        replace_nodes(graph, converted.graph.node)
        known = {t.name for t in graph.initializer} | {v.name for v in graph.input}
        graph.initializer.extend(t for t in converted.graph.initializer if t.name not in known)
        _import(result, {item.domain: item.version for item in result.opset_import} | {"": OPSET})
    _adopt(graph, default_opset(result))
    allow_initializers(result)
    result.ir_version = max(result.ir_version, _IR_VERSION)
    return result


def _tell(graph: onnx.GraphProto, before: onnx.GraphProto) -> None:
    """Say of the nodes of a graph and its bodies what was said before: the converter leaves it
    out."""
    known = {node.output[0]: node for node in before.node}
    for node in graph.node:
        old = known.get(node.output[0])
        if old is not None:
            node.metadata_props.extend(old.metadata_props)
            for body, own in zip(subgraphs(node), subgraphs(old), strict=True):
                _tell(body, own)


def _in_training(graph: onnx.GraphProto) -> set[str]:
    """What normalizations by the batch make: further outputs mean training. The converter stops at
    the fourth and fifth, which no later opset has; nobody reads them."""
    found = set()
    read = names_read(graph.node) | {value.name for value in graph.output}
    for node in graph.node:
        if node.op_type == "BatchNormalization" and any(node.output[1:]):
            found.add(node.output[0])
            if not read.intersection(node.output[3:]):
                del node.output[3:]
    return found


def _adopt(graph: onnx.GraphProto, opset: int) -> None:
    """Give ONNX back the operators that it has defined since they were set aside."""
    for node in graph.node:
        if node.domain == MICROSOFT and node.op_type in ADOPTED:
            own = onnx.NodeProto(op_type=node.op_type)
            node.domain = MICROSOFT if is_foreign(own, opset) else ""


def keep_domains(model: onnx.ModelProto, domains: Collection[str]) -> None:
    """Let a file import ONNX's operators and those of ``domains`` alone, in place: it lists a dozen
    of which no runtime knows the newest."""
    versions = {item.domain: item.version for item in model.opset_import}
    kept = {domain: versions.get(domain, 1) for domain in sorted(domains)}
    _import(model, {**kept, "": default_opset(model)})


def _import(model: onnx.ModelProto, versions: Mapping[str, int]) -> None:
    del model.opset_import[:]
    for domain, version in sorted(versions.items()):
        model.opset_import.add(domain=domain, version=version)


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return native.convert_version(model, OPSET)
    except ModelError:
        raise
    except Exception as error:  # the binding raises bare C++ exceptions of several types
        raise ModelError(
            f"the file's operators cannot be converted from opset {default_opset(model)} to "
            f"{OPSET}: {str(error).splitlines()[0]}",
            "export the model with a newer opset",
        ) from None
