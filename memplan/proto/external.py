"""References to weights outside the ``.onnx`` file: checked, re-pointed, never read."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from google.protobuf.message import DecodeError

from memplan.errors import ModelError, UsageError
from memplan.proto.elements import tensor_bytes
from memplan.proto.nodes import subgraphs
from memplan.proto.paths import read_bytes


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model whose data lies in another file: initializers and constants,
    sparse ones included, of the graph, of every body and of every function."""
    yield from _external_of_graph(model.graph)
    for function in model.functions:
        yield from _external_of_nodes(function.node)
    for training in model.training_info:
        yield from _external_of_graph(training.initialization)
        yield from _external_of_graph(training.algorithm)


def external_bytes(model: onnx.ModelProto) -> int:
    """Bytes of all weights outside the file."""
    return sum(tensor_bytes(tensor.data_type, tensor.dims) for tensor in external_tensors(model))


def _external_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from _external((*graph.initializer, *_parts(graph.sparse_initializer)))
    yield from _external_of_nodes(graph.node)


def _external_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _external((attribute.t, *attribute.tensors))
            yield from _external(_parts((attribute.sparse_tensor, *attribute.sparse_tensors)))
        for body in subgraphs(node):
            yield from _external_of_graph(body)


def _external(tensors: Iterable[onnx.TensorProto]) -> Iterator[onnx.TensorProto]:
    return (t for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL)


