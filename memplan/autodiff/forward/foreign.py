"""Operators of ONNX Runtime's own → ONNX's: what its optimizer fused, and what onnxruntime-training
made of a forward graph.

They are expansions like others (:mod:`memplan.autodiff.rules.microsoft`). But nobody tells the
types of what they make, so they are written out in the order of the file, before anything else, and
types are found on the way.
"""

from __future__ import annotations

import onnx

from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.gradient_registry import entry_for
from memplan.autodiff.forward.annotate import Annotator, constants_of
from memplan.autodiff.forward.convert import ADOPTED, at_opset, in_own_domain, keep_domains
from memplan.autodiff.forward.expand import replacement, state_types
from memplan.errors import MemplanError, ModelError
from memplan.proto.edit import copied, replace_nodes
from memplan.proto.names import NameAuthority, names_in_use
from memplan.proto.nodes import domain_of, names_read
from memplan.proto.opset import default_opset
from memplan.shapes.prepare import FUNCTION_OPS, inline_functions, name_nodes
from memplan.shapes.tensor_type import UNKNOWN, value_info
from memplan.shapes.training_ops import is_foreign_training_graph

# What an expansion meets in a node that no definition has looked at before.
_ODD = (MemplanError, IndexError, TypeError, ValueError)


def is_known(node: onnx.NodeProto) -> bool:
    """Whether ONNX's operators for a node of another domain are known."""
    return node.op_type in ADOPTED or _has_expansion(node)


def _has_expansion(node: onnx.NodeProto) -> bool:
    entry = entry_for(node) if domain_of(node) else None
    return entry is not None and entry.expands(node)


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A forward graph in ONNX's operators, as far as those are known; it is not changed, and the
    same one if it has no others.

    Raises:
        ModelError: it is a training graph of onnxruntime-training; see :func:`written_out`.
    """
    if is_foreign_training_graph(model.graph):
        raise ModelError(
            "the model has gradients of onnxruntime-training already",
            "'memplan lower' makes standard operators of them",
        )
    own = in_own_domain(model)
    others = [node for node in own.graph.node if domain_of(node)]
    return written_out(own) if any(map(is_known, others)) else model


def written_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy at a new opset, in which operators of other domains are written out by ONNX's, where
    those are known, and outputs have types.

    Raises:
        ModelError: a node does not fit its operator, or ONNX's converter refuses one.
    """
    flat, _ = inline_functions(model, frozenset(FUNCTION_OPS))
    result = at_opset(flat)
    name_nodes(result.graph)
    _Walk(result).run()
    return result


class _Walk:
    """Writes out the nodes of one graph, in place and in order."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        graph = self.graph = model.graph
        constants = constants_of(graph, ())
        self.annotator = Annotator(model, constants)
        self.annotator.start()
        outputs = {value.name for value in graph.output}
        self.read = names_read(graph.node) | outputs
        types = self.annotator.types
        names = NameAuthority({*types, *self.read, *names_in_use(graph)})
        self.emitter = Emitter(default_opset(model), types, constants, names, model.ir_version)

    def run(self) -> None:
        """Replace the nodes, and say the types of what they make."""
        graph, emitter = self.graph, self.emitter
        result: list[onnx.NodeProto] = []
        new: list[onnx.NodeProto] = []
        for node in graph.node:
            nodes = [node]
            if _has_expansion(node):
                nodes = self._expanded(node)
                nodes = [one for placed in emitter.behind.values() for one in placed] + nodes
                emitter.behind.clear()
                new += nodes
            for one in nodes:
                self.annotator.visit(one)
                made = [name for name in one.output if name]
                emitter.places.update(dict.fromkeys(made, one.name))
                emitter.makers.update(dict.fromkeys(made, one))
            result += nodes
        stated = [name for node in new for name in node.output if name]
        replace_nodes(graph, result)
        graph.initializer.extend(emitter.initializers.values())
        keep_domains(self.model, {domain_of(node) for node in graph.node})
        state_types(graph, self.annotator.types, stated)
        for value in graph.output:
            found = self.annotator.types.get(value.name, UNKNOWN)
            if not value.type.tensor_type.HasField("shape") and found.dtype:
                value.CopyFrom(value_info(value.name, found))

    def _expanded(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that compute what is read of ``node``.

        Raises:
            ModelError: it does not fit its operator.
        """
        asked = copied(node)
        asked.output[:] = [name if name in self.read else "" for name in node.output]
        try:
            made = replacement(self.emitter, asked)
        except ModelError:
            raise
        except _ODD as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ModelError(
                f"{node.op_type} '{node.name}' cannot be written by ONNX's operators: {reason}",
                "its inputs or attributes do not fit its definition",
            ) from None
        lost = {*filter(None, asked.output)} - {name for one in made for name in one.output}
        if lost:
            raise ModelError(
                f"{node.op_type} '{node.name}': nothing of ONNX computes its output '{min(lost)}'",
                "export the model without what reads it",
            )
        return made
