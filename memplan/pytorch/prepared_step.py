"""A step whose parts were checked, and the module that computes its loss from a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

from memplan.errors import UsageError
from memplan.pytorch.custom_backward import current_recorder
from memplan.pytorch.torch_defaults import defaults, defaults_now
from memplan.pytorch.torch_step import TorchStep, parameter_names, takes_whole
from memplan.pytorch.traced_calls import traced_calls

MODEL = "model"
"""The name of the user's model inside :class:`StepModule`, with which torch's names begin."""
ASSIGNED = "assigned/"
"""What the names of buffers begin with that stand beside the loss."""
_Call = Callable[[dict[str, Tensor]], Any]
"""Of a batch's tensors by name, in their order."""


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step whose parts were checked.

    ``batch`` are tensors by the names of the graph's inputs. ``module`` computes the loss from
    them.
    """

    step: TorchStep
    module: StepModule
    batch: Mapping[str, Tensor]
    dynamic: Mapping[str, Mapping[int, str]]

    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters, each under the first of its names, as the user calls them."""
        return {user_name(name): p for name, p in self.module.named_parameters()}


class StepModule(nn.Module):
    """Batch in, loss out; or a tuple of the loss and metrics by name, if there are any. Buffers to
    which a step that is traced assigns new tensors stand beside these (:data:`ASSIGNED`)."""

    def __init__(self, model: nn.Module, call: _Call, criterion: Any) -> None:
        super().__init__()
        self.model = model
        if isinstance(criterion, nn.Module):
            self.loss = criterion
        self.call = call
        self.defaults = defaults_now()

    def forward(self, batch: dict[str, Tensor]) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """The loss as a scalar."""
        before = dict(self.named_buffers(remove_duplicate=False))
        with traced_calls() as traced, defaults(self.defaults):
            if (recorder := current_recorder()) is not None:
                recorder.begin(self)
            result = self.call(dict(batch))
            loss, metrics = loss_of(result), metrics_of(result)
        if traced:
            metrics |= self._assigned(before)
        return (loss, metrics) if metrics else loss

    def _assigned(self, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What buffers are now, where that is another tensor of the same kind; they are put back.
        A trace holds what is written in place, and not what is assigned."""
        found = {}
        for name, old in before.items():
            path, _, own = name.rpartition(".")
            held = self.get_submodule(path)._buffers
            new = held.get(own)
            if new is not None and new is not old:
                held[own] = old
                if new.dtype == old.dtype and new.shape == old.shape:
                    found[ASSIGNED + name] = new.detach().clone()
        return found


def user_name(name: str) -> str:
    """A name inside :class:`StepModule` as the user knows it."""
    return name.removeprefix(f"{MODEL}.")


def first_names(module: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer → the first name of the same tensor."""
    held = dict(module.named_parameters(remove_duplicate=False))
    held |= dict(module.named_buffers(remove_duplicate=False))
    first: dict[int, str] = {}
    for name, tensor in held.items():
        first.setdefault(id(tensor), name)
    return {name: first[id(tensor)] for name, tensor in held.items()}


def loss_of(result: Any) -> Tensor:
    """The scalar in what a model or a loss function returned.

    Raises:
        UsageError: there is none.
    """
    found = result
    if isinstance(result, Mapping) and "loss" in result:
        found = result["loss"]
    elif not isinstance(result, Tensor) and hasattr(result, "loss"):
        found = result.loss
    elif isinstance(result, tuple | list) and result:
        found = result[0]
    if found is None:
        raise UsageError(
            "the loss is None",
            "return it from the function; a model of transformers computes it where the batch has "
            "'labels'",
        )
    if not isinstance(found, Tensor):
        raise UsageError(
            f"the loss is {type(found).__name__}, not a tensor",
            "return a scalar tensor, or something with a field 'loss'",
        )
    if found.numel() != 1 or not found.dtype.is_floating_point:
        raise UsageError(
            f"the loss has shape {list(found.shape)} and type {found.dtype}, and is not a scalar",
            "reduce it, for example with .mean()",
        )
    return found.reshape(())


def metrics_of(result: Any) -> dict[str, Tensor]:
    """The metrics in what a model or a loss function returned, without a way for gradients: a
    tuple of the loss and a dictionary, or a mapping with ``loss`` and ``metrics``.

    Raises:
        UsageError: one of them is not a tensor.
    """
    found: Any = None
    if isinstance(result, Mapping):
        found = result.get("metrics") if "loss" in result else None
    elif isinstance(result, tuple) and len(result) == 2 and type(result[1]) is dict:
        found = result[1]  # mappings of other types are what models answer with
    if not isinstance(found, Mapping):
        return {}
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise UsageError(
                f"the metric '{name}' is {type(value).__name__}, not a tensor",
                "leave it a tensor, without .item(); or return the loss alone",
            )
    # Cloned: torch cannot tell the loss from an output that is a view of it.
    return {str(name): value.detach().clone() for name, value in found.items()}


def prepare(step: TorchStep) -> PreparedStep:
    """Check the parts of a step and name its inputs.

    Raises:
        UsageError: a part has the wrong type, or a name is taken twice.
    """
    model, loss = step.model, step.loss
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"the model is {type(model).__name__}, not a torch.nn.Module",
            "memplan.TorchStep says what the parts of a step are",
        )
    if loss is not None and not callable(loss):
        raise UsageError(
            f"the loss is {type(loss).__name__}, which cannot be called",
            "give a function of the model and the batch, a torch.nn loss, or None",
        )
    names, call = _calling(model, loss, step.batch)
    batch = _named(step.batch, names)
    module = StepModule(model, call, loss)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise UsageError(
                f"'{user_name(name)}' has no shape yet: a lazy module makes it in its first call",
                "call the model once on the batch, before the optimizer is made",
            )
    taken = {user_name(name) for name, _ in (*module.named_parameters(), *module.named_buffers())}
    if "loss" in taken:
        raise UsageError(
            "a parameter or buffer of the model is called 'loss', as what the step gives",
            "rename it",
        )
    for name in batch:
        if name in taken or name == "loss":
            raise UsageError(
                f"'{name}' names a tensor of the batch and something else, too",
                "rename that of the batch",
            )
    return PreparedStep(step, module, batch, _dynamic(step.dynamic, batch))