def _parts(sparse: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    return (part for tensor in sparse for part in (tensor.values, tensor.indices))


def data_files(path: Path) -> list[Path]:
    """The files that the model at ``path`` keeps weights in, whether they are there or not.

    Empty for what is not a model: whoever reads it will say so.
    """
    model = onnx.ModelProto()
    try:
        # Reading a pipe would wait, and take what others are to read; an archive may be large.
        if not path.is_file() or zipfile.is_zipfile(path):
            return []
        model.ParseFromString(read_bytes(path))
    except (OSError, DecodeError):
        return []
    return files_of_weights(model, path)


def files_of_weights(model: onnx.ModelProto, path: Path) -> list[Path]:
    """The files that ``model``, read from ``path``, keeps weights in."""
    places = {external_entry(tensor, "location") or "" for tensor in external_tensors(model)}
    return [path.parent / place for place in sorted(p for p in places if isinstance(p, str) and p)]


def external_entry(tensor: onnx.TensorProto, key: str) -> str | None:
    """One of ``location``, ``offset``, ``length``, ``checksum``, as text; None if not there."""
    return next((item.value for item in tensor.external_data if item.key == key), None)


def external_end(tensor: onnx.TensorProto) -> int:
    """Bytes that the file of an external tensor must have; 0 for what its reader will refuse."""
    try:
        return int(external_entry(tensor, "offset") or 0) + tensor_bytes(
            tensor.data_type, tensor.dims
        )
    except ValueError:
        return 0


def external_location(tensor: onnx.TensorProto, path: Path) -> str:
    """The file of an external tensor of the model at ``path``, relative to the folder of that.

    Raises:
        ModelError: it names none, or one that does not lie in or below the folder.
    """
    location = external_entry(tensor, "location")
    if not location or "\0" in str(location):
        raise ModelError(f"{path}: tensor '{tensor.name}' is external but names no file")
    if not isinstance(location, str):  # protobuf hands out bytes for what is not UTF-8
        raise ModelError(f"{path}: tensor '{tensor.name}' is in a file whose name is not UTF-8")
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute()
    if absolute or ".." in PurePosixPath(location.replace("\\", "/")).parts:
        raise ModelError(
            f"{path}: external data of '{tensor.name}' points outside the model's folder: "
            f"{location}",
            "ONNX requires a relative path below the folder of the model; move the data there",
        )
    return location


def check_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Check that every external reference names an existing, long enough file near the model.

    Raises:
        ModelError: absolute or escaping location, missing file, or a range beyond its end.
    """
    folder = path.parent.resolve()
    # Model hubs keep files in a store and hand out links: a link to the model may stand beside
    # links to its data, if all lead to one folder. ONNX Runtime has the same rule.
    allowed = (folder, path.resolve().parent)
    for tensor in external_tensors(model):
        location = external_location(tensor, path)
        try:
            target = (folder / location).resolve()
            size = target.stat().st_size if target.is_file() else None
        except (OSError, ValueError, RuntimeError) as error:  # a name that no system takes
            raise ModelError(
                f"{path}: external data file '{location}' of tensor '{tensor.name}' cannot be "
                f"read: {error}"
            ) from None
        if not any(target.is_relative_to(place) for place in allowed):
            raise ModelError(
                f"{path}: external data of '{tensor.name}' leads outside the model's folder "
                f"through a link: {location}",
                "copy the data next to the model",
            )
        if size is None:
            raise ModelError(
                f"{path}: external data file '{location}' of tensor '{tensor.name}' is missing",
                f"put it next to the model, in {path.parent}",
            )
        _check_range(tensor, path, location, size)


def _check_range(tensor: onnx.TensorProto, path: Path, location: str, size: int) -> None:
    """Check that the tensor's bytes lie within its file of ``size`` bytes, and are as many as
    its dimensions say."""
    what = f"{path}: external data of '{tensor.name}'"
    needed = tensor_bytes(tensor.data_type, tensor.dims)
    try:
        offset = int(external_entry(tensor, "offset") or 0)
        length = int(external_entry(tensor, "length") or needed)
    except ValueError:
        raise ModelError(f"{what} has a malformed offset or length") from None
    if offset < 0 or length != needed:
        raise ModelError(
            f"{what}: {length:,} bytes at {offset:,}, but shape {list(tensor.dims)} needs "
            f"{needed:,}",
            "the file is damaged or was edited",
        )
    if offset + length > size:
        raise ModelError(
            f"{what} ends at byte {offset + length:,}, but '{location}' has only {size:,}",
            "the data file is truncated or belongs to another model",
        )


def repoint_external_data(model: onnx.ModelProto, source: Path, target: Path) -> None:
    """Rewrite references in ``model`` (read from ``source``) for a file written at ``target``.

    The data itself is neither copied nor touched.

    Raises:
        UsageError: ``target`` lies where a relative path without ``..`` cannot reach the data.
    """
    for tensor in external_tensors(model):
        _set_location(tensor, _location_from(tensor, source, target))


def is_reachable(tensor: onnx.TensorProto, source: Path, target: Path) -> bool:
    """Whether a model at ``target`` can refer to the data of a tensor of that at ``source``."""
    try:
        _location_from(tensor, source, target)
    except UsageError:
        return False
    return True


def settle_links(model: onnx.ModelProto, beside: Path) -> Path:
    """Let references of a model whose data lies beside the model ``beside`` lead to no link.

    A session that is given a model's bytes and a folder accepts no link out of that folder, though
    one that is given a link to a model does (see :func:`check_external_data`).

    Returns:
        The model beside which the data lies now: ``beside``, or what it leads to.
    """
    folder, real = beside.parent.resolve(), beside.resolve()
    tensors = list(external_tensors(model))
    files = [(folder / external_location(tensor, beside)).resolve() for tensor in tensors]
    if all(file.is_relative_to(folder) for file in files):
        return beside
    if all(file.is_relative_to(real.parent) for file in files):
        for tensor, file in zip(tensors, files, strict=True):
            _set_location(tensor, file.relative_to(real.parent).as_posix())
        return real
    return beside


def _set_location(tensor: onnx.TensorProto, location: str) -> None:
    for item in tensor.external_data:
        if item.key == "location":
            item.value = location


def set_external_entries(tensor: onnx.TensorProto, entries: Mapping[str, str]) -> None:
    """Let the tensor's data lie there: ``location``, ``offset``, ``length``."""
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def _location_from(tensor: onnx.TensorProto, source: Path, target: Path) -> str:
    """Where the tensor of a model at ``source`` lies as seen from ``target``."""
    here, there = source.parent.resolve(), target.parent.resolve()
    location = external_location(tensor, source)
    data = (here / location).resolve()
    if not data.is_relative_to(there):
        raise UsageError(
            f"{target}: the weights in {data} cannot be referenced from there",
            f"--weights copy takes them along; or write the output into {data.parent} "
            "(ONNX allows external data only below the model)",
        )
    return location if here == there else data.relative_to(there).as_posix()
