"""The one door to the parts of onnx that are C++: inference, checker, inliner, version converter.

They end the whole process on some files: an axis beyond 32 bits, a blank input, a negative size
before a Slice (onnx 1.23: segmentation faults and failed assertions). So they run in a child
process, whose death is a :class:`~memplan.errors.ModelError` here and costs one model, not all of
those that ``check`` looks at. Checks before the calls could only cover the crashes that somebody
has met.

The child is forked at the first call and serves all further ones: 2 ms once, and 0.2 ms per call
and 2 ms per MB, measured; a fork per call costs 3 ms each, and a graph with many bodies makes
thousands; a fresh interpreter would take 200 ms. Where the system refuses a fork, the calls are
made in this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import threading
import warnings
from collections.abc import Mapping
from typing import NoReturn

import onnx
from google.protobuf.message import DecodeError

from memplan.errors import ModelError, RuntimeUnavailableError
from memplan.proto.nodes import is_standard

_HEADER = struct.Struct("<cQ")  # what is asked for, or what is answered, and how many bytes follow
_ANSWER = b"a"
_PIECE = 1 << 20


def infer_shapes(
    model: onnx.ModelProto, *, strict: bool = False, propagate: bool = False
) -> onnx.ModelProto:
    """``onnx.shape_inference.infer_shapes``; by ``propagate`` with values.

    Raises:
        onnx.shape_inference.InferenceError: ``strict``, and shapes do not fit.
        ModelError: it ended its process.
        RuntimeError, ValueError, MemoryError: it gives up.
    """
    kind = {(False, False): b"i", (True, False): b"s", (False, True): b"p", (True, True): b"b"}
    return _model(_ask(kind[strict, propagate], model.SerializeToString()))


def infer_node_outputs(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    data: Mapping[str, onnx.TensorProto],
    opset: onnx.OperatorSetIdProto,
    ir_version: int,
) -> dict[str, onnx.TypeProto]:
    """``onnx.shape_inference.infer_node_outputs``, of an operator of the domain of ``opset``.

    Raises:
        onnx.shape_inference.InferenceError: shapes do not fit.
        onnx.checker.ValidationError: the operator is deprecated, or types do not fit.
        ModelError: it ended its process.
        RuntimeError, ValueError: it gives up.
    """
    model = onnx.ModelProto(ir_version=ir_version, opset_import=[opset])
    model.graph.node.append(node)
    model.graph.input.extend(onnx.ValueInfoProto(name=n, type=t) for n, t in types.items())
    model.graph.initializer.extend(data.values())
    found = _model(_ask(b"n", model.SerializeToString()))
    return {value.name: value.type for value in found.graph.output}


def _infer_node_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """In the child: the graph's one node with its inputs → the types of its outputs."""
    graph, opset = model.graph, model.opset_import[0]
    found = onnx.shape_inference.infer_node_outputs(
        onnx.defs.get_schema(graph.node[0].op_type, opset.version, opset.domain),
        graph.node[0],
        {value.name: value.type for value in graph.input},
        {tensor.name: tensor for tensor in graph.initializer},
        opset_imports=[opset],
        ir_version=model.ir_version,
    )
    result = onnx.ModelProto()
    result.graph.output.extend(onnx.ValueInfoProto(name=n, type=t) for n, t in found.items())
    return result


def check_model(model: onnx.ModelProto) -> None:
    """``onnx.checker.check_model``.

    Raises:
        onnx.checker.ValidationError: the model is not valid.
        ModelError: the checker ended its process.
    """
    _ask(b"c", model.SerializeToString())


def inline_functions(model: onnx.ModelProto, operators: list[str] | None = None) -> onnx.ModelProto:
    """The model with its own functions inlined; or, of ONNX's function operators, ``operators``.

    Raises:
        ModelError: the inliner ended its process.
        RuntimeError: it cannot inline them.
    """
    data = model.SerializeToString()
    if operators is None:
        return _model(_ask(b"f", data))
    names = " ".join(operators).encode()
    return _model(_ask(b"o", struct.pack("<Q", len(names)) + names + data))


