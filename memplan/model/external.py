"""References to weights outside the ``.onnx`` file: checked, re-pointed, never read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from memplan.errors import ModelError, UsageError


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model whose data lies in another file, bodies included."""
    yield from _external_of_graph(model.graph)


def _external_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.t.data_location == onnx.TensorProto.EXTERNAL:
                yield attribute.t
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _external_of_graph(attribute.g)


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
    for tensor in external_tensors(model):
        location = _location(tensor, path)
        target = (folder / location).resolve()
        if not target.is_relative_to(folder):
            raise ModelError(
                f"{path}: external data of '{tensor.name}' leads outside the model's folder "
                f"through a link: {location}",
                "copy the data next to the model",
            )
        if not target.is_file():
            raise ModelError(
                f"{path}: external data file '{location}' of tensor '{tensor.name}' is missing",
                f"put it next to the model, in {path.parent}",
            )
        try:
            end = int(_entry(tensor, "offset") or 0) + int(_entry(tensor, "length") or 0)
        except ValueError:
            raise ModelError(
                f"{path}: external data of '{tensor.name}' has a malformed offset or length"
            ) from None
        if end > target.stat().st_size:
            raise ModelError(
                f"{path}: external data of '{tensor.name}' ends at byte {end:,}, but '{location}' "
                f"has only {target.stat().st_size:,}",
                "the data file is truncated or belongs to another model",
            )


def repoint_external_data(model: onnx.ModelProto, source: Path, target: Path) -> None:
    """Rewrite references in ``model`` (read from ``source``) for a file written at ``target``.

    The data itself is neither copied nor touched.

    Raises:
        UsageError: ``target`` lies where a relative path without ``..`` cannot reach the data.
    """
    here, there = source.parent.resolve(), target.parent.resolve()
    if here == there:
        return
    for tensor in external_tensors(model):
        location = _location(tensor, source)
        relative = os.path.relpath(here / location, there)
        if relative.startswith(".."):
            raise UsageError(
                f"{target}: the weights in {here / location} cannot be referenced from there",
                f"write the output into {here} (ONNX allows external data only below the model)",
            )
        for item in tensor.external_data:
            if item.key == "location":
                item.value = PurePosixPath(relative).as_posix()
