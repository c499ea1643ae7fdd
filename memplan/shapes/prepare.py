"""From a file to the model that is planned: functions inlined, dimensions bound, shapes known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import onnx

from memplan.errors import ModelError
from memplan.proto import native
from memplan.proto.limits import INLINED_FACTOR, INLINED_NODES, require
from memplan.proto.metadata import get_metadata
from memplan.proto.names import NameAuthority
from memplan.proto.nodes import all_nodes, is_standard
from memplan.proto.opset import lower_versions
from memplan.proto.read import check_structure, read_model
from memplan.shapes.complete import value_types
from memplan.shapes.dims import bind_dims, symbolic_dims
from memplan.shapes.hidden import with_hidden_shapes
from memplan.shapes.shape_checks import require_shapes, shapeless
from memplan.shapes.tensor_type import UNKNOWN, Types
from memplan.shapes.visible import with_visibility
from memplan.units import counted

# Function operators for which ONNX Runtime 1.31.1 has no CPU kernel: it inlines them at load and
# appends the new nodes, which breaks the file's order. Inlining first keeps the order ours.
FUNCTION_OPS = frozenset(
    {
        "Bernoulli",
        "CastLike",
        "CausalConvWithState",
        "CenterCropPad",
        "GroupNormalization",
        "HardSwish",
        "LinearAttention",
        "Mish",
        "NegativeLogLikelihoodLoss",
        "SequenceMap",
        "SoftmaxCrossEntropyLoss",
        "SwiGLU",
        "Swish",
    }
)
_INLINING_ROUNDS = 4
_UNIT, _RECORD = "\x1f", "\x1e"  # what ASCII has to tell parts and records apart


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that is ready to become a graph.

    ``proto`` keeps symbolic dimensions (a rewritten file must keep its interface); ``types`` has
    them bound. ``bound`` is the same model with the dimensions bound. ``bounded`` names tensors
    whose shape is only an upper bound, and ``uncounted`` those of which nothing tells it; they are
    there only where the caller takes them (see :func:`prepare`). ``weights`` is the model beside
    which external data lies, where it is not ``path``: that one was made from it.
    """

    path: Path
    proto: onnx.ModelProto
    bound: onnx.ModelProto
    dims: Mapping[str, int]
    types: Types
    assumptions: tuple[str, ...]
    bounded: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    weights: Path | None = None

    @property
    def fingerprint(self) -> str:
        """A hash of structure and dimensions, made when it is asked for: few ask."""
        return fingerprint(self.proto, self.dims)

    @property
    def exact(self) -> bool:
        """Whether every shape is the one of each run: no symbolic dimension, no upper bound."""
        return not symbolic_dims(self.proto) and not self.bounded

    @property
    def beside(self) -> Path:
        """The model beside which external data lies."""
        return self.weights or self.path

    @property
    def folder(self) -> Path:
        """What external data is relative to."""
        return self.beside.parent


def load(
    path: Path,
    dims: Mapping[str, int] | None = None,
    weights: Path | None = None,
    *,
    partly: bool = False,
) -> PreparedModel:
    """Read ``path`` and prepare it for planning.

    Args:
        path: an ONNX file; its weights are not read.
        dims: values for symbolic dimensions of the inputs.
        weights: the model beside which its external data lies, if not ``path``.
        partly: see :func:`prepare`.

    Raises:
        ModelError: see :func:`memplan.proto.read.read_model` and
            :func:`memplan.shapes.shape_checks.require_shapes`.
        UsageError: ``dims`` names an unknown dimension.
    """
    return prepare(read_model(path, weights), path, dims or {}, weights, partly=partly)


