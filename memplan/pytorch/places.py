"""Where in the user's code something happened: a file and a line, and a module of the model."""

from __future__ import annotations

import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from memplan.pytorch.torch_internals import replaced

_OURS = (str(Path(str(torch.__file__)).parent), str(Path(__file__).parents[1]))
_COMMANDS = "/memplan_cli/"
_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_STACK = "nn_module_stack"
_WRITTEN: ContextVar[bool] = ContextVar("lines_written", default=False)


def called_from() -> str:
    """The line of the user's code that is being run, or nothing."""
    frame = _users_frame()
    return place(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""


def _users_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@contextmanager
def lines_told() -> Iterator[None]:
    """Inside, nodes that are traced tell every line of the user's code that led to them; torch
    keeps those of methods ``forward`` alone."""

    def users(_tracer: Any, stack: Any) -> traceback.StackSummary:
        return traceback.StackSummary.from_list([f for f in stack if is_users(f.filename)])

    with replaced("torch.fx.proxy.TracerBase._filter_traceback_frames", users):
        yield


@contextmanager
def lines_written() -> Iterator[None]:
    """Inside, captured graphs tell the line that made a node: of those that nobody is handed."""
    token = _WRITTEN.set(True)
    try:
        yield
    finally:
        _WRITTEN.reset(token)


def lines_of(program: Any) -> dict[str, str]:
    """The line of the user's code that made each node of a program, by the node's name, where
    captured graphs are to tell it."""
    if not _WRITTEN.get():
        return {}
    return {node.name: line for node in program.graph.nodes if (line := _line_of(node))}


def defined_at(function: Any) -> str:
    """The line where a function begins, or nothing where it has none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return place(code.co_filename, code.co_firstlineno) if code is not None else ""


def place(file: str, line: int) -> str:
    """``FILE:LINE``, with the path as short as it can be."""
    path = Path(file)
    with suppress(OSError, ValueError):  # the folder is gone, or another one
        path = path.relative_to(Path.cwd())
    return f"{_PACKAGES.sub('', path.as_posix())}:{line}"


@cache
def is_users(file: str) -> bool:
    """Whether a source file is neither PyTorch's nor memplan's nor Python's own."""
    if file.startswith((*_OURS, "<")) or _COMMANDS in file:
        return False
    return not file.startswith(_PYTHON) or _PACKAGES.match(file) is not None


def raised_in(error: BaseException, model: nn.Module | None = None) -> str:
    """What ran when an error was raised: the module and the line, as far as they are known.

    Taken from the frames of the traceback: the user's own; else those that work on a node of a
    graph, which tells both.
    """
    names = {id(module): name for name, module in model.named_modules()} if model else {}
    path = line = ""
    node: torch.fx.Node | None = None
    for frame, number in frames_of(error):
        given = frame.f_locals
        if is_users(frame.f_code.co_filename):
            line = place(frame.f_code.co_filename, number)
        path = names.get(id(given.get("self")), "") or path
        held = [given.get("n"), given.get("node")]
        node = next((n for n in held if isinstance(n, torch.fx.Node) and n.meta), node)
    if node is not None and not line:
        return of_node(node)
    return _joined(path, line)


def frames_of(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """What ran when an error and its causes were raised, and at which line: the outermost first of
    each, the first cause at the end."""
    seen: list[BaseException] = []
    raised: BaseException | None = error
    while raised is not None and raised not in seen:
        seen.append(raised)
        yield from traceback.walk_tb(raised.__traceback__)
        raised = raised.__cause__ or raised.__context__


def of_node(node: torch.fx.Node) -> str:
    """The module and the line that a node of a traced graph was made in, as far as it tells."""
    stack = node.meta.get(_STACK) or {}
    inner = [name for name, _ in stack.values() if name]
    return _joined(inner[-1] if inner else "", _line_of(node))


def _line_of(node: torch.fx.Node) -> str:
    told = [
        (file, int(number))
        for file, number in _LINE.findall(node.meta.get("stack_trace") or "")
        if is_users(file)
    ]
    return place(*told[-1]) if told else ""


def _joined(path: str, line: str) -> str:
    path = path.removeprefix("model").removeprefix(".")
    module = f"module '{path}'" if path else ""
    return ", ".join(part for part in (module, line) if part)
