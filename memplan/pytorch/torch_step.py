"""What is to be captured: a model, its loss, a batch, an optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memplan.errors import UsageError

_FIELDS = (
    *("model", "loss", "batch", "optimizer", "dynamic"),
    *("scaler", "clip_norm", "clip_value"),
    *("frozen", "ema"),
)
FROZEN = ("constants", "inputs")
_RETURNS = "return memplan.TorchStep(model, loss, batch, optimizer), or such a tuple or dict"


@dataclass(frozen=True, slots=True)
class Ema:
    """Exponential moving averages of weights, renewed behind every update:
    ``average + (1 - decay) · (weight - average)``.

    Attributes:
        decay: the share that an average keeps; the default of the input ``ema_decay``.
        modules: which modules of the model are averages of which, as in
            ``{"teacher": "student"}``; None: every trained parameter ``X`` has an average ``X.ema``
            beside the model, which begins at X. Buffers of such modules are as the forward pass
            leaves them.
    """

    decay: float
    modules: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TorchStep:
    """A training step of PyTorch.

    Attributes:
        model: a ``torch.nn.Module``, in the mode in which it is to be trained.
        loss: a function that is called as ``loss(model, *batch)``, or as
            ``loss(model, **batch)`` where the batch is a dictionary, or as ``loss(model, batch)``
            where it takes one thing beside the model that is none of the batch; returns a scalar
            tensor, or something with a field ``loss``. A
            ``torch.nn`` loss, or a function of ``torch.nn.functional``, is called as
            ``loss(model(*batch[:-1]), batch[-1])``. None: the model itself returns the loss, or
            something with a field ``loss``. Metrics may stand beside the loss: a tuple of it and a
            dictionary of tensors, or a mapping with ``loss`` and ``metrics``.
        batch: example tensors: one, a sequence, or a dictionary of names. The names become those of
            the graph's inputs; in a sequence they are those of the function's parameters.
        optimizer: a ``torch.optim`` instance, or a list of them, of which each updates parameters
            of its own; None: the gradients are outputs.
        dynamic: sizes that may change from run to run: a name for the first axis of every tensor of
            the batch, or axes and names by input, as in ``{"tokens": {0: "batch", 1: "length"}}``.
        scaler: a ``torch.amp.GradScaler``: the graph scales the loss as it does, and goes on from
            its present scale. None, or one that is not enabled: the loss is not scaled. Without
            PyTorch's, ``"dynamic{init_scale=1024}"`` or a number that stays.
        clip_norm: the norm of all gradients together is at most this, as by
            ``torch.nn.utils.clip_grad_norm_`` (behind ``scaler.unscale_``).
        clip_value: every element of every gradient is at most this, either way
            (``clip_grad_value_``).
        frozen: ``constants``: parameters that the step does not train are constants of the graph;
            ``inputs``: they, and floating-point buffers of the state dict that nothing renews, are
            inputs with a default, which may change between steps.
        ema: moving averages of the weights: a decay, or an :class:`Ema`.
    """

    model: Any
    loss: Callable[..., Any] | None
    batch: Any
    optimizer: Any = None
    dynamic: str | Mapping[str, Mapping[int, str]] | None = None
    scaler: Any = None
    clip_norm: float | None = None
    clip_value: float | None = None
    frozen: str = "constants"
    ema: float | Ema | None = None


def as_step(given: object) -> TorchStep:
    """What a user's function returned, as a step.

    Raises:
        UsageError: it is none of what is documented.
    """
    if isinstance(given, TorchStep):
        return given
    if isinstance(given, Mapping):
        unknown = [str(key) for key in given if key not in _FIELDS]
        if unknown or "model" not in given or "batch" not in given:
            wrong = f"an unknown key '{unknown[0]}'" if unknown else "no 'model' or no 'batch'"
            raise UsageError(
                f"the dictionary has {wrong}", f"keys are {', '.join(_FIELDS)}; {_RETURNS}"
            )
        return TorchStep(**{"loss": None, **given})
    if isinstance(given, Sequence) and 3 <= len(given) <= len(_FIELDS):
        return TorchStep(*given)
    what = type(given).__name__
    if isinstance(given, Sequence):
        what += f" of {len(given)}"
    raise UsageError(f"{what} is not a training step", _RETURNS)


def takes_whole(function: Callable[..., Any], batch: Any) -> bool:
    """Whether a loss function takes the batch as the one thing that it is: it has a parameter for
    it, and no other, and the batch has no tensor of that name."""
    try:
        rest = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        return False
    needed = [item for item in rest if item.default is item.empty]
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if len(needed) != 1 or any(item.kind in many for item in rest):
        return False
    if isinstance(batch, Mapping):
        return needed[0].name not in batch
    return isinstance(batch, Sequence) and len(batch) != 1 and len(rest) < len(batch)


def parameter_names(function: Callable[..., Any], skip: int) -> tuple[str, ...]:
    """The names of a function's positional parameters, without the first ``skip``."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(item.name for item in found if item.kind in kinds)[skip:]