def _calling(
    model: nn.Module, loss: Callable[..., Any] | None, batch: Any
) -> tuple[tuple[str, ...], _Call]:
    """The names of the batch's tensors, and what calls model and loss with them."""
    keywords = isinstance(batch, Mapping)

    def passed(function: Callable[..., Any], *first: Any) -> _Call:
        """A call with the tensors of the batch behind ``first``."""
        if keywords:
            return lambda given: function(*first, **given)
        return lambda given: function(*first, *given.values())

    if loss is None:
        return parameter_names(model.forward, 0), passed(model)
    if isinstance(loss, nn.Module) or getattr(loss, "__module__", "") == functional.__name__:
        inputs = parameter_names(model.forward, 0)
        targets = parameter_names(loss.forward if isinstance(loss, nn.Module) else loss, 1)
        count = len(batch) if isinstance(batch, Mapping | Sequence) else 1
        if not count:
            raise UsageError(
                "the batch is empty", "give what the model takes and, last, the loss's target"
            )

        def criterion(given: dict[str, Tensor]) -> Any:
            _, target = given.popitem()
            return loss(passed(model)(given), target)

        return (*inputs[: count - 1], *targets[:1]), criterion
    if takes_whole(loss, batch):
        return (), lambda given: loss(model, given if keywords else tuple(given.values()))
    return parameter_names(loss, 1), passed(loss, model)


def _named(batch: Any, names: Sequence[str]) -> dict[str, Tensor]:
    if isinstance(batch, Mapping):
        found = {str(name): value for name, value in batch.items()}
    else:
        values = [batch] if isinstance(batch, Tensor) else list(_sequence(batch))
        own = list(names[: len(values)])
        own += [f"batch_{k}" for k in range(len(own), len(values))]
        found = dict(zip(own, values, strict=True))
        if len(found) < len(values):
            found = {f"batch_{k}": value for k, value in enumerate(values)}
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise UsageError(
                f"'{name}' of the batch is {type(value).__name__}, not a tensor",
                "what does not change belongs into the loss function",
            )
        if not name.isidentifier():
            raise UsageError(
                f"'{name}' of the batch cannot be the name of a Python argument", "rename it"
            )
    return found


def _sequence(batch: Any) -> Sequence[Any]:
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return batch
    raise UsageError(
        f"the batch is {type(batch).__name__}", "give a tensor, a sequence, or a dictionary"
    )


def _dynamic(
    given: str | Mapping[str, Mapping[int, str]] | None, batch: Mapping[str, Tensor]
) -> dict[str, dict[int, str]]:
    """Names of dynamic axes by input."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {name: {0: given} for name, value in batch.items() if value.dim()}
    found = {}
    if not isinstance(given, Mapping) or not all(isinstance(v, Mapping) for v in given.values()):
        raise UsageError(
            f"dynamic sizes are {given!r}, neither a name nor names by input and axis",
            "as in 'batch', or {'tokens': {0: 'batch', 1: 'length'}}",
        )
    for name, axes in given.items():
        if name not in batch:
            raise UsageError(
                f"dynamic sizes: the batch has no '{name}'", f"it has {', '.join(batch)}"
            )
        rank = batch[name].dim()
        for axis in axes:
            if not -rank <= axis < rank:
                raise UsageError(
                    f"dynamic sizes: '{name}' has no axis {axis}", f"its rank is {rank}"
                )
        found[name] = {axis % rank: label for axis, label in axes.items()}
    return found
