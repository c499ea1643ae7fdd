"""Moving averages of the weights, as state of a captured step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from memplan.errors import UsageError
from memplan.ir.roles import averaged_by
from memplan.pytorch.prepared_step import PreparedStep, first_names, user_name
from memplan.pytorch.torch_step import Ema, TorchStep


@dataclass(frozen=True, slots=True)
class Averages:
    """Which tensors of a step are averages of others.

    ``sources`` maps them to the parameters that they follow; None: every trained parameter ``X``
    has an average ``X.ema``.
    """

    decay: float
    sources: Mapping[str, str] | None = None

    def followed(self, name: str) -> str:
        """What an average follows."""
        return str(averaged_by(name) if self.sources is None else self.sources[name])


def read_averages(
    step: TorchStep, prepared: PreparedStep, trained: Collection[str]
) -> Averages | None:
    """Read a step's averages, under the names of the graph.

    Args:
        step: the step.
        prepared: its model.
        trained: the parameters that are trained.

    Raises:
        UsageError: there is no optimizer, the decay is no share, a module or its parameter is not
            there, or what is to be an average is trained.
    """
    if step.ema is None:
        return None
    ema = step.ema if isinstance(step.ema, Ema) else Ema(step.ema)
    decay = _decay(ema.decay)
    if step.optimizer is None:
        raise UsageError(
            "the step has an average of its weights and no optimizer that renews them",
            "give the optimizer, too; or leave ema out",
        )
    if ema.modules is None:
        return Averages(decay)
    names = {user_name(n): user_name(first) for n, first in first_names(prepared.module).items()}
    parameters = dict(prepared.parameters())
    sources = dict(_pairs(ema.modules, names, parameters))
    for target in sources:
        if target in trained:
            raise UsageError(
                f"'{target}' is to be an average, and the optimizer trains it, too",
                "requires_grad_(False) on it, and leave it out of the optimizer",
            )
    return Averages(decay, sources)


def _pairs(
    modules: Mapping[str, str], names: Mapping[str, str], held: Mapping[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """The tensors of modules, and those of the same names in the modules that they follow."""
    for target, source in modules.items():
        found = [n for n in names if n == target or n.startswith(f"{target}.")]
        if not found:
            raise UsageError(f"ema: the model has no module '{target}'", "names are module paths")
        for name in found:
            if names[name] not in held:
                continue
            other = source + name[len(target) :]
            follows = held.get(names.get(other, ""))
            if follows is None:
                raise UsageError(
                    f"ema: '{name}' has no counterpart '{other}'",
                    f"'{target}' and '{source}' are to be alike",
                )
            if follows.shape != held[names[name]].shape:
                raise UsageError(f"ema: '{name}' and '{other}' differ in shape")
            if names[name] != names[other]:
                yield names[name], names[other]


def _decay(given: Any) -> float:
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError(f"ema: the decay is {given!r}, not a number from 0 to 1", "0.999 is usual")
    return number