def prepare(
    model: onnx.ModelProto,
    path: Path,
    dims: Mapping[str, int],
    weights: Path | None = None,
    *,
    partly: bool = False,
) -> PreparedModel:
    """Prepare a model already in memory; see :class:`PreparedModel` for ``path``, ``weights``.

    Args:
        model: it is changed: its nodes get names.
        path: where it comes from.
        dims: values for symbolic dimensions of the inputs.
        weights: the model beside which its external data lies, if not ``path``.
        partly: a shape that a standard operator decides when it runs (``Range`` up to a number
            that is computed, ``Unique``) is no error: the tensor is not counted, and the
            assumptions say so. For those who look at a model; a plan needs every shape.

    Raises:
        ModelError, UsageError: see :func:`load`.
    """
    functions = bool(model.functions)
    model, assumptions = inline_functions(model)
    if functions:
        check_structure(model, path)
    assumptions += lower_versions(model)
    name_nodes(model.graph)
    shown = with_hidden_shapes(model)
    bound = bind_dims(shown, dims)
    types, bounded = value_types(bound)
    plain = get_metadata(model).get("session") == "default"
    # A plain session is not told what dimensions are bound to; no session what is hidden.
    seen = model if plain else bound if shown is model else bind_dims(model, dims)
    types = with_visibility(seen, types)
    if bounded:
        assumptions.append(
            "shapes are upper bounds where axes are known only at run time: " + _some(bounded)
        )
    uncounted, makers = shapeless(model.graph, types) if partly else ((), ())
    if uncounted:
        assumptions.append(
            f"{counted(len(uncounted), 'tensor')} NOT COUNTED, as the shapes are decided at run "
            f"time (by {_some(makers)}): {_some(uncounted)}; value_info in the file would tell them"
        )
        types |= dict.fromkeys(uncounted, UNKNOWN)
    require_shapes(model.graph, types, symbolic_dims(model), frozenset(uncounted))
    unplanned = sorted(
        name for name, value in types.items() if value.dtype in (0, 8) and name not in uncounted
    )
    if unplanned:
        assumptions.append(
            "strings, sequences or optionals are passed through, not counted: " + _some(unplanned)
        )
    return PreparedModel(
        path,
        model,
        bound,
        dict(dims),
        types,
        tuple(assumptions),
        tuple(bounded),
        uncounted,
        weights,
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def inline_functions(
    model: onnx.ModelProto, kept: frozenset[str] = frozenset()
) -> tuple[onnx.ModelProto, list[str]]:
    """Inline model-local functions and the function operators without a kernel.

    ``kept`` names function operators that stay as they are.
    """
    notes: list[str] = []
    if model.functions:
        notes.append(
            f"{len(model.functions)} model-local functions are inlined where they are called, as "
            "rewrite writes them; a session on this file runs their nodes later"
        )
        written = _count(model.graph.node, *(function.node for function in model.functions))
        try:
            model = native.inline_functions(model)
        except Exception as error:  # the binding raises bare C++ exceptions of several types
            why = "no room" if isinstance(error, MemoryError) else str(error).splitlines()[0]
            raise ModelError(
                f"model-local functions cannot be inlined: {why}",
                "check the file with onnx.checker",
            ) from None
        require(
            _count(model.graph.node),
            max(INLINED_NODES, INLINED_FACTOR * written),
            "nodes after inlining the model's functions",
            "functions call each other too often; inline them before, or export fewer",
        )
    # A function may expand to further functions (SoftmaxCrossEntropyLoss to
    # NegativeLogLikelihoodLoss), so this is repeated until none is left.
    for _ in range(_INLINING_ROUNDS):
        used = {node.op_type for node in model.graph.node if is_standard(node.domain)}
        wanted = sorted(used & FUNCTION_OPS - kept)
        if not wanted:
            break
        notes.append(
            f"{', '.join(wanted)} inlined in place, as rewrite writes them; a session on this "
            "file runs their nodes later"
        )
        try:
            model = native.inline_functions(model, wanted)
        except Exception as error:  # the binding raises bare C++ exceptions of several types
            notes[-1] = f"operators {', '.join(wanted)} could not be inlined: {error}"
            break
    return model, notes


def _count(*nodes: Iterable[onnx.NodeProto]) -> int:
    """How many nodes there are, with those in bodies."""
    return sum(1 for _ in all_nodes(chain(*nodes)))


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every unnamed or doubly named node a unique name: memory is told by node."""
    names = NameAuthority(node.name for node in graph.node)
    seen: set[str] = set()
    for index, node in enumerate(graph.node):
        name = node.name
        if not name or name in seen:
            name = node.name = names.fresh(name or f"{node.op_type}_{index}")
        seen.add(name)


def fingerprint(model: onnx.ModelProto, dims: Mapping[str, int]) -> str:
    """A hash of structure and dimensions: nodes, tensors and shapes, not weights nor comments."""
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        digest.update(f"{_UNIT.join(map(str, parts))}{_RECORD}".encode())

    for opset in sorted(model.opset_import, key=lambda item: item.domain):
        add("opset", opset.domain, opset.version)
    for value in (*model.graph.input, *model.graph.output):
        add("io", value.name, value.type.SerializeToString(deterministic=True).hex())
    for tensor in model.graph.initializer:
        add("init", tensor.name, tensor.data_type, *tensor.dims)
    for node in model.graph.node:
        attributes = [item.SerializeToString(deterministic=True).hex() for item in node.attribute]
        attributes.sort()
        parts = (node.domain, node.op_type, *node.input, "->", *node.output, *attributes)
        digest.update(f"{_UNIT.join(parts)}{_RECORD}".encode())
    add("dims", *sorted(dims.items()))
    return digest.hexdigest()[:32]
