"""What a model may be given as: a path, as text or not, or a ``ModelProto`` in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import onnx

from memplan.errors import UsageError
from memplan.processes.scratch import scratch_folder
from memplan.proto.paths import as_path

Model = onnx.ModelProto | PathLike[str] | str
_IN_MEMORY = "model.onnx"


@contextmanager
def as_file(model: Model) -> Iterator[Path]:
    """The path of ``model``. One in memory lies in a temporary folder meanwhile, as the runtime
    reads files.

    Raises:
        UsageError: it is neither a path nor a ModelProto, or a ModelProto whose weights are in
            other files, or one of more than 2 GiB.
        RuntimeUnavailableError: there is no room for a temporary file.
    """
    if not isinstance(model, onnx.ModelProto):
        yield as_path(model)
        return
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise UsageError(
                f"the weights of this ModelProto are in other files ('{tensor.name}')",
                "give the path of its file instead, or load it with its weights: onnx.load(path)",
            )
    try:
        data = model.SerializeToString()
    except Exception as error:  # protobuf's classes differ by implementation
        raise UsageError(
            f"the ModelProto cannot be written to a file: {str(error).splitlines()[0]}",
            "a protobuf file holds at most 2 GiB: save the weights apart, and give the path",
        ) from None
    with scratch_folder() as folder:
        path = folder / _IN_MEMORY
        path.write_bytes(data)
        yield path


def shown_path(model: Model) -> Path:
    """The path to name a model by; one in memory has none of its own."""
    return Path(_IN_MEMORY) if isinstance(model, onnx.ModelProto) else as_path(model)
