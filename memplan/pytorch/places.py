"""Where in the user's code something stands, as torch's programs tell it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from memplan.pytorch.trace import user_name

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parents[1])


def place_of(program: Any, name: str) -> str:
    """The module and the line that read a parameter or buffer first; empty if that is not known."""
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(inputs, program.graph_signature.input_specs, strict=False):
        if user_name(str(spec.target)) == name:
            return next((text for user in node.users if (text := _place(user))), "")
    return ""


def line_of(trace: str) -> str:
    """The innermost line of a stack trace that is the user's: ``FILE:LINE``."""
    frames = _FRAME.findall(trace)
    own = [(file, line) for file, line in frames if not file.startswith((_TORCH, _OWN))]
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else ""


def module_of(stack: Any) -> str:
    """The innermost module of a stack of modules: its path and class."""
    if not stack:
        return ""
    path, kind = list(stack.values())[-1]
    name = user_name(str(path))
    kind = str(kind).rsplit(".", 1)[-1]
    return f"{name} ({kind})" if name and name != "model" else kind


def _place(node: Any) -> str:
    module = module_of(node.meta.get("nn_module_stack"))
    line = line_of(node.meta.get("stack_trace") or "")
    return ", ".join(text for text in (module, line) if text)
