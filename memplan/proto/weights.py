"""Where the weights of a written model are: referred to, or copied beside it.

Only what is copied is read, in pieces.
"""

from __future__ import annotations

import filecmp
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import IO

import onnx

from memplan.errors import UsageError
from memplan.options import Weights
from memplan.proto.elements import tensor_bytes
from memplan.proto.external import (
    data_files,
    external_entry,
    external_tensors,
    is_reachable,
    repoint_external_data,
    set_external_entries,
)
from memplan.proto.paths import file_problem, opened_file
from memplan.proto.write import Made, check_target, followed, made_beside, put, write_model
from memplan.units import format_bytes

# Where the runtime can map a file's pages.
_ALIGNMENT = 4096
_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class Placement:
    """What becomes of a model's external weights.

    ``how`` is None for a model that has none, else never :attr:`Weights.AUTO`. ``data`` is the
    file that a copy goes to, or went to. ``note`` says what was chosen where nobody did.
    """

    how: Weights | None
    data: Path | None = None
    note: str = ""


NO_WEIGHTS = Placement(None)
"""Of a model without external weights, or one that is not written."""


def plan_weights(
    model: onnx.ModelProto,
    source: Path,
    target: Path,
    weights: str,
    force: bool = False,
    *inputs: Path | None,
    others: Iterable[Path | None] = (),
) -> Placement:
    """Decide, before any work, what becomes of the weights of ``model`` (read from ``source``)
    when a model made from it is written at ``target``; a copy spares further ``inputs`` and
    ``other`` outputs.

    Raises:
        UsageError: they cannot be referred to from ``target``, or their copy cannot be written.
    """
    tensors = list(external_tensors(model))
    if not tensors:
        return NO_WEIGHTS
    how = asked = Weights(weights)
    if asked is Weights.AUTO:
        how = Weights.REFERENCE
        if not all(is_reachable(tensor, source, followed(target)) for tensor in tensors):
            how = Weights.COPY
    if how is Weights.REFERENCE:
        repoint_external_data(_copied(model), source, followed(target))
        return Placement(how)
    data, note = data_file(target), ""
    check_target(data, force, source, *inputs, others=others)
    if asked is Weights.AUTO:
        nbytes = sum(tensor_bytes(tensor.data_type, tensor.dims) for tensor in tensors)
        note = (
            f"{format_bytes(nbytes)} of weights, which {target} cannot refer to, are copied to "
            f"{data}"
        )
    return Placement(how, data, note)


def data_file(output: Path) -> Path:
    """Where weights beside ``output`` lie."""
    real = followed(output)
    return real.with_name(f"{real.name}.data")


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the external tensors alone."""
    result = onnx.ModelProto()
    result.graph.initializer.extend(external_tensors(model))
    return result


def write_with_weights(
    model: onnx.ModelProto, source: Path, target: Path, placement: Placement, *, force: bool = False
) -> Placement:
    """Write ``model``, whose external data is relative to ``source``, at ``target``.

    References in ``model`` are changed. Data that is copied is in place before the model is.

    Returns:
        What became of the weights: a copy may have another name than was planned.

    Raises:
        UsageError: a file cannot be written, or the data cannot be read.
    """
    if placement.data is not None:
        with weights_beside(target, force, source) as beside:
            places = _copy(model, source.parent.resolve(), beside.stream)
            data = beside.put()
            for tensor, place in places:
                set_external_entries(tensor, {"location": data.name, **place})
            write_model(model, target, force=force)
        note = placement.note.replace(str(placement.data), str(data))
        return replace(placement, data=data, note=note)
    if placement.how is Weights.REFERENCE:
        repoint_external_data(model, source, followed(target))
    write_model(model, target, force=force)
    return placement


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


def _copy(
    model: onnx.ModelProto, folder: Path, stream: IO[bytes]
) -> list[tuple[onnx.TensorProto, dict[str, str]]]:
    """Copy what ``model`` refers to into a stream: where each tensor lies there."""
    starts: dict[_Place, int] = {}
    found = []
    for tensor in external_tensors(model):
        place = _place(tensor, folder)
        if place not in starts:
            starts[place] = -(-stream.tell() // _ALIGNMENT) * _ALIGNMENT
            stream.seek(starts[place])
            for piece in place.pieces():
                stream.write(piece)
        found.append((tensor, {"offset": str(starts[place]), "length": str(place.nbytes)}))
    stream.truncate()
    return found


@dataclass(slots=True)
class Beside:
    """Weights on their way into a file beside a model: ``stream`` takes them, ``put`` gives them
    their place. ``new``: a file that was made for them."""

    made: Made
    data: Path
    older: tuple[Path, ...]
    force: bool
    new: Path | None = None

    @property
    def stream(self) -> IO[bytes]:
        """Where they are written."""
        return self.made.stream

    def put(self) -> Path:
        """The file that holds them. One that the model which is there may refer to is never
        written over, as no rename can change both: that has the same content, or they get another
        name.

        Raises:
            OSError, UsageError: see :func:`memplan.proto.write.put`.
        """
        self.stream.flush()
        for file in self.older if self.force else ():
            if filecmp.cmp(self.made.name, file, shallow=False):
                return file
        names = (f"{self.data.stem}.{number}.data" for number in count(1))
        free = (self.data.with_name(name) for name in names)
        taken = self.force and os.path.lexists(self.data)
        place = next(p for p in free if not os.path.lexists(p)) if taken else self.data
        try:  # not by a second link, which ONNX refuses in weights, and a kill would leave
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            raise UsageError(f"{place} exists", "choose another name or add --force") from None
        self.new = place
        put(self.made, place, force=True)
        return place


@contextmanager
def weights_beside(target: Path, force: bool, source: Path | None = None) -> Iterator[Beside]:
    """For weights of a model that the block writes at ``target``, and that may have been made from
    the one at ``source``.

    If the block fails, nothing has changed. If not, what the model before it had is removed.

    Raises:
        UsageError: the file cannot be written.
    """
    data = data_file(target)
    try:
        with made_beside(data) as made:
            beside = Beside(made, data, _older(data), force)
            try:
                yield beside
            except BaseException:
                if beside.new is not None:
                    beside.new.unlink()
                raise
    except OSError as error:
        raise UsageError(f"{data} cannot be written: {error.strerror}") from None
    if beside.older and force:
        models = [followed(target), *([source] if source is not None else [])]
        kept = {file.resolve() for model in models for file in data_files(model)}
        for file in beside.older:
            if file.resolve() not in kept:
                with suppress(OSError):
                    file.unlink()


def _older(data: Path) -> tuple[Path, ...]:
    """What is there of weights beside a model: ``X.data``, or ``X.1.data`` and so on."""
    name = re.compile(rf"{re.escape(data.stem)}(\.[0-9]+)?\.data")
    with os.scandir(data.parent) as entries:
        found = [e.name for e in entries if name.fullmatch(e.name) and e.is_file()]
    return tuple(data.with_name(each) for each in sorted(found))
