"""Exponential moving averages that follow parameters: state of the graph, renewed behind the
update, as ``torch.optim.swa_utils.get_ema_multi_avg_fn`` does it.

``average + (1 - decay) · (weight - average)``: the next value is made by arithmetic on the old one,
index by index. 1 - decay is taken in float64, as float32 has three digits of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.operations import Operations
from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.optimizer import DOUBLE, UpdateInputs, update_scope
from memplan.ir.roles import EMA_DECAY, average_of


@dataclass(frozen=True, slots=True)
class Following:
    """What follows the parameters of a graph.

    ``sources`` maps tensors of the graph to the parameters whose averages they are; None: every
    parameter that is updated has one, which is a new input.
    """

    decay: float
    sources: Mapping[str, str] | None = None

    def names(self, updated: Iterable[str]) -> tuple[str, ...]:
        """The inputs that it renews."""
        return tuple(map(average_of, updated) if self.sources is None else self.sources)

    def next_values(
        self, emitter: Emitter, inputs: UpdateInputs, latest: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Their next values, by name.

        Args:
            emitter: gets the nodes.
            inputs: those of the update; grows by the decay.
            latest: the new values of parameters, as the step leaves them.
        """
        decay = inputs.number(emitter, EMA_DECAY, self.decay, DOUBLE)
        sources = self.sources
        if sources is None:
            sources = {average_of(name): name for name in latest}
        found: dict[str, Value] = {}
        for name, source in sources.items():
            with emitter.scope(update_scope(name)):
                new = latest[source] if source in latest else emitter.tensor(source)
                known = name in emitter.types
                old = emitter.tensor(name) if known else emitter.input(name, new.type)
                apart = new - old
                found[name] = old + apart * Operations(emitter).cast(1 - decay, new.dtype)
        return found
