"""The one door to the parts of onnx that are C++: inference, checker, inliner, version converter.

They end the whole process on some files: an axis beyond 32 bits, a blank input, a negative size
before a Slice (onnx 1.23: segmentation faults and failed assertions). So each call runs in a
forked child, whose death is a :class:`~memplan.errors.ModelError` here and costs one model, not all
of those that ``check`` looks at. A fork takes 2 ms, and as much again for every 5 MB of answer;
a fresh interpreter would take 200 ms. Checks before the call could only ever cover the crashes that
somebody has met. Where a system cannot fork, the call is made in this process.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Sequence

import onnx
from google.protobuf.message import DecodeError

from memplan.errors import ModelError

_PIECE = 1 << 20
_ANSWER = b"a"


def infer_shapes(
    model: onnx.ModelProto, *, strict: bool = False, propagate: bool = False
) -> onnx.ModelProto:
    """``onnx.shape_inference.infer_shapes``; by ``propagate`` with values.

    Raises:
        onnx.shape_inference.InferenceError: ``strict``, and shapes do not fit.
        ModelError: it ended its process.
        RuntimeError, ValueError, MemoryError: it gives up.
    """

    def call() -> bytes:
        found = onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=propagate)
        return found.SerializeToString()

    return _model(_apart("shape inference", call))


def check_model(model: onnx.ModelProto) -> None:
    """``onnx.checker.check_model``.

    Raises:
        onnx.checker.ValidationError: the model is not valid.
        ModelError: the checker ended its process.
    """

    def call() -> bytes:
        onnx.checker.check_model(model)
        return b""

    _apart("checker", call)


def inline_functions(
    model: onnx.ModelProto, operators: Sequence[str] | None = None
) -> onnx.ModelProto:
    """The model with its own functions inlined; or, of ONNX's function operators, ``operators``.

    Raises:
        ModelError: the inliner ended its process.
        RuntimeError: it cannot inline them.
    """
    import onnx.inliner

    def call() -> bytes:
        if operators is None:
            return onnx.inliner.inline_local_functions(model).SerializeToString()
        chosen = [("", name) for name in operators]
        found = onnx.inliner.inline_selected_functions(
            model, chosen, exclude=False, inline_schema_functions=True
        )
        return found.SerializeToString()

    return _model(_apart("inliner", call))


def convert_version(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """``onnx.version_converter.convert_version``.

    Raises:
        ModelError: the converter ended its process.
        RuntimeError: it cannot convert the model.
    """
    import onnx.version_converter  # slow to import, and rarely needed

    def call() -> bytes:
        return onnx.version_converter.convert_version(model, version).SerializeToString()

    return _model(_apart("version converter", call))


def _model(data: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise ModelError(
            "the graph nests its bodies deeper than protobuf reads",
            "the file is damaged or was made to be hard to read",
        ) from None
    return model


def _errors() -> dict[bytes, type[Exception]]:
    """What calls raise, by the letter that stands for it in an answer."""
    return {
        b"i": onnx.shape_inference.InferenceError,
        b"c": onnx.checker.ValidationError,
        b"m": MemoryError,
        b"v": ValueError,
        b"r": RuntimeError,
    }


def _apart(what: str, call: Callable[[], bytes]) -> bytes:
    """The answer of ``call``, made in a child process; its exceptions are raised here.

    Raises:
        ModelError: the child was ended by a signal.
    """
    if not hasattr(os, "fork"):
        return call()
    reader, writer = os.pipe()
    try:
        with warnings.catch_warnings():
            # Of threads beside this one: the child only calls C++ and writes to its pipe.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
    except OSError:  # no process or memory left
        os.close(reader)
        os.close(writer)
        return call()
    if child == 0:
        _answer(writer, call)
    os.close(writer)
    status = -1
    try:
        with open(reader, "rb", buffering=0) as stream:
            pieces = list(iter(lambda: stream.read(_PIECE), b""))
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        status = os.waitpid(child, 0)[1]
    data = b"".join(pieces)
    if os.WIFSIGNALED(status) or not data:
        raise ModelError(
            f"onnx {onnx.__version__} ended on this model: its {what} died"
            + (f" of {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else ""),
            "the model is damaged, or met a bug of onnx; export it again",
        )
    tag, rest = data[:1], data[1:]
    if tag == _ANSWER:
        return rest
    raise _errors()[tag](rest.decode(errors="replace"))


def _answer(writer: int, call: Callable[[], bytes]) -> None:
    """In the child: write the answer or the error, and end without any cleaning up."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what an assertion prints is not for users
        try:
            data = _ANSWER + call()
        except Exception as error:  # the bindings raise exceptions of several types
            kinds = (tag for tag, kind in _errors().items() if isinstance(error, kind))
            data = next(kinds, b"r") + str(error).encode(errors="replace")
        view = memoryview(data)
        while view:
            view = view[os.write(writer, view) :]
    finally:
        os._exit(0)
