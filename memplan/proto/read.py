"""Read an ONNX file and refuse, in one line, what cannot be planned.

Weights in external files are never opened: only their references are checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from memplan.errors import ModelError
from memplan.proto.external import check_external_data
from memplan.proto.limits import MOST_NAME, MOST_NESTED, MOST_OUTPUTS, require
from memplan.proto.metadata import unseal
from memplan.proto.model_checks import (
    check_counts,
    check_node,
    check_sparse,
    check_tensor,
    opset_of,
    require_valid,
)
from memplan.proto.nodes import Described, is_standard, subgraphs
from memplan.proto.paths import file_problem, python_step, read_bytes
from memplan.units import shell_word

_PROTOBUF_LIMIT = 2**31 - 1
_LARGEST_VERSION = 2**31 - 1  # what schemas are asked for
_NOT_REPLACED = frozenset({"Constant", "If", "Loop", "Scan"})  # what is read, not called
MINIMUM_OPSET = 7  # the oldest that ONNX Runtime answers for
_SCANS = 9  # since this opset a Scan has no axis for batches


def read_model(path: Path, weights: Path | None = None) -> onnx.ModelProto:
    """Parse ``path`` and check that it is one well-formed, sorted graph.

    Its external data lies beside the model ``weights``, if that is given, else beside ``path``.

    Raises:
        ModelError: the file is missing, truncated, no ONNX model, uses an opset below
            :data:`MINIMUM_OPSET`, is not what ONNX's checker takes, or refers to external data that
            is missing or lies outside the model's folder.
    """
    return _checked(parse_file(path), path, weights)


def reread(model: onnx.ModelProto, path: Path, weights: Path | None = None) -> onnx.ModelProto:
    """``model`` as :func:`read_model` would read it from ``path``, if its bytes were there.

    Raises:
        ModelError: as :func:`read_model`.
    """
    return _checked(parse(model.SerializeToString(), path), path, weights)


def _checked(model: onnx.ModelProto, path: Path, weights: Path | None) -> onnx.ModelProto:
    check_structure(model, path)
    check_external_data(model, weights or path)
    unseal(model)
    return model


def parse_file(path: Path) -> onnx.ModelProto:
    """The protobuf message in ``path``, unchecked beyond being an ONNX model."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise ModelError(f"{path} is not a file", "give the path of a .onnx file")
        if size > _PROTOBUF_LIMIT:
            raise ModelError(
                f"{path} is {size:,} bytes; a protobuf file holds at most 2 GiB",
                "save it with external data: onnx.save_model(..., save_as_external_data=True)",
            )
        data = read_bytes(path)
    except FileNotFoundError:
        hint = "give the path of a .onnx file"
        if python_step(path) is not None:
            hint = (
                f"this needs a file: memplan capture {shell_word(str(path))} -o step.onnx makes it"
            )
        raise ModelError(f"{path} does not exist", hint) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {file_problem(error)}") from None
    return parse(data, path)


