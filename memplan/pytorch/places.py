"""Where in the user's code something happened: a file and a line, and a module of the model."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import memplan

_OURS = tuple(str(Path(str(package.__file__)).parent) for package in (torch, memplan))
_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_STACK = "nn_module_stack"


def called_from() -> str:
    """The line of the user's code that is being run, or nothing."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def defined_at(function: Any) -> str:
    """The line where a function begins, or nothing where it has none."""
    code = getattr(function, "__code__", None) or getattr(
        getattr(type(function), "__call__", None), "__code__", None
    )
    return place(code.co_filename, code.co_firstlineno) if code is not None else ""


def place(file: str, line: int) -> str:
    """``FILE:LINE``, with the path as short as it can be."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{_PACKAGES.sub('', path.as_posix())}:{line}"


def is_users(file: str) -> bool:
    """Whether a source file is neither PyTorch's nor memplan's nor Python's own."""
    if file.startswith(_OURS) or file.startswith("<"):
        return False
    return not file.startswith(_PYTHON) or _PACKAGES.match(file) is not None


def raised_in(error: BaseException, model: nn.Module | None = None) -> str:
    """What ran when an error was raised: the module and the line, as far as they are known.

    Taken from the frames of the traceback: the user's own; else those that work on a node of a
    graph, which tells both.
    """
    names = {id(module): name for name, module in model.named_modules()} if model else {}
    path = line = ""
    for each in _chain(error):
        for frame, number in _frames(each):
            if is_users(frame.f_code.co_filename):
                line = place(frame.f_code.co_filename, number)
            path = names.get(id(frame.f_locals.get("self")), "") or path
            for name in ("n", "node"):
                found = frame.f_locals.get(name)
                if isinstance(found, torch.fx.Node) and found.op == "call_function":
                    path, line = _of_node(found, path, line)
    return _joined(path, line)


def _chain(error: BaseException) -> list[BaseException]:
    """An error's causes, the first of them at the end."""
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) and cause not in found:
        found.append(cause)
    return found


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def of_node(node: torch.fx.Node) -> str:
    """The module and the line that a node of a traced graph was made in, as far as it tells."""
    return _joined(*_of_node(node, "", ""))


def _of_node(node: torch.fx.Node, path: str, line: str) -> tuple[str, str]:
    stack = node.meta.get(_STACK) or node.meta.get(f"fwd_{_STACK}") or {}
    inner = [name for name, _ in stack.values() if name]
    told = [
        (file, int(number))
        for file, number in _LINE.findall(node.meta.get("stack_trace") or "")
        if is_users(file)
    ]
    return (inner[-1] if inner else path), (place(*told[-1]) if told else line)


def _joined(path: str, line: str) -> str:
    path = path.removeprefix("model.").removeprefix("model")
    module = f"module '{path}'" if path else ""
    return ", ".join(part for part in (module, line) if part)
