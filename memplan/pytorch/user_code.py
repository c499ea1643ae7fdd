"""Which code is the user's, and which names it reads: what a walk through its state may enter."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_LIBRARIES = frozenset({"torch", "numpy", "memplan", "onnx", "onnxruntime", "builtins"})
_ENTERED = (
    *("torch.nn", "torch.optim", "torch.amp", "torch.cuda.amp", "torch.distributions"),
    *("types.SimpleNamespace", "argparse.Namespace", "collections.", "functools.", "weakref.Weak"),
    *("torch.utils.hooks", "dataclasses.", "builtins."),
)
"""Classes of libraries whose objects may hold what a step changes."""


@cache
def is_own_module(name: str) -> bool:
    """Whether a module was written by the user: neither Python's own nor a package installed."""
    root = name.partition(".")[0]
    if root in _LIBRARIES or root in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return not (isinstance(file, str) and _PACKAGES.match(file))


def module_of(kind: type) -> str:
    """The module of a class, by name."""
    name = kind.__module__
    return name if type(name) is str else ""


def is_entered(kind: type) -> bool:
    """Whether the attributes of objects of a class are looked at."""
    name = module_of(kind)
    root = name.partition(".")[0]
    if root not in _LIBRARIES and root not in sys.stdlib_module_names:
        return True
    return f"{name}.{kind.__qualname__}".startswith(_ENTERED)


def names_in(code: CodeType) -> frozenset[str]:
    """All names of globals and attributes that a function, or one inside of it, reads or writes."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if type(constant) is CodeType:
            found |= names_in(constant)
    return frozenset(found)


def attributes_of(held: Any) -> dict[str, Any] | None:
    """The dictionary of an object's attributes, read without code of its class; None without."""
    for kind in type(held).__mro__:
        found = vars(kind).get("__dict__")
        if found is not None:
            own = found.__get__(held) if type(found) is GetSetDescriptorType else None
            return own if type(own) is dict else None
    return None


def slots_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The attributes that objects of a class have in slots: name and descriptor."""
    for each in kind.__mro__:
        for name, found in vars(each).items():
            if type(found) is MemberDescriptorType and each.__module__ not in _LIBRARIES:
                yield name, found
