"""Functions that draw random numbers, by the few sources that ONNX has: uniform and normal ones.

PyTorch's own decomposition of recurrent layers drops their dropout (2.13), and the operator
``Multinomial`` draws with replacement alone; both are written out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_dropout = functional.dropout
_multinomial = torch.multinomial
_normal = torch.normal


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """``torch.nn.functional.dropout``; ONNX has none that drops everything."""
    if not (training and p == 1):
        return _dropout(input, p, training, inplace)
    return input.mul_(0.0) if inplace else input * 0.0


def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """``torch.nn.functional.rrelu``: below zero, a slope that is drawn for every element."""
    if not training:
        return functional.leaky_relu(input, (lower + upper) / 2, inplace)
    slopes = torch.rand_like(input) * (upper - lower) + lower
    found = torch.where(input > 0, input, input * slopes)
    return input.copy_(found) if inplace else found


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Tensor:
    """``torch.multinomial``. Without replacement: the first that come of exponential times, whose
    rates are the weights, which is the same as drawing one after the other."""
    if replacement or num_samples == 1:
        return _multinomial(input, num_samples, replacement)
    speeds = input.detach() / -torch.log(torch.rand_like(input))
    return speeds.topk(num_samples, dim=-1).indices


def randperm(n: int, *, dtype: torch.dtype = torch.int64, device: Any = None, **_: Any) -> Tensor:
    """``torch.randperm``: the order of as many random numbers."""
    return torch.rand(n, device=device).argsort().to(dtype)


def randint_like(input: Tensor, *bounds: int, **options: Any) -> Tensor:
    """``torch.randint_like``."""
    bounds = (*bounds, *(options[name] for name in ("low", "high") if name in options))
    low, high = bounds if len(bounds) > 1 else (0, *bounds)
    kind = options.get("dtype") or input.dtype
    return torch.randint(low, high, input.shape, dtype=kind, device=input.device)


def normal(mean: Any, std: Any = 1.0, *size: Any, **options: Any) -> Tensor:
    """``torch.normal`` of tensors."""
    if not isinstance(mean, Tensor) and not isinstance(std, Tensor):
        return _normal(mean, std, *size, **options)
    like = mean + torch.zeros_like(std) if isinstance(std, Tensor) else mean
    return (mean + std * torch.randn_like(like)).detach()


def uniform_(input: Tensor, *bounds: float, **options: Any) -> Tensor:
    """``torch.Tensor.uniform_``."""
    low, high = (*bounds, *(0.0, 1.0)[len(bounds) :])
    low, high = options.get("from", low), options.get("to", high)
    with torch.no_grad():
        return input.copy_(torch.rand_like(input) * (high - low) + low)


def by_layer(function: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent function (``torch.lstm`` and its like), where it has a dropout between layers:
    one layer at a time."""

    def run(
        input: Tensor,
        hx: Any,
        params: Any,
        has_biases: Any,
        layers: Any,
        dropped: Any,
        train: Any,
        bidirectional: Any,
        *rest: Any,
    ) -> tuple[Tensor, ...]:
        packed = not isinstance(params, Sequence)
        if packed or not (train and dropped and layers > 1):
            given = (has_biases, layers, dropped, train, bidirectional, *rest)
            return tuple(function(input, hx, params, *given))
        batch_first = bool(rest[0])
        # As PyTorch does: what is dropped lies step by step, whatever the input does.
        input = input.transpose(0, 1) if batch_first else input
        states = hx if isinstance(hx, Sequence) else (hx,)
        each, ways = len(params) // layers, states[0].shape[0] // layers
        last: list[Sequence[Tensor]] = []
        for layer in range(layers):
            input = _dropout(input, dropped) if layer else input
            own = [state[layer * ways : (layer + 1) * ways] for state in states]
            input, *final = function(
                input,
                tuple(own) if isinstance(hx, Sequence) else own[0],
                params[layer * each : (layer + 1) * each],
                has_biases,
                1,
                0.0,
                train,
                bidirectional,
                False,
            )
            last.append(final)
        input = input.transpose(0, 1) if batch_first else input
        return (input, *(torch.cat(parts) for parts in zip(*last, strict=True)))

    return run


SPELLED: dict[Any, Callable[..., Any]] = {
    functional.dropout: dropout,
    functional.rrelu: rrelu,
}
"""Functions that PyTorch's own modules call by name."""
CALLED: dict[Any, Callable[..., Any]] = {
    torch.rrelu: rrelu,
    torch.multinomial: multinomial,
    Tensor.multinomial: multinomial,
    torch.randperm: randperm,
    torch.randint_like: randint_like,
    torch.normal: normal,
    Tensor.uniform_: uniform_,
    **{f: by_layer(f) for f in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)},
}
"""Functions that a step calls, or a module that it calls."""
