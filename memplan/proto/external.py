"""References to weights outside the ``.onnx`` file: checked, re-pointed, never read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from memplan.errors import ModelError, UsageError
from memplan.proto.elements import tensor_bytes
from memplan.proto.nodes import subgraphs


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model whose data lies in another file, bodies included."""
    yield from _external_of_graph(model.graph)


def external_bytes(model: onnx.ModelProto) -> int:
    """Bytes of all weights outside the file."""
    return sum(tensor_bytes(tensor.data_type, tensor.dims) for tensor in external_tensors(model))


def _external_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    sparse = (part for s in graph.sparse_initializer for part in (s.values, s.indices))
    for tensor in (*graph.initializer, *sparse):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.t.data_location == onnx.TensorProto.EXTERNAL:
                yield attribute.t
        for body in subgraphs(node):
            yield from _external_of_graph(body)


def _entry(tensor: onnx.TensorProto, key: str) -> str | None:
    return next((item.value for item in tensor.external_data if item.key == key), None)


def _location(tensor: onnx.TensorProto, path: Path) -> str:
    location = _entry(tensor, "location")
    if not location:
        raise ModelError(f"{path}: tensor '{tensor.name}' is external but names no file")
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
        location = _location(tensor, path)
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
        offset = int(_entry(tensor, "offset") or 0)
        length = int(_entry(tensor, "length") or needed)
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
        location = _location_from(tensor, source, target)
        for item in tensor.external_data:
            if item.key == "location":
                item.value = location


def check_reachable(model: onnx.ModelProto, source: Path, target: Path) -> None:
    """Fail early where :func:`repoint_external_data` would fail; nothing is changed.

    Raises:
        UsageError: ``target`` is the data, or lies where a relative path without ``..`` cannot
            reach it.
    """
    folder, place = source.parent.resolve(), target.resolve()
    for tensor in external_tensors(model):
        if (folder / _location(tensor, source)).resolve() == place:
            raise UsageError(
                f"{target} holds weights of {source}, and inputs are never overwritten",
                "choose another output",
            )
        _location_from(tensor, source, target)


def _location_from(tensor: onnx.TensorProto, source: Path, target: Path) -> str:
    """Where the tensor of a model at ``source`` lies as seen from ``target``."""
    here, there = source.parent.resolve(), target.parent.resolve()
    location = _location(tensor, source)
    data = (here / location).resolve()
    if not data.is_relative_to(there):
        raise UsageError(
            f"{target}: the weights in {data} cannot be referenced from there",
            f"write the output into {data.parent} (ONNX allows external data only below the model)",
        )
    return location if here == there else data.relative_to(there).as_posix()
