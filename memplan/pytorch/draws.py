"""What PyTorch leaves open in a step: random numbers, and which of equal elements is taken.

Every random operator of ATen that is met draws from the list of :class:`Draws` instead of from
PyTorch's generator. Draw k of a step is an array of uniform or of normal numbers that depends on
the round, on k and on its shape alone, so that whoever knows these has the same numbers. Uniform
ones are odd multiples of 1/1024: float16 holds them, and none is as near to a threshold as rounding
could matter (``u > p`` and ``1 - u < 1 - p`` are the same).

Of equal elements, ``topk`` and its like take those with the lowest indices, as ONNX does: PyTorch
does not specify it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from memplan.proto.fed_draws import NORMAL, UNIFORM
from memplan.pytorch.torch_internals import internal

_STEPS = 512
_Given = Mapping[str, Any]
_Mode: Any = internal("torch.utils._python_dispatch.TorchDispatchMode")


@dataclass(frozen=True, slots=True)
class TorchDraw:
    """One draw: ``family`` is ``uniform`` (in [0, 1)) or ``normal`` (standard), ``operator`` what
    PyTorch called for it."""

    family: str
    shape: tuple[int, ...]
    operator: str
    seed: tuple[int, int]

    def values(self) -> npt.NDArray[np.float32]:
        """The numbers."""
        generator = np.random.default_rng(self.seed)
        if self.family == NORMAL:
            return generator.standard_normal(self.shape, np.float32)
        steps = generator.integers(0, _STEPS, self.shape)
        return ((steps + 0.5) / _STEPS).astype(np.float32)


class Draws(_Mode):
    """Inside, random operators take their numbers from here.

    ``made`` are the draws in the order in which they were asked for, ``unknown`` the random
    operators that have no form here and draw from PyTorch's generator, ``ties`` the operators that
    were given another of equal elements than PyTorch chooses. Every draw moves that
    generator on; where somebody has turned it back, as ``torch.utils.checkpoint`` does to run
    something again, what was drawn then is drawn again.
    """

    supports_higher_order_operators = True

    def __init__(self, number: int = 0) -> None:
        """Begin a step; ``number`` tells its draws from those of other steps."""
        super().__init__()
        self.number = number
        self.made: list[TorchDraw] = []
        self._drawn_at: dict[bytes, TorchDraw] = {}
        self.unknown: list[str] = []
        self.ties: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See the class."""
        given = dict(kwargs or {})
        if func in _FIRST and args[0].dim():
            return self._first(func, *args, **given)
        tags = getattr(func, "tags", ())  # operators of higher order, as cond, have none
        named = _named(func, args, given) if torch.Tag.nondeterministic_seeded in tags else None
        if named is None or _draws_nothing(named):
            return func(*args, **given)
        name = func.overloadpacket.__name__
        found = self._computed(name, named)
        if found is None:
            self.unknown.append(name)
            return func(*args, **given)
        return args[0].copy_(found) if name.endswith("_") else found

    def _computed(self, name: str, given: _Given) -> Any:
        """What an operator makes of the next draw; None where that is not known."""
        kind = _WHERE.sub("", name)
        rule = _RULES.get(_ALSO.get(kind, kind))
        if rule is None or (kind == "random" and given.get("to") is None):
            return None
        family, formula = rule
        given_tensors = (given.get(key) for key in ("self", "input", "mean", "std"))
        tensors = [each for each in given_tensors if isinstance(each, Tensor)]
        if not tensors:
            usual = torch.int64 if formula is _integers else torch.get_default_dtype()
            made = formula(self.draw(family, name, given["size"]), given)
            return made.to(device=given["device"], dtype=given["dtype"] or usual)
        like, shape = tensors[0], torch.broadcast_shapes(*(each.shape for each in tensors))
        found = formula(self.draw(family, name, shape, like), given)
        return found if isinstance(found, tuple) else found.to(given["dtype"] or like.dtype)

    def _first(self, func: Any, *args: Any, **given: Any) -> Any:
        """The values and indices that an operator gives, with the lowest index of equals."""
        own, chosen = func(*args, **given), _FIRST[func](*args, **given)
        if torch.equal(own[1], chosen[1]) or not torch.equal(own[0], chosen[0]):
            return own
        self.ties.add(func.overloadpacket.__name__)
        return chosen

    def draw(
        self, family: str, operator: str, shape: Sequence[int], like: Tensor | None = None
    ) -> Tensor:
        """The next numbers of a family, in the type of ``like``."""
        at = torch.get_rng_state().numpy().tobytes()
        size = tuple(int(n) for n in shape)
        draw = self._drawn_at.get(at)
        if draw is None or (draw.family, draw.shape) != (family, size):
            draw = TorchDraw(family, size, operator, (self.number, len(self.made)))
            self.made.append(draw)
            self._drawn_at[at] = draw
        torch.rand(1, device="cpu")
        found = torch.from_numpy(np.asarray(draw.values()))
        if like is None:
            return found
        dtype = like.dtype if like.is_floating_point() else found.dtype
        return found.to(device=like.device, dtype=dtype)


