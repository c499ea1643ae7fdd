"""The weights of a captured graph: in its file, beside it, or nowhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

import onnx

from memplan.errors import UsageError
from memplan.proto.elements import tensor_bytes
from memplan.proto.external import set_external_entries
from memplan.proto.weights import weights_beside
from memplan.proto.write import write_model
from memplan.units import format_bytes

MOST_EMBEDDED = 1 << 28
"""Bytes that ``auto`` puts into the file; more go into a file of their own."""
_LIMIT = 2**31 - 1
_ALIGNMENT = 4096


class WeightPlace(StrEnum):
    """Where weights go."""

    AUTO = "auto"
    EMBED = "embed"
    COPY = "copy"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor's element type and shape as ONNX has them, and its bytes when they are asked for.

    ``known``: it has bytes; a tensor on PyTorch's meta device has none.
    """

    dtype: int
    shape: tuple[int, ...]
    content: Callable[[], bytes | memoryview]
    known: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of its content."""
        return tensor_bytes(self.dtype, self.shape)


def choose_place(asked: str, weights: Mapping[str, Weight], output: Path | None) -> WeightPlace:
    """Where the weights go. Those without values go nowhere.

    Raises:
        UsageError: they do not fit into a file, lie beside none, or have no values.
    """
    total = sum(weight.nbytes for weight in weights.values())
    place = WeightPlace(asked)
    unknown = [name for name, weight in weights.items() if not weight.known]
    if unknown and place in (WeightPlace.EMBED, WeightPlace.COPY):
        raise UsageError(
            f"--weights {place}: '{unknown[0]}' is on the meta device and has no values",
            "--weights none makes all weights inputs",
        )
    if unknown:
        return WeightPlace.NONE
    if place is WeightPlace.AUTO:
        place = WeightPlace.EMBED
        if total > MOST_EMBEDDED:
            place = WeightPlace.COPY if output is not None else WeightPlace.NONE
    if place is WeightPlace.EMBED and total > _LIMIT - (1 << 26):
        raise UsageError(
            f"--weights embed: {format_bytes(total)} of weights do not fit into one ONNX file, "
            "which holds at most 2 GiB",
            "--weights copy",
        )
    if place is WeightPlace.COPY and output is None:
        raise UsageError("--weights copy requires an output file", "name one with -o")
    return place


def embed(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Put the weights into ``model`` as initializers, in place."""
    for name, weight in weights.items():
        _initializer(model, name, weight).raw_data = bytes(weight.content())


def _initializer(model: onnx.ModelProto, name: str, weight: Weight) -> onnx.TensorProto:
    made: onnx.TensorProto = model.graph.initializer.add(
        name=name, data_type=weight.dtype, dims=list(weight.shape)
    )
    return made


def write_captured(
    model: onnx.ModelProto,
    weights: Mapping[str, Weight],
    place: WeightPlace,
    output: Path,
    force: bool,
) -> Path | None:
    """Write ``model`` and its weights, which become initializers of it.

    Weights beside the file are in place before it is.

    Returns:
        The file of weights beside it, if there is one.

    Raises:
        UsageError: a file cannot be written.
    """
    if place is WeightPlace.COPY:
        with weights_beside(output, force) as beside:
            places = _written(weights, beside.stream)
            data = beside.put()
            for name, entries in places.items():
                tensor = _initializer(model, name, weights[name])
                set_external_entries(tensor, {"location": data.name, **entries})
                tensor.data_location = onnx.TensorProto.EXTERNAL
            write_model(model, output, force=force)
        return data
    if place is WeightPlace.EMBED:
        embed(model, weights)
    write_model(model, output, force=force)
    return None


def _written(weights: Mapping[str, Weight], stream: IO[bytes]) -> dict[str, dict[str, str]]:
    """Write weights one behind the other; where each lies."""
    found = {}
    for name, weight in weights.items():
        offset = -(-stream.tell() // _ALIGNMENT) * _ALIGNMENT
        stream.seek(offset)
        stream.write(weight.content())
        found[name] = {"offset": str(offset), "length": str(weight.nbytes)}
    return found
