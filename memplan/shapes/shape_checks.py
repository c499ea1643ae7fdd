"""Shapes that cannot be: left over from an edit, refused by an operator, unknown, or too large."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx

from memplan.errors import ModelError
from memplan.proto import native
from memplan.proto.bare import without_weights
from memplan.proto.nodes import domain_of, is_standard, reads_of
from memplan.proto.opset import schema_of
from memplan.shapes.infer import GIVES_UP, numeric_type, stated_types
from memplan.shapes.one_node import is_mended
from memplan.shapes.tensor_type import UNKNOWN, TensorType, Types
from memplan.shapes.walk import TypeWalk, agreed

_WINDOWED = frozenset(
    {"Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "DeformConv", "Pad"}
    | {"MaxPool", "AveragePool", "LpPool", "MaxUnpool"}
)
_MOST_ELEMENTS = 2**56
_MOST_INSIDE = 2**52  # per control-flow node; bodies nest


class StrictWalk(TypeWalk):
    """What follows from the inputs of the graph alone is held against what the file states.

    An edited batch size leaves old shapes behind. The runtime warns and goes on with its own; a
    prediction from the old ones would be wrong without a word. ``certain`` are the tensors whose
    types follow so: behind an operator that ONNX does not know, what the file states is believed.

    Raises:
        ModelError: names the first tensor with two types or shapes, or the operator that refuses
            its inputs.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.certain = set(self.types)

    def visit(self, node: onnx.NodeProto) -> None:
        """Find the types of a node's outputs."""
        certain, found = self.is_certain(node), self.infer(node)
        mended = is_mended(node)
        if certain and found.refusal:
            raise ModelError(
                f"the shapes do not fit {node.op_type} '{node.name}': {found.refusal}",
                "ONNX Runtime would refuse the model too; check the sizes given with --dim",
            )
        for name, mine in zip(node.output, found.types, strict=True):
            if not name:
                continue
            if node.op_type in _WINDOWED:
                _require_windows_inside(name, mine)
            told, whole = self.stated.get(name, b""), numeric_type(mine)
            # What inference gets wrong may be what it once stated.
            if certain and not mended:
                _require_true(node, name, numeric_type(told), whole)
            sure = (certain or mended) and whole.shape is not None
            best = mine if sure else agreed(mine, told)
            self.note(name, best)
            if certain and mine and best == mine:
                self.certain.add(name)

    def is_certain(self, node: onnx.NodeProto) -> bool:
        """Whether the types of all that a node reads follow from the inputs of the graph."""
        return self.certain.issuperset(reads_of(node))


def check_stated(model: onnx.ModelProto) -> None:
    """Check that shapes fit the operators, and that the file states no others.

    Raises:
        ModelError: see :class:`StrictWalk`.
    """
    if types_at_once(model) is None:
        StrictWalk(model).run()


def types_at_once(model: onnx.ModelProto) -> dict[str, TensorType] | None:
    """All types of the main graph, where ONNX's inference of the whole gives all sizes from its
    inputs alone, and the file says nothing else; None where :class:`StrictWalk` may say more.

    That is so of operators that inference does not know, behind which it refuses nothing, and of
    those that it gets wrong.
    """
    graph = model.graph
    versions = {domain_of(item): item.version for item in model.opset_import}
    for domain, op in {(domain_of(node), node.op_type) for node in graph.node}:
        if schema_of(domain, op, versions.get(domain, 0)) is None:
            return None
    if any(map(is_mended, graph.node)):
        return None
    try:
        bare = without_weights(model, statements=False)
        found = stated_types(native.infer_shapes(bare, strict=True).graph)
    except (*GIVES_UP, ModelError):
        return None
    told = stated_types(graph)
    types = {value.name: told[value.name] for value in graph.input}
    constants = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
    types |= {tensor.name: told[tensor.name] for tensor in constants}
    for name in (name for node in graph.node for name in node.output if name):
        stated, kind = told.get(name, UNKNOWN), found.get(name, UNKNOWN)
        if not kind.dtype or kind.shape is None:
            return None
        if stated.dtype not in (0, kind.dtype) or stated.shape not in (None, kind.shape):
            return None
        types[name] = kind
    return types


def _require_true(node: onnx.NodeProto, name: str, told: TensorType, found: TensorType) -> None:
    shapes = None not in (told.shape, found.shape) and told.shape != found.shape
    if shapes or (told.dtype and found.dtype and told.dtype != found.dtype):
        raise ModelError(
            f"the file states {_type_text(told)} for tensor '{name}' (output of "
            f"{node.op_type}), but its inputs make it {_type_text(found)}",
            "the stated shapes are left over from an edit: delete the value_info and "
            "output shapes, or export the model again",
        )


