"""The one door to the parts of onnx that are C++: inference, checker, inliner, version converter.

They end the whole process on some files: an axis beyond 32 bits, a blank input, a negative size
before a Slice (onnx 1.23: segmentation faults and failed assertions), or take all memory there is:
functions that call each other twice, vectors that double. So they run in a child process under
limits of the kernel, and what the child dies of is a :class:`~memplan.errors.ModelError` here that
costs one model, not all of those that ``check`` looks at. Checks before the calls could only cover
what somebody has met.

The child is forked at the first call and serves all further ones: a fork per call costs 3 ms each,
and a graph with many bodies makes thousands; a fresh interpreter would take 200 ms. Where the
system refuses a fork, the calls are made in this process.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import NoReturn

import onnx
from google.protobuf.message import DecodeError

from memplan.errors import ModelError, RuntimeUnavailableError
from memplan.processes.deferred import signal_name
from memplan.proto.nodes import is_standard

_ROOM, _FACTOR = 256 << 20, 64
"""Bytes that a call may take: so many, and so many times those of the model."""
_SECONDS, _BYTES_PER_SECOND = 60, 1 << 20
"""Processor time that a call may take, and how much of a model gets a further second. Inference of
a graph with 100,000 nodes takes two."""
_PATIENCE = 5
"""How many times that is waited for an answer: a busy machine gives the child a part of its time,
and a lock that another thread held at the fork would never be free."""


def infer_shapes(
    model: onnx.ModelProto, *, strict: bool = False, propagate: bool = False
) -> onnx.ModelProto:
    """``onnx.shape_inference.infer_shapes``; by ``propagate`` with values.

    Raises:
        onnx.shape_inference.InferenceError: ``strict``, and shapes or element types do not fit.
        ModelError: it ended its process.
        RuntimeError, ValueError, MemoryError: it gives up.
    """
    return _ask("shape inference", _infer_shapes, model, strict, propagate)


def _infer_shapes(data: bytes, strict: bool, propagate: bool) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(
        data, check_type=strict, strict_mode=strict, data_prop=propagate
    )


def check_model(model: onnx.ModelProto) -> None:
    """``onnx.checker.check_model``.

    Raises:
        onnx.checker.ValidationError: the model is not valid.
        ModelError: the checker ended its process.
    """
    _ask("checker", _check_model, model)


def _check_model(data: bytes) -> onnx.ModelProto:
    onnx.checker.check_model(data)
    return onnx.ModelProto()


def inline_functions(model: onnx.ModelProto, operators: list[str] | None = None) -> onnx.ModelProto:
    """The model with its own functions inlined; or, of ONNX's function operators, ``operators``.

    Raises:
        ModelError: the inliner ended its process.
        MemoryError: what it makes is out of all proportion to the model.
        RuntimeError: it cannot inline them.
    """
    return _ask("inliner", _inline_functions, model, operators)


def _inline_functions(data: bytes, operators: list[str] | None) -> onnx.ModelProto:
    from onnx import inliner

    model = onnx.ModelProto.FromString(data)
    if operators is None:
        return inliner.inline_local_functions(model)
    chosen = [("", name) for name in operators]
    made = inliner.inline_selected_functions(
        model, chosen, exclude=False, inline_schema_functions=True
    )
    if any(node.op_type == "Constant" and not node.attribute for node in made.graph.node):
        # The inliner (onnx 1.23) leaves out attributes that have their default value.
        _state_defaults(model, operators)
        made = inliner.inline_selected_functions(
            model, chosen, exclude=False, inline_schema_functions=True
        )
    return made


def _state_defaults(model: onnx.ModelProto, operators: list[str]) -> None:
    """Write down the default values of attributes that calls of ``operators`` leave out."""
    version = next((item.version for item in model.opset_import if is_standard(item.domain)), 1)
    for node in model.graph.node:
        if node.op_type in operators and is_standard(node.domain):
            given = {item.name for item in node.attribute}
            for name, formal in onnx.defs.get_schema(node.op_type, version).attributes.items():
                if name not in given and formal.default_value.type:
                    node.attribute.append(formal.default_value)


def convert_version(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """``onnx.version_converter.convert_version``.

    Raises:
        ModelError: the converter ended its process.
        RuntimeError: it cannot convert the model.
    """
    return _ask("version converter", _convert_version, model, version)


def _convert_version(data: bytes, version: int) -> onnx.ModelProto:
    from onnx import version_converter  # slow to import, and rarely needed

    return version_converter.convert_version(onnx.ModelProto.FromString(data), version)


_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        MemoryError,
        ValueError,
        RuntimeError,
    )
}
"""What the bindings raise, by name: an answer carries it as text."""
_Call = Callable[..., onnx.ModelProto]


# -- the child -------------------------------------------------------------------------------------


class _Child:
    """The process that makes the calls; ``pipe`` takes a function of this module with its arguments
    and gives the bytes of its result, or the name of an error and its text."""

    def __init__(self) -> None:
        self.pipe, other = Pipe()
        try:
            with warnings.catch_warnings():
                # Of threads beside this one: the child only calls C++ and uses its pipe.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
        except OSError:
            self.pipe.close()
            other.close()
            raise
        if self.pid == 0:
            _serve(other)
        other.close()

    def end(self) -> int:
        """End the child; the status with which it ended."""
        self.pipe.close()
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


def _ask(what: str, call: _Call, model: onnx.ModelProto, *options: object) -> onnx.ModelProto:
    """What a function of this module gives for ``model``, from the child; its exceptions are raised
    here.

    Raises:
        ModelError: the child was ended by the call, or has no answer in time.
        RuntimeUnavailableError: the system does not let the child work.
    """
    global _child
    data = model.SerializeToString()
    seconds = _SECONDS + len(data) // _BYTES_PER_SECOND
    with _lock:
        try:
            child = _child = _child or _Child()
        except OSError:  # no process or memory left
            return _directly(what, call, model, *options)
        try:
            child.pipe.send((call, data, options, seconds))
            answered = child.pipe.poll(_PATIENCE * seconds)
            error, answer = child.pipe.recv() if answered else ("", b"")
        except (EOFError, OSError):  # a broken pipe
            _child = None
            raise _died(what, child.end()) from None
        except BaseException:  # interrupted between question and answer
            _child = None
            child.end()
            raise
        if not answered:
            _child = None
            child.end()
            raise ModelError(
                f"the {what} of onnx {onnx.__version__} gives no answer on this model",
                "try again; a machine under load may need longer",
            )
    if error:
        raise _ERRORS[error](answer.decode())
    found = onnx.ModelProto()
    try:
        found.ParseFromString(answer)
    except DecodeError:
        raise ModelError(
            "the graph nests its bodies deeper than protobuf reads",
            "the file is damaged or was made to be hard to read",
        ) from None
    return found


def _directly(what: str, call: _Call, model: onnx.ModelProto, *options: object) -> onnx.ModelProto:
    """The same in this process."""
    return call(model.SerializeToString(), *options)


def _died(what: str, status: int) -> ModelError | RuntimeUnavailableError:
    if status == 0:  # it never served: no more files may be open, or the like
        return RuntimeUnavailableError(
            f"the {what} of onnx cannot work: the system refuses its process files or memory",
            "ulimit -n and ulimit -v show the limits of this shell",
        )
    cause = f" of {signal_name(os.WTERMSIG(status))}" if os.WIFSIGNALED(status) else ""
    return ModelError(
        f"the {what} of onnx {onnx.__version__} died{cause} on this model",
        "the model is damaged, or met a bug of onnx: export it again",
    )


def _serve(pipe: Connection) -> NoReturn:
    """In the child: answer until nobody asks any more. Nothing of the parent's is kept open."""
    status = 0
    try:
        handle = os.dup2(pipe.fileno(), 3)  # not among the standard streams
        os.closerange(handle + 1, os.sysconf("SC_OPEN_MAX"))
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # what an assertion prints is not for users
            os.dup2(quiet, stream)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        asked = Connection(handle)
        while True:
            call, data, options, seconds = asked.recv()
            status = 1
            _limit(len(data), seconds)
            answer = _answer(call, data, options)
            _set(resource.RLIMIT_AS, resource.RLIM_INFINITY)  # the next question may be larger
            asked.send(answer)
    finally:  # EOFError: the parent is gone
        os._exit(status)


def _answer(call: _Call, data: bytes, options: tuple[object, ...]) -> tuple[str, bytes]:
    try:
        return "", call(data, *options).SerializeToString()
    except Exception as error:  # the bindings raise exceptions of several types
        names = (name for name, kind in _ERRORS.items() if isinstance(error, kind))
        return next(names, "RuntimeError"), str(error).encode(errors="replace")


def _limit(nbytes: int, seconds: int) -> None:
    """Limit what the next call takes, beyond what the process has taken so far."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    _set(resource.RLIMIT_CPU, int(spent.ru_utime + spent.ru_stime) + seconds)
    with contextlib.suppress(OSError):  # Linux alone says what is taken, and keeps to the limit
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
        _set(resource.RLIMIT_AS, pages * resource.getpagesize() + _ROOM + _FACTOR * nbytes)


def _set(kind: int, most: int) -> None:
    """Set a soft limit, as far as the hard one allows."""
    hard = resource.getrlimit(kind)[1]
    unlimited = resource.RLIM_INFINITY
    wanted = {most, hard} - {unlimited}
    resource.setrlimit(kind, (min(wanted, default=unlimited), hard))
