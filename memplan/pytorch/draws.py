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
        if torch.Tag.nondeterministic_seeded not in tags or _draws_nothing(func, args, given):
            return func(*args, **given)
        name = func.overloadpacket.__name__
        rule = _RULES.get(name)
        if rule is None:
            self.unknown.append(name)
            return func(*args, **given)
        return rule(self, name, *args, **given)

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


def _draws_nothing(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a call of an operator that may draw does not: a dropout of nothing or outside of
    training, by itself or in a kernel of attention or recurrent layers."""
    given = {
        each.name: args[k] if k < len(args) else options.get(each.name, each.default_value)
        for k, each in enumerate(func._schema.arguments)
    }
    train = given.get("train", given.get("training"))
    share = given.get("p") if "train" in given else None
    return train is False or given.get("dropout_p", given.get("dropout", share)) == 0.0


def _kind(values: Tensor, options: Mapping[str, Any]) -> Tensor:
    """A made tensor in the type and on the device that were asked for."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    return values.to(device=options.get("device"), dtype=dtype)


def _bernoulli(mode: Draws, name: str, x: Tensor, p: Any = None, **_: Any) -> Tensor:
    return (mode.draw(UNIFORM, name, x.shape, x) > 1 - (x if p is None else p)).to(x.dtype)


def _uniform(
    mode: Draws, name: str, x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any
) -> Tensor:
    return mode.draw(UNIFORM, name, x.shape, x) * (high - low) + low


def _normal_functional(
    mode: Draws, name: str, x: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any
) -> Tensor:
    return mode.draw(NORMAL, name, x.shape, x) * std + mean


def _normal(mode: Draws, name: str, mean: Any, std: Any = 1.0, *size: Any, **options: Any) -> Any:
    given = [value for value in (mean, std) if isinstance(value, Tensor)]
    if not given:
        return _kind(mode.draw(NORMAL, name, size[0]) * std + mean, options)
    shape = torch.broadcast_shapes(*(value.shape for value in given))
    return mode.draw(NORMAL, name, shape, given[0]) * std + mean


def _exponential(mode: Draws, name: str, x: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    # As the reference of torch.exponential has it, which the graph is made of.
    return -torch.log(mode.draw(UNIFORM, name, x.shape, x)) / rate


def _new(family: str) -> Callable[..., Tensor]:
    """A tensor of a given size."""

    def rule(mode: Draws, name: str, size: Sequence[int], *_a: Any, **options: Any) -> Tensor:
        return _kind(mode.draw(family, name, size), options)

    return rule


def _like(family: str) -> Callable[..., Tensor]:
    """A tensor like another."""

    def rule(mode: Draws, name: str, x: Tensor, *_a: Any, **options: Any) -> Tensor:
        return mode.draw(family, name, x.shape, x).to(options.get("dtype") or x.dtype)

    return rule


def _in_place(made: Callable[..., Tensor], *usual: float) -> Callable[..., Tensor]:
    """What a rule makes, written over its first argument; ``usual`` are the others' defaults."""

    def rule(mode: Draws, name: str, x: Tensor, *given: Any, **options: Any) -> Tensor:
        others = given if given or options else usual
        return x.copy_(made(mode, name, x, *others, **options))

    return rule


def _native_dropout(mode: Draws, name: str, x: Tensor, p: float, train: bool = True) -> Any:
    kept = mode.draw(UNIFORM, name, x.shape, x) > p
    return kept * x * (1.0 / (1.0 - p) if p < 1 else 0.0), kept


def _whole(mode: Draws, name: str, shape: Sequence[int], low: int, high: int) -> Tensor:
    wide = mode.draw(UNIFORM, name, shape).to(torch.float64)
    return torch.floor(wide * (high - low) + low)


def _randint(mode: Draws, name: str, *given: Any, **options: Any) -> Tensor:
    low, high, size = given if len(given) == 3 else (0, *given)
    return _kind(_whole(mode, name, size, low, high), {"dtype": torch.int64, **options})


def _randint_like(mode: Draws, name: str, x: Tensor, *bounds: int, **options: Any) -> Tensor:
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    found = _whole(mode, name, x.shape, low, high)
    return found.to(device=x.device, dtype=options.get("dtype") or x.dtype)


_RULES: dict[str, Callable[..., Any]] = {
    "bernoulli": _bernoulli,
    "bernoulli_": _in_place(_bernoulli, 0.5),
    "rand": _new(UNIFORM),
    "rand_like": _like(UNIFORM),
    "uniform": _uniform,
    "uniform_": _in_place(_uniform),
    "randn": _new(NORMAL),
    "randn_like": _like(NORMAL),
    "normal": _normal,
    "normal_": _in_place(_normal_functional),
    "normal_functional": _normal_functional,
    "native_dropout": _native_dropout,
    "exponential_": _in_place(_exponential),
    "randint": _randint,
    "randint_like": _randint_like,
    "random_": _in_place(_randint_like),
}
"""What random operators compute from their draws, by the name of the operator."""


def _sorted(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def _top(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return tuple(each.narrow(dim, 0, k) for each in _sorted(x, dim, largest))


def _kth(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    picked = (each.narrow(dim, k - 1, 1) for each in _sorted(x, dim))
    return tuple(each if keepdim else each.squeeze(dim) for each in picked)


def _middle(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _kth(x, (x.shape[dim] + 1) // 2, dim, keepdim)


_FIRST: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.topk.default: _top,
    torch.ops.aten.kthvalue.default: _kth,
    torch.ops.aten.median.dim: _middle,
    torch.ops.aten.sort.default: _sorted,
}
"""Operators that choose among equal elements, taking the lowest indices."""
