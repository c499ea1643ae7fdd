"""How exporters name what belongs to an input: its gradient, and its value in the next step.

``X_grad``, ``X.grad`` (PyTorch, ONNX Runtime, memplan), ``adj_X`` (onnx-ad, CasADi) and ``grad_X``;
``X_new`` and its like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

NEW_SUFFIXES = ("_new", ".new", "_next", ".next", "_updated", ".updated")
_GRADIENT_SUFFIXES = ("_grad", ".grad")
_GRADIENT_PREFIXES = ("adj_", "grad_")
# Of ONNX Runtime's training artifacts: what is accumulated, and a flag.
_OTHER_SUFFIXES = ("_grad.accumulation.out", ".out")
_COUNTER = re.compile(r"(^|[._/])([a-z]+_)?(step|t|iteration|iter)$", re.IGNORECASE)
_RATE = re.compile(r"(^|[._/])(lr|learning_rate|eta)$", re.IGNORECASE)


def is_counter_name(name: str) -> bool:
    """Whether an input that is a number is named as the number of the step."""
    return _COUNTER.search(name) is not None


def is_rate_name(name: str) -> bool:
    """Whether an input that is a number is named as a learning rate."""
    return _RATE.search(name) is not None


def renewed_names(output: str) -> Iterator[str]:
    """Inputs that an output of this name would be the next value of."""
    yield from _without(output, NEW_SUFFIXES)


def differentiated_names(output: str) -> Iterator[str]:
    """Inputs that an output of this name would be the gradient of."""
    yield from _without(output, _GRADIENT_SUFFIXES)
    for prefix in _GRADIENT_PREFIXES:
        if output.startswith(prefix) and len(output) > len(prefix):
            yield output.removeprefix(prefix)


def owner_names(output: str) -> Iterator[str]:
    """Inputs that an output of this name would belong to, in whatever way."""
    yield from differentiated_names(output)
    yield from renewed_names(output)
    yield from _without(output, _OTHER_SUFFIXES)


def _without(name: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    for suffix in suffixes:
        if name.endswith(suffix) and len(name) > len(suffix):
            yield name.removesuffix(suffix)
