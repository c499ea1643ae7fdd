"""Bind symbolic dimensions and find the type and shape of every tensor.

Sources, best first: what the file states with all dimensions known, ONNX shape inference, a stated
shape whose symbolic expression (``2*N``) can be evaluated, and the rule shape(X_grad) = shape(X).
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx

from memplan.errors import ModelError, UsageError
from memplan.proto.checks import check_ranks
from memplan.proto.nodes import subgraphs


@dataclass(frozen=True, slots=True)
class ValueType:
    """Element type (``onnx.TensorProto`` enum; 0: not a dense tensor) and shape of a tensor.

    ``static``: whether the runtime knows the shape too; inside a Loop it does not, and then it
    never works in place.
    """

    dtype: int
    shape: tuple[int, ...] | None
    static: bool = True


_ROUNDS = 8
_SMALL = 4096
_EXTERNAL = onnx.TensorProto.EXTERNAL
_LARGEST_DIM = 2**63 - 1
_WINDOWED = frozenset(
    {"Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "DeformConv", "Pad"}
    | {"MaxPool", "AveragePool", "LpPool", "MaxUnpool"}
)
_MOST_ELEMENTS = 2**56
_LONGEST_EXPRESSION = 1000
# ONNX's data propagation keeps every element of a vector (about 100 bytes each).
_LONGEST_PROPAGATED = 1 << 16
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def symbolic_dims(model: onnx.ModelProto) -> dict[str, str]:
    """Every symbolic dimension of the graph inputs, with the first input that has it."""
    found: dict[str, str] = {}
    initialized = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in initialized:
            continue
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                found.setdefault(dim.dim_param, value.name)
    return found


def bind_dims(model: onnx.ModelProto, dims: Mapping[str, int]) -> onnx.ModelProto:
    """A copy of ``model`` in which every symbolic dimension that ``dims`` decides is a number.

    Raises:
        UsageError: ``dims`` names a dimension that no graph input has.
        ModelError: an input dimension stays unknown.
    """
    known = symbolic_dims(model)
    for name in dims:
        if name not in known:
            offered = ", ".join(sorted(known)) or "none: all input shapes are static"
            raise UsageError(
                f"--dim {name}: no input has a dimension of that name",
                f"symbolic dimensions of this model: {offered}",
            )
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    _bind_values(bound.graph, dims)
    missing = list(symbolic_dims(bound))
    if missing:
        raise ModelError(
            f"dimension '{missing[0]}' of input '{known[missing[0]]}' is symbolic",
            "bind it: " + " ".join(f"--dim {name}=..." for name in missing),
        )
    return bound


def _bind_values(graph: onnx.GraphProto, dims: Mapping[str, int]) -> None:
    for value in _declared(graph):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                number = evaluate_dim(dim.dim_param, dims)
                if number is not None:
                    dim.dim_value = number
    for node in graph.node:
        for body in subgraphs(node):
            _bind_values(body, dims)


def evaluate_dim(text: str, dims: Mapping[str, int]) -> int | None:
    """The value of a dimension expression such as ``2*N + 1``, or None if it is not decided."""
    if text in dims:
        return dims[text]
    if not dims or len(text) > _LONGEST_EXPRESSION:
        return None
    try:
        number = _evaluate(ast.parse(text, mode="eval").body, dims)
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return number if 0 <= number <= _LARGEST_DIM else None


def _evaluate(tree: ast.expr, dims: Mapping[str, int]) -> int:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    if isinstance(tree, ast.Name):
        return dims[tree.id]
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _OPERATORS[type(tree.op)](_evaluate(tree.left, dims), _evaluate(tree.right, dims))
    raise ValueError("not a dimension expression")


def _declared(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info


def value_types(bound: onnx.ModelProto) -> tuple[dict[str, ValueType], list[str]]:
    """Type and shape of every tensor of the main graph of ``bound`` (dimensions bound).

    A shape that no source gives is None; :func:`require_shapes` turns that into an error. The
    second result names tensors whose shape is only an upper bound.
    """
    stated = stated_types(bound.graph)
    check_stated(bound, stated)
    if is_complete(bound.graph, stated):
        return stated, []
    # These are needed for few models, and the reference implementation is slow to import.
    from memplan.shapes.bodies import output_types
    from memplan.shapes.fold import complete_types
    from memplan.shapes.training_ops import fill_training_types

    result = stated_types(infer(bound).graph)
    _merge(result, stated)
    bounded = fill_training_types(bound.graph, result)
    if is_complete(bound.graph, result):
        return result, bounded
    working = onnx.ModelProto()
    working.CopyFrom(bound)
    for _ in range(_ROUNDS):
        known = sum(value.shape is not None for value in result.values())
        _merge(result, complete_types(working, result))
        for node in working.graph.node:
            _merge(result, output_types(working, node, result))
        _state(working.graph, result)
        _merge(result, stated_types(infer(working).graph))
        bounded += fill_training_types(bound.graph, result)
        if sum(value.shape is not None for value in result.values()) == known:
            break
    return result, bounded


def check_stated(bound: onnx.ModelProto, stated: Mapping[str, ValueType]) -> None:
    """Check that shapes fit the operators, and that the file states no others.

    An edited batch size leaves old shapes behind. The runtime warns and goes on with its own; a
    prediction from the old ones would be wrong without a word.

    Raises:
        ModelError: names the first tensor with two types or shapes, or the operator.
    """
    inputs = {value.name for value in bound.graph.input}
    inferred = stated_types(_strictly_inferred(bound).graph)
    for node in bound.graph.node:
        for name in node.output:
            told, found = stated.get(name), inferred.get(name)
            if not name or name in inputs or told is None or found is None:
                continue
            shapes = None not in (told.shape, found.shape) and told.shape != found.shape
            types = told.dtype and found.dtype and told.dtype != found.dtype
            if shapes or types:
                raise ModelError(
                    f"the file states {_type_text(told)} for tensor '{name}' (output of "
                    f"{node.op_type}), but its inputs make it {_type_text(found)}",
                    "the stated shapes are left over from an edit: delete the value_info and "
                    "output shapes, or export the model again",
                )


def _strictly_inferred(bound: onnx.ModelProto) -> onnx.ModelProto:
    model = without_weights(bound, statements=False)
    _check_windows(model, bound.graph)
    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        reason = str(error).splitlines()[0].removeprefix("[ShapeInferenceError] ")
        raise ModelError(
            f"the shapes do not fit: {reason.removeprefix('Inference error(s): ')}",
            "ONNX Runtime would refuse the model too; check the sizes given with --dim",
        ) from None
    except (ValueError, RuntimeError, MemoryError):
        return model


def _check_windows(model: onnx.ModelProto, stated: onnx.GraphProto) -> None:
    """Check that no convolution or pooling window is larger than its image.

    Inference makes the output's size negative then, and a Slice of it ends the whole process
    (onnx 1.23, an assertion in C++). So Slices are cut out for this look.

    Raises:
        ModelError: names the operator.
    """
    slices = [node.output[0] for node in model.graph.node if node.op_type == "Slice"]
    if not slices or not any(node.op_type in _WINDOWED for node in model.graph.node):
        return
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    del cut.graph.node[:]
    cut.graph.node.extend(node for node in model.graph.node if node.op_type != "Slice")
    known = {value.name: value for value in _declared(stated)}
    cut.graph.input.extend(known[name] for name in slices if name in known)
    for value in _declared(_infer(cut, propagate=False).graph):
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if any(size < 0 for size in sizes):
            raise ModelError(
                f"tensor '{value.name}' would have shape {sizes}: a window is larger than its "
                "image",
                "check the sizes given with --dim",
            )


def check_calls(graph: onnx.GraphProto, types: Mapping[str, ValueType]) -> None:
    """Check that inputs have ranks that the operators take.

    Raises:
        ModelError: see :func:`memplan.proto.checks.check_ranks`.
    """
    unknown = ValueType(0, None)
    for node in graph.node:
        shapes = (types.get(name, unknown).shape if name else None for name in node.input)
        check_ranks(node, [None if shape is None else len(shape) for shape in shapes])


def _type_text(value: ValueType) -> str:
    names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    shape = "" if value.shape is None else list(value.shape)
    return f"{names.get(value.dtype, value.dtype)}{shape}"


def without_weights(bound: onnx.ModelProto, *, statements: bool) -> onnx.ModelProto:
    """The nodes, inputs and small constants of ``bound``: what inference needs, and no weights.

    Large and sparse constants (whose shapes inference does not know) become inputs.
    ``statements``: with the shapes that the file states for computed tensors.
    """
    graph = bound.graph
    result = onnx.ModelProto(ir_version=bound.ir_version)
    result.opset_import.extend(bound.opset_import)
    result.graph.name = graph.name or "graph"
    result.graph.node.extend(graph.node)
    result.graph.input.extend(graph.input)
    given = {value.name for value in graph.input}
    large = {s.values.name: (s.values.data_type, s.dims) for s in graph.sparse_initializer}
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= _SMALL and tensor.data_location != _EXTERNAL:
            result.graph.initializer.append(tensor)
        elif tensor.name not in given:
            large[tensor.name] = (tensor.data_type, tensor.dims)
    result.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, dtype, dims)
        for name, (dtype, dims) in large.items()
    )
    result.graph.output.extend(graph.output)
    if statements:
        result.graph.value_info.extend(graph.value_info)
        return result
    for value in result.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return result


def _merge(types: dict[str, ValueType], more: Mapping[str, ValueType]) -> None:
    """Take over what is not known yet."""
    for name, value in more.items():
        known = types.get(name)
        if known is None or (known.shape is None and value.shape is not None):
            types[name] = value


def _state(graph: onnx.GraphProto, types: Mapping[str, ValueType]) -> None:
    """Write known shapes into the value_info, so that inference can go on from them."""
    del graph.value_info[:]
    declared = {value.name for value in (*graph.input, *graph.output)}
    for node in graph.node:
        for name in node.output:
            value = types.get(name)
            if name in declared or value is None or value.shape is None or not value.dtype:
                continue
            graph.value_info.append(
                onnx.helper.make_tensor_value_info(name, value.dtype, value.shape)
            )


def infer(bound: onnx.ModelProto) -> onnx.ModelProto:
    """ONNX shape inference with data propagation; what is stated where inference gives up.

    Values are propagated only where no vector is long: a flat buffer of parameters would take a
    hundred times its size.
    """
    model = without_weights(bound, statements=True)
    plain = _infer(model, propagate=False)
    types = stated_types(plain.graph)
    vectors = (value.shape[0] for value in types.values() if value.shape and len(value.shape) == 1)
    if is_complete(plain.graph, types) or max(vectors, default=0) > _LONGEST_PROPAGATED:
        return plain
    return _infer(model, propagate=True)


def _infer(model: onnx.ModelProto, propagate: bool) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=propagate)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError, MemoryError):
        return model


def stated_types(graph: onnx.GraphProto) -> dict[str, ValueType]:
    """Types and shapes that the graph itself declares; shape None where a dim is not a number."""
    found: dict[str, ValueType] = {}
    for value in _declared(graph):
        found[value.name] = _value_type(value.type)
    for tensor in graph.initializer:
        found[tensor.name] = ValueType(tensor.data_type, tuple(tensor.dims))
    for sparse in graph.sparse_initializer:
        found[sparse.values.name] = ValueType(sparse.values.data_type, tuple(sparse.dims))
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] not in found:
            constant = constant_type(node)
            if constant is not None:
                found[node.output[0]] = constant
    return found


def constant_type(node: onnx.NodeProto) -> ValueType | None:
    """Type and shape of a ``Constant`` node's output, whatever attribute holds it."""
    attribute = node.attribute[0] if node.attribute else None
    if attribute is None:
        return None
    lengths: dict[str, tuple[int, tuple[int, ...]]] = {
        "value_float": (onnx.TensorProto.FLOAT, ()),
        "value_int": (onnx.TensorProto.INT64, ()),
        "value_string": (onnx.TensorProto.STRING, ()),
        "value_floats": (onnx.TensorProto.FLOAT, (len(attribute.floats),)),
        "value_ints": (onnx.TensorProto.INT64, (len(attribute.ints),)),
        "value_strings": (onnx.TensorProto.STRING, (len(attribute.strings),)),
        "value": (attribute.t.data_type, tuple(attribute.t.dims)),
        "sparse_value": (
            attribute.sparse_tensor.values.data_type,
            tuple(attribute.sparse_tensor.dims),
        ),
    }
    found = lengths.get(attribute.name)
    return ValueType(*found) if found else None


