"""Where the weights of a written model are: referred to, copied beside it, or put into it.

Only what is copied or embedded is read, and copied in pieces.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import onnx

from memplan.errors import UsageError
from memplan.proto.elements import tensor_bytes
from memplan.proto.external import (
    external_entry,
    external_tensors,
    is_reachable,
    repoint_external_data,
    set_external_entries,
)
from memplan.proto.paths import file_problem, opened_file
from memplan.proto.write import check_target, followed, made_beside, put, write_model
from memplan.units import format_bytes

# Weights of so few bytes are rather put into a file than copied beside it.
_SMALL_BYTES = 1 << 20
_MOST_BYTES = 2**31 - 1
# Where the runtime can map a file's pages.
_ALIGNMENT = 4096
_CHUNK = 1 << 24


class Weights(StrEnum):
    """What to do with weights that lie in other files."""

    AUTO = "auto"
    REFERENCE = "reference"
    COPY = "copy"
    EMBED = "embed"


@dataclass(frozen=True, slots=True)
class Placement:
    """What becomes of a model's external weights.

    ``how`` is None for a model that has none, else never :attr:`Weights.AUTO`. ``data`` is the
    file that a copy goes to. ``note`` says what was chosen where nobody did.
    """

    how: Weights | None
    data: Path | None = None
    note: str = ""


NO_WEIGHTS = Placement(None)
"""Of a model without external weights, or one that is not written."""


def plan_weights(
    model: onnx.ModelProto, source: Path, target: Path, weights: str, force: bool = False
) -> Placement:
    """Decide, before any work, what becomes of the weights of ``model`` (read from ``source``)
    when a model made from it is written at ``target``.

    Raises:
        UsageError: they cannot be referred to from ``target``, are too many to be embedded, or
            their copy cannot be written.
    """
    tensors = list(external_tensors(model))
    if not tensors:
        return NO_WEIGHTS
    asked, note = Weights(weights), ""
    nbytes = sum(tensor_bytes(tensor.data_type, tensor.dims) for tensor in tensors)
    how = asked
    if asked is Weights.AUTO:
        how = Weights.REFERENCE
        if not all(is_reachable(tensor, source, followed(target)) for tensor in tensors):
            how = Weights.EMBED if nbytes <= _SMALL_BYTES else Weights.COPY
    if how is Weights.REFERENCE:
        repoint_external_data(_copied(model), source, followed(target))
        return Placement(how)
    if how is Weights.EMBED:
        if nbytes + model.ByteSize() > _MOST_BYTES:
            raise UsageError(
                f"--weights embed: {format_bytes(nbytes)} of weights do not fit into {target}, "
                "which holds at most 2 GiB",
                "--weights copy puts them beside it",
            )
        if asked is Weights.AUTO:
            note = f"{format_bytes(nbytes)} of weights, which {target} cannot refer to, are in it"
        return Placement(how, None, note)
    real = followed(target)
    data = real.with_name(f"{real.name}.data")
    check_target(data, force, source)
    if asked is Weights.AUTO:
        note = (
            f"{format_bytes(nbytes)} of weights, which {target} cannot refer to, are copied to "
            f"{data}"
        )
    return Placement(how, data, note)


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the external tensors alone."""
    result = onnx.ModelProto()
    result.graph.initializer.extend(external_tensors(model))
    return result


def write_with_weights(
    model: onnx.ModelProto, source: Path, target: Path, placement: Placement, *, force: bool = False
) -> None:
    """Write ``model``, whose external data is relative to ``source``, at ``target``.

    References in ``model`` are changed. Data that is copied is in place before the model is.

    Raises:
        UsageError: a file cannot be written, or the data cannot be read.
    """
    folder = source.parent.resolve()
    if placement.how is Weights.EMBED:
        embed_weights(model, source)
    elif placement.data is not None:
        with _copies(model, folder, placement.data, force):
            write_model(model, target, force=force)
        return
    elif placement.how is Weights.REFERENCE:
        repoint_external_data(model, source, followed(target))
    write_model(model, target, force=force)


def embed_weights(model: onnx.ModelProto, source: Path) -> None:
    """Put external data, which is relative to ``source``, into ``model``, in place.

    Raises:
        UsageError: it cannot be read.
    """
    for tensor in external_tensors(model):
        tensor.raw_data = external_content(tensor, source.parent)
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT


@dataclass(frozen=True, slots=True)
class _Place:
    """Bytes of a file."""

    file: Path
    offset: int
    nbytes: int

    def pieces(self) -> Iterator[bytes]:
        """What stands there.

        Raises:
            UsageError: it cannot be read.
        """
        left = self.nbytes
        try:
            with opened_file(self.file) as stream:
                stream.seek(self.offset)
                while left > 0:
                    piece = stream.read(min(left, _CHUNK))
                    if not piece:
                        raise UsageError(f"{self.file} became shorter while it was read")
                    left -= len(piece)
                    yield piece
        except OSError as error:
            raise UsageError(f"{self.file} cannot be read: {file_problem(error)}") from None


def external_content(tensor: onnx.TensorProto, folder: Path) -> bytes:
    """What a tensor whose data lies in another file, below ``folder``, has there. A hard link below
    the model is a file of the user's like any other, though onnx takes none.

    Raises:
        UsageError: it cannot be read.
    """
    return b"".join(_place(tensor, folder.resolve()).pieces())


def _place(tensor: onnx.TensorProto, folder: Path) -> _Place:
    offset = int(external_entry(tensor, "offset") or 0)
    location = external_entry(tensor, "location") or ""
    return _Place(folder / location, offset, tensor_bytes(tensor.data_type, tensor.dims))


@contextmanager
def _copies(model: onnx.ModelProto, folder: Path, data: Path, force: bool) -> Iterator[None]:
    """Copy what ``model`` refers to into the file ``data``, and let it refer to that.

    If the block fails, ``data`` is what it was before.
    """
    temporary = _copy_beside(model, folder, data)
    kept = f"{temporary}.old"
    there = data.exists()
    try:
        if there and force:
            os.link(data, kept)
        put(temporary, data, force)
        try:
            yield
        except BaseException:
            if there:
                os.replace(kept, data)
            else:
                data.unlink()
            raise
    except OSError as error:
        raise UsageError(f"{data} cannot be written: {error.strerror}") from None
    finally:
        for name in (temporary, kept):
            if os.path.lexists(name):
                os.unlink(name)


def _copy_beside(model: onnx.ModelProto, folder: Path, data: Path) -> str:
    """The name of a temporary file with the data; ``model`` refers to where ``data`` will be."""
    places: dict[_Place, int] = {}
    try:
        with made_beside(data) as made:
            for tensor in external_tensors(model):
                place = _place(tensor, folder)
                if place not in places:
                    places[place] = -(-made.stream.tell() // _ALIGNMENT) * _ALIGNMENT
                    made.stream.seek(places[place])
                    for piece in place.pieces():
                        made.stream.write(piece)
                set_external_entries(tensor, _entries(data, places[place], place.nbytes))
            made.stream.truncate()
    except OSError as error:
        raise UsageError(f"{data} cannot be written: {error.strerror}") from None
    return made.name


def _entries(data: Path, offset: int, nbytes: int) -> Mapping[str, str]:
    return {"location": data.name, "offset": str(offset), "length": str(nbytes)}