def _named(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """What an operator is given, by the names in its schema, defaults included; that of a type is a
    number of PyTorch's own, and left open."""
    found = {
        each.name: args[k] if k < len(args) else options.get(each.name, each.default_value)
        for k, each in enumerate(func._schema.arguments)
    }
    return {**found, "dtype": options.get("dtype")}


def _draws_nothing(given: _Given) -> bool:
    """Whether a call of an operator that may draw does not: a dropout of nothing or outside of
    training, by itself or in a kernel of attention or recurrent layers."""
    train = given.get("train", given.get("training"))
    share = given.get("p") if "train" in given else None
    return train is False or given.get("dropout_p", given.get("dropout", share)) == 0.0


def _bernoulli(drawn: Tensor, given: _Given) -> Tensor:
    return drawn > 1 - given.get("p", given["self"])


def _uniform(drawn: Tensor, given: _Given) -> Tensor:
    return drawn * (given["to"] - given["from"]) + given["from"]


def _normal(drawn: Tensor, given: _Given) -> Tensor:
    return drawn * given["std"] + given["mean"]


def _exponential(drawn: Tensor, given: _Given) -> Tensor:
    # As the reference of torch.exponential has it, which the graph is made of.
    return -torch.log(drawn) / given["lambd"]


def _dropout(drawn: Tensor, given: _Given) -> tuple[Tensor, Tensor]:
    x, p = given["input"], given["p"]
    kept = drawn > p
    return kept * x * (1.0 / (1.0 - p) if p < 1 else 0.0), kept


def _integers(drawn: Tensor, given: _Given) -> Tensor:
    low, high = given.get("low", given.get("from")) or 0, given.get("high", given.get("to"))
    return torch.floor(drawn.to(torch.float64) * (high - low) + low)


def _same(drawn: Tensor, given: _Given) -> Tensor:
    return drawn


_RULES: dict[str, tuple[str, Callable[[Tensor, _Given], Any]]] = {
    "bernoulli": (UNIFORM, _bernoulli),
    "exponential": (UNIFORM, _exponential),
    "native_dropout": (UNIFORM, _dropout),
    "normal": (NORMAL, _normal),
    "rand": (UNIFORM, _same),
    "randint": (UNIFORM, _integers),
    "randn": (NORMAL, _same),
    "uniform": (UNIFORM, _uniform),
}
"""What random operators draw and make of it, by the name of the operator without what says where
the result goes."""
_WHERE = re.compile("_like$|_functional$|_$")
_ALSO = {"random": "randint"}
"""Other names of theirs."""


def _sorted(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def _top(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return tuple(each.narrow(dim, 0, k) for each in _sorted(x, dim, largest))


def _middle(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    picked = (each.narrow(dim, (x.shape[dim] - 1) // 2, 1) for each in _sorted(x, dim))
    return tuple(each if keepdim else each.squeeze(dim) for each in picked)


_FIRST: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.topk.default: _top,
    torch.ops.aten.median.dim: _middle,
    torch.ops.aten.sort.default: _sorted,
}
"""Operators that choose among equal elements, taking the lowest indices."""