def _value_type(proto: onnx.TypeProto) -> ValueType:
    if proto.HasField("tensor_type"):
        tensor = proto.tensor_type
        if not tensor.HasField("shape") or not tensor.elem_type:
            return ValueType(tensor.elem_type, None)
        dims = []
        for dim in tensor.shape.dim:
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                return ValueType(tensor.elem_type, None)
            dims.append(dim.dim_value)
        return ValueType(tensor.elem_type, tuple(dims))
    return ValueType(0, ())


def is_complete(graph: onnx.GraphProto, types: Mapping[str, ValueType]) -> bool:
    """Whether every computed tensor of the main graph has a shape in ``types``."""
    for node in graph.node:
        for name in node.output:
            if name and (name not in types or types[name].shape is None):
                return False
    return True


def require_shapes(
    graph: onnx.GraphProto, types: Mapping[str, ValueType], symbols: Mapping[str, str]
) -> None:
    """Check that every tensor has a shape, and that all of them together can exist.

    Raises:
        ModelError: names the tensor, its node and the dimensions that could be bound.
    """
    for given in graph.input:
        if types.get(given.name, ValueType(0, None)).shape is None:
            raise ModelError(
                f"graph input '{given.name}' has no element type, or a dimension that is neither "
                "a size nor a name",
                "give it one: onnx.tools.update_model_dims, or export the model with named "
                "dynamic dimensions",
            )
    for node in graph.node:
        for name in node.output:
            if name and types.get(name, ValueType(0, None)).shape is None:
                hint = "add value_info for it, or run onnx.shape_inference"
                if symbols:
                    hint += "; symbolic dimensions: " + ", ".join(sorted(symbols))
                raise ModelError(
                    f"the shape of tensor '{name}' (output of {node.op_type} "
                    f"'{node.name or node.output[0]}') is not known",
                    hint,
                )
    sizes = {name: math.prod(value.shape or ()) for name, value in types.items()}
    if sum(sizes.values()) > _MOST_ELEMENTS:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ModelError(
            f"the tensors of this graph have {sum(sizes.values()):,} elements; the largest is "
            f"'{largest}' with shape {list(types[largest].shape or ())}",
            "no machine holds that: check the dimensions of the inputs",
        )