def _require_windows_inside(name: str, found: bytes) -> None:
    """Check that no convolution or pooling window is larger than its image: inference makes the
    output's size negative then, and a Slice of it ends the whole process (onnx 1.23)."""
    shape = onnx.TypeProto.FromString(found).tensor_type.shape
    sizes = [dim.dim_value for dim in shape.dim]
    if any(size < 0 for size in sizes):
        raise ModelError(
            f"tensor '{name}' would have shape {sizes}: a window is larger than its image",
            "check the sizes given with --dim",
        )


def _type_text(value: TensorType) -> str:
    names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    shape = "" if value.shape is None else list(value.shape)
    return f"{names.get(value.dtype, value.dtype)}{shape}"


def shapeless(graph: onnx.GraphProto, types: Types) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tensors of the main graph whose shapes are decided at run time, in the order of the file, and
    the standard operators that decide. Strings are not among them: they are not counted anyway.

    None if there is an operator that nobody knows: its shapes may be fixed, and must be stated.
    """
    names: dict[str, None] = {}
    makers: dict[str, None] = {}
    for node in graph.node:
        made = [name for name in node.output if name and _lacks_shape(types.get(name, UNKNOWN))]
        if made and not any(name in names for name in node.input):
            if not is_standard(node.domain):
                return (), ()
            makers[node.op_type] = None
        names |= dict.fromkeys(made)
    return tuple(names), tuple(makers)


def _lacks_shape(value: TensorType) -> bool:
    return value.shape is None and value.dtype != onnx.TensorProto.STRING


def require_shapes(
    graph: onnx.GraphProto,
    types: Types,
    symbols: Mapping[str, str],
    without: frozenset[str] = frozenset(),
) -> None:
    """Check that every tensor has a shape, and that all of them together can exist.

    Args:
        graph: the main graph.
        types: of its tensors.
        symbols: symbolic dimensions, for the message.
        without: computed tensors that need none.

    Raises:
        ModelError: names the tensor, its node and the dimensions that could be bound.
    """
    for given in graph.input:
        if types.get(given.name, UNKNOWN).shape is None:
            raise ModelError(
                f"graph input '{given.name}' has no element type, or a dimension that is neither "
                "a size nor a name",
                "give it one: onnx.tools.update_model_dims, or export the model with named "
                "dynamic dimensions",
            )
    for node in graph.node:
        for name in node.output:
            if name and name not in without and _lacks_shape(types.get(name, UNKNOWN)):
                hint = "add value_info for it, or run onnx.shape_inference"
                if is_standard(node.domain):
                    hint = (
                        "the values of the batch decide it, and a plan needs sizes: compute on all "
                        "rows and mask the result (torch.where, scatter) instead of picking rows "
                        "(boolean masks, nonzero), or state the largest size in value_info; "
                        "'memplan analyze' counts the rest"
                    )
                if symbols:
                    hint += "; symbolic dimensions: " + ", ".join(sorted(symbols))
                raise ModelError(
                    f"the shape of tensor '{name}' (output of {node.op_type} "
                    f"'{node.name or node.output[0]}') is not known",
                    hint,
                )
    require_possible(types)


def require_possible(types: Types) -> None:
    """Check that the tensors of a graph can exist.

    Raises:
        ModelError: names the largest tensor.
    """
    _require_possible(types, 1, "this graph", _MOST_ELEMENTS)


def require_possible_body(types: Types, trips: int | None, node: str) -> None:
    """Check that the tensors of a body can exist, stacked over all iterations.

    Args:
        types: of the body's tensors.
        trips: iterations; None if data decides.
        node: the node around, for the message.

    Raises:
        ModelError: names the largest tensor.
    """
    _require_possible(types, max(trips or 1, 1), f"the body of {node}", _MOST_INSIDE)


def _require_possible(types: Types, times: int, where: str, most: int) -> None:
    total = times * sum(math.prod(value.sizes or ()) for value in types.values())
    if total > most:
        largest = max(types, key=lambda name: math.prod(types[name].sizes or ()))
        raise ModelError(
            f"the tensors of {where} have {total:,} elements; the largest is '{largest}' with "
            f"shape {list(types[largest].shape or ())}",
            "no machine holds that: check the dimensions of the inputs",
        )