def parse(data: bytes, path: Path) -> onnx.ModelProto:
    """The protobuf message in the bytes of ``path``, unchecked beyond being an ONNX model."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise _foreign(path, data) from None
    if not model.HasField("graph") or not model.opset_import or not model.graph.output:
        raise ModelError(
            f"{path} holds no ONNX graph (no graph, no outputs or no opset)",
            "give a .onnx file; weights-only and optimizer files are not graphs",
        )
    return model


# How other files that people hand over begin, what they are, and what to do.
_FOREIGN = (
    (b"version https://git-lfs", "a Git LFS pointer to one", "fetch it: git lfs pull"),
    (b"PK\x03\x04", "a PyTorch file or a zip archive", "export the model with torch.onnx.export"),
    (b"\x80\x02", "a Python pickle (an old PyTorch file)", "export it with torch.onnx.export"),
    (b"\xfd7zXZ\x00", "packed with xz", "unpack it: unxz"),
    (b"\x1f\x8b", "packed with gzip", "unpack it: gunzip"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd", "unpack it: unzstd"),
    (b"BZh", "packed with bzip2", "unpack it: bunzip2"),
    (b"\x89HDF", "an HDF5 file (Keras)", "convert it with tf2onnx"),
)


def _foreign(path: Path, data: bytes) -> ModelError:
    """The error for bytes that are not a protobuf message of ONNX."""
    for start, what, todo in _FOREIGN:
        if data.startswith(start):
            return ModelError(f"{path} is not an ONNX model but {what}", todo)
    return ModelError(
        f"{path} is not an ONNX model, or it is truncated",
        "check the file with onnx.checker or export it again",
    )


def check_structure(model: onnx.ModelProto, path: Path) -> None:
    """Check opsets, limits, and all that ONNX's checker knows of a graph: names that are defined
    once and before they are read, calls of operators, constants.

    Raises:
        ModelError: with the node and the tensor that break the rule.
    """
    _require_text((opset.domain for opset in model.opset_import), path)
    _require_text((t for item in model.metadata_props for t in (item.key, item.value)), path)
    for opset in model.opset_import:
        if is_standard(opset.domain) and opset.version < MINIMUM_OPSET:
            raise ModelError(
                f"{path} uses opset {opset.version}; memplan reads opset {MINIMUM_OPSET} and newer",
                "convert it with onnx.version_converter",
            )
        _check_version(opset, path)
    for function in model.functions:
        _check_function_text(function, path)
        for opset in function.opset_import:
            _check_version(opset, path)
        if is_standard(function.domain) and function.name in _NOT_REPLACED:
            raise ModelError(f"{path}: a function of the model replaces ONNX's {function.name}")
    require(len(model.graph.output), MOST_OUTPUTS, f"graph outputs in {path}")
    _check_graph(model, model.graph, path)
    require_valid(model, f"{path}: ", lenient=True)


def _check_version(opset: onnx.OperatorSetIdProto, path: Path) -> None:
    if not 0 <= opset.version <= _LARGEST_VERSION:
        raise ModelError(
            f"{path} says that it uses opset {opset.version:,}, which cannot be",
            "export the model again; the file is damaged or was edited",
        )


def _check_graph(
    model: onnx.ModelProto, graph: onnx.GraphProto, path: Path, depth: int = 0
) -> None:
    """Check of a graph in ``model`` and its bodies what the checker does not; ``depth``: how many
    graphs are around it."""
    require(depth, MOST_NESTED, f"bodies within bodies in {path}")
    _check_text(graph, path)
    for tensor in graph.initializer:
        check_tensor(tensor, path)
    for sparse in graph.sparse_initializer:
        check_sparse(sparse, path)
    version = opset_of(model.opset_import)
    functions = {(f.domain, f.name) for f in model.functions}
    before = f"{path}: "
    for index, node in enumerate(graph.node):
        attributes = node.attribute[:]
        where = Described(before, node, index)
        if (node.domain, node.op_type) not in functions:
            check_counts(node, version, where)
        if node.op_type == "Scan" and is_standard(node.domain) and version < _SCANS:
            raise ModelError(
                f"{where}: memplan reads Scan of opset {_SCANS} and newer; before, it had an axis "
                "for batches",
                "convert it with onnx.version_converter",
            )
        if attributes or node.op_type == "Constant":
            check_node(node, where)
        for body in subgraphs(node) if attributes else ():
            _check_graph(model, body, path, depth + 1)


def _check_function_text(function: onnx.FunctionProto, path: Path) -> None:
    """Check that all names of a function are text, too, before anything asks for one."""
    texts = [function.name, function.domain, *function.input, *function.output, *function.attribute]
    texts += [item.name for item in function.attribute_proto]
    texts += [item.domain for item in function.opset_import]
    _require_text(texts, path)
    graphs = [onnx.GraphProto(node=function.node)]
    while graphs:
        graph = graphs.pop()
        _check_text(graph, path)
        graphs += [body for node in graph.node for body in subgraphs(node)]


def _check_text(graph: onnx.GraphProto, path: Path) -> None:
    """Check that names are text (protobuf hands out ``bytes`` for what is not UTF-8), and those of
    tensors, nodes and dimensions not too long."""
    values = (*graph.input, *graph.output, *graph.value_info)
    tensors = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
    names = [item.name for item in (*values, *tensors, *graph.node)]
    texts = [graph.name]
    for value in values:
        names += _dim_names(value.type.SerializeToString())
    for tensor in tensors:
        texts += [text for item in tensor.external_data for text in (item.key, item.value)]
    for node in graph.node:
        names += node.input
        names += node.output
        texts += (node.op_type, node.domain)
        texts += [attribute.name for attribute in node.attribute]
        for item in node.metadata_props:
            texts += (item.key, item.value)
    _require_text((*names, *texts), path)
    if max(map(len, names), default=0) > MOST_NAME // 4:  # a character has up to four bytes
        for name in names:
            require(len(name.encode()), MOST_NAME, f"bytes in a name in {path}")


@lru_cache(maxsize=4096)
def _dim_names(data: bytes) -> tuple[str, ...]:
    """The names of dimensions in a type; the many values of a graph have few types."""
    shape = onnx.TypeProto.FromString(data).tensor_type.shape
    return tuple(dim.dim_param for dim in shape.dim)


def _require_text(texts: Iterable[object], path: Path) -> None:
    for text in texts:
        if type(text) is not str:
            raise ModelError(
                f"{path}: a name in the graph is not valid UTF-8: {text!r}",
                "the file is damaged, or its exporter wrote names in another encoding",
            )