def convert_version(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """``onnx.version_converter.convert_version``.

    Raises:
        ModelError: the converter ended its process.
        RuntimeError: it cannot convert the model.
    """
    return _model(_ask(b"v", struct.pack("<Q", version) + model.SerializeToString()))


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


_CALLS = {
    b"i": "shape inference",
    b"s": "shape inference",
    b"p": "shape inference",
    b"b": "shape inference",
    b"n": "shape inference",
    b"c": "checker",
    b"f": "inliner",
    b"o": "inliner",
    b"v": "version converter",
}


def _call(kind: bytes, data: bytes) -> bytes:
    """What :func:`_ask` answers, computed in this process."""
    if kind in b"ispb":
        found = onnx.shape_inference.infer_shapes(
            data, strict_mode=kind in b"sb", data_prop=kind in b"pb"
        )
        return bytes(found.SerializeToString())
    if kind == b"n":
        return bytes(_infer_node_outputs(onnx.ModelProto.FromString(data)).SerializeToString())
    if kind == b"c":
        onnx.checker.check_model(data)
        return b""
    first = struct.unpack_from("<Q", data)[0] if kind in b"ov" else 0
    if kind == b"v":
        from onnx import version_converter  # slow to import, and rarely needed

        model = onnx.ModelProto.FromString(data[8:])
        return bytes(version_converter.convert_version(model, first).SerializeToString())
    from onnx import inliner

    if kind == b"f":
        model = onnx.ModelProto.FromString(data)
        return bytes(inliner.inline_local_functions(model).SerializeToString())
    names = data[8 : 8 + first].decode().split(" ")
    model = onnx.ModelProto.FromString(data[8 + first :])
    chosen = [("", name) for name in names]
    made = inliner.inline_selected_functions(
        model, chosen, exclude=False, inline_schema_functions=True
    )
    if any(node.op_type == "Constant" and not node.attribute for node in made.graph.node):
        # The inliner (onnx 1.23) leaves out attributes that have their default value.
        _state_defaults(model, names)
        made = inliner.inline_selected_functions(
            model, chosen, exclude=False, inline_schema_functions=True
        )
    return bytes(made.SerializeToString())


def _state_defaults(model: onnx.ModelProto, operators: list[str]) -> None:
    """Write down the default values of attributes that calls of ``operators`` leave out."""
    version = next((item.version for item in model.opset_import if is_standard(item.domain)), 1)
    for node in model.graph.node:
        if node.op_type in operators and is_standard(node.domain):
            given = {item.name for item in node.attribute}
            for name, formal in onnx.defs.get_schema(node.op_type, version).attributes.items():
                if name not in given and formal.default_value.type:
                    node.attribute.append(formal.default_value)


def _errors() -> dict[bytes, type[Exception]]:
    """What calls raise, by the letter that stands for it in an answer."""
    return {
        b"i": onnx.shape_inference.InferenceError,
        b"c": onnx.checker.ValidationError,
        b"m": MemoryError,
        b"v": ValueError,
        b"r": RuntimeError,
    }


# -- the child -------------------------------------------------------------------------------------


class _Child:
    """The process that makes the calls."""

    def __init__(self) -> None:
        asked, self.questions = os.pipe()
        self.answers, answered = os.pipe()
        try:
            with warnings.catch_warnings():
                # Of threads beside this one: the child only calls C++ and uses its pipes.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
        except OSError:
            for handle in (asked, answered, self.questions, self.answers):
                os.close(handle)
            raise
        if self.pid == 0:
            _serve(asked, answered)
        os.close(asked)
        os.close(answered)

    def ask(self, kind: bytes, data: bytes) -> tuple[bytes, bytes] | None:
        """The letter of the answer and the answer; None if the child died."""
        try:
            _send(self.questions, kind, data)
            return _receive(self.answers)
        except OSError:  # a broken pipe
            return None

    def end(self) -> int:
        """End the child; the status with which it ended."""
        os.close(self.questions)
        os.close(self.answers)
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)  # without effect on one that is dead already
        try:
            return os.waitpid(self.pid, 0)[1]
        except ChildProcessError:  # somebody else waits for all children of this process
            return 0


_lock = threading.Lock()
_child: _Child | None = None


def _forget() -> None:
    """After a fork: the child belongs to the process that made it."""
    global _child, _lock
    _child, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _ask(kind: bytes, data: bytes) -> bytes:
    """The answer of the child; its exceptions are raised here.

    Raises:
        ModelError: the child was ended by the call.
        RuntimeUnavailableError: the system does not let the child work.
    """
    global _child
    with _lock:
        if _child is None:
            try:
                _child = _Child()
            except OSError:  # no process or memory left
                return _call(kind, data)
        child = _child
        try:
            answer = child.ask(kind, data)
        except BaseException:  # interrupted between question and answer
            _child = None
            child.end()
            raise
        if answer is None:
            _child = None
            raise _died(_CALLS[kind], child.end())
    if answer[0] == _ANSWER:
        return answer[1]
    raise _errors()[answer[0]](answer[1].decode(errors="replace"))


def _died(what: str, status: int) -> ModelError | RuntimeUnavailableError:
    if status == 0:  # it never served: no more files may be open, or the like
        return RuntimeUnavailableError(
            f"the {what} of onnx cannot work: the system refuses its process files or memory",
            "ulimit -n and ulimit -v show the limits of this shell",
        )
    cause = f" of {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else ""
    return ModelError(
        f"the {what} of onnx {onnx.__version__} died{cause} on this model",
        "the model is damaged, or met a bug of onnx: export it again",
    )


def _serve(asked: int, answered: int) -> NoReturn:
    """In the child: answer until nobody asks any more. Nothing of the parent's is kept open."""
    try:
        # Not among the standard streams, which the parent may have closed.
        asked, answered = (fcntl.fcntl(pipe, fcntl.F_DUPFD, 3) for pipe in (asked, answered))
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # what an assertion prints is not for users
            os.dup2(quiet, stream)
        low, high = sorted((asked, answered))
        os.closerange(3, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while (question := _receive(asked)) is not None:
            try:
                _send(answered, _ANSWER, _call(*question))
            except Exception as error:  # the bindings raise exceptions of several types
                kinds = (tag for tag, kind in _errors().items() if isinstance(error, kind))
                _send(answered, next(kinds, b"r"), str(error).encode(errors="replace"))
    finally:
        os._exit(0)


def _send(pipe: int, kind: bytes, data: bytes) -> None:
    for part in (_HEADER.pack(kind, len(data)), data):
        view = memoryview(part)
        while view:
            view = view[os.write(pipe, view[:_PIECE]) :]


def _receive(pipe: int) -> tuple[bytes, bytes] | None:
    """One message; None at the end of the pipe."""
    header = _read(pipe, _HEADER.size)
    if header is None:
        return None
    kind, size = _HEADER.unpack(header)
    data = _read(pipe, size)
    return None if data is None else (kind, data)


def _read(pipe: int, size: int) -> bytes | None:
    pieces = []
    while size:
        piece = os.read(pipe, min(size, _PIECE))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
