"""Gradients of some tensors of a model with respect to others, as a new model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from memplan.autodiff.assemble import assemble
from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.value import Array, Value
from memplan.autodiff.forward.annotate import flat_copy
from memplan.autodiff.forward.expand import Expanded, expand_all
from memplan.autodiff.reverse import ReversePass
from memplan.errors import ModelError, UsageError
from memplan.ir.graph import Phase
from memplan.ir.roles import Role
from memplan.proto.metadata import PHASE_KEY
from memplan.units import listed

Seed = str | Array | None


@dataclass(frozen=True, slots=True)
class Request:
    """What to differentiate: the sum over ``ys`` of (y · its entry of ``grad_ys``), by each x.

    An entry of ``grad_ys`` is an array, the name of a tensor (a new graph input if there is none of
    that name), or None for ones. ``portable``: see
    :class:`memplan.autodiff.emit.emitter.Emitter`.
    """

    ys: tuple[str, ...]
    xs: tuple[str, ...]
    grad_ys: tuple[Seed, ...] = ()
    portable: bool = False


class GradientSink:
    """What becomes of the gradients of one graph: outputs ``<x>_grad``. Optimizers make updates of
    them (:class:`memplan.autodiff.optimizers.updates.Updates`).

    ``gradients`` maps the outputs that are gradients to what they are the gradient of,
    ``new_values`` outputs to the inputs whose next value they are; ``taken`` each x to the tensor
    that is its gradient, whatever became of that. All are complete when the graph is.
    """

    def __init__(self) -> None:
        self.gradients: dict[str, str] = {}
        self.new_values: dict[str, str] = {}
        self.taken: dict[str, str] = {}

    def seed(self, emitter: Emitter, y: Value) -> Value:
        """The gradient that a y begins with, where the request does not say."""
        return emitter.const(1, y.dtype)

    def roles(self) -> Mapping[str, Role]:
        """What the graph inputs that it made are to training; complete when the graph is."""
        return {}

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        """Those with a default that may be fed, and the default."""
        return {}

    def take(self, emitter: Emitter, name: str, grad: Value) -> Mapping[str, Value]:
        """Called with every gradient, once it is complete and the nodes beside it are built.

        The graph outputs that it makes, by names from :meth:`Emitter.fresh`.
        """
        output = emitter.fresh(f"{name}_grad")
        self.gradients[output] = name
        return {output: grad}

    def finish(self, emitter: Emitter) -> Mapping[str, Value]:
        """Called when all gradients were taken; further graph outputs."""
        return {}


def build_gradients(
    model: onnx.ModelProto, request: Request, sink: GradientSink | None = None
) -> onnx.ModelProto:
    """``model`` with the nodes that compute the gradients, and what ``sink`` makes of them.

    Args:
        model: a forward graph; it is not changed.
        request: ys and xs.
        sink: takes every gradient; by default it becomes an output.

    Raises:
        ModelError: an operator on the way has no gradient, a y does not depend on any x, or an x
            has no influence on the ys.
        UsageError: a name is not in the graph, or not a float tensor.
    """
    flat = flat_copy(model)
    expanded = expand_all(flat, request.ys, request.xs, portable=request.portable)
    emitter = expanded.emitter
    _check(request, expanded)
    with emitter.scope(Scope("grad", {PHASE_KEY: Phase.BACKWARD})):
        sink = GradientSink() if sink is None else sink
        seeds = _seeds(emitter, request, sink)
    outputs: dict[str, Value] = {}
    done: set[str] = set()

    def ready(name: str, grad: Value) -> None:
        done.add(name)
        sink.taken[name] = grad.name
        outputs.update(sink.take(emitter, name, grad))

    ReversePass(expanded, request.xs, ready).run(seeds)
    outputs.update(sink.finish(emitter))
    _require_gradients(request, done)
    return assemble(expanded.model, emitter, outputs, request.xs)


def _check(request: Request, expanded: Expanded) -> None:
    types, active = expanded.emitter.types, expanded.activity.tensors
    for what, names in (("y", request.ys), ("x", request.xs)):
        if len(set(names)) < len(names) or not names:
            raise UsageError(f"every {what} must be named, and once only: {', '.join(names)}")
        for name in names:
            if name not in types:
                raise UsageError(
                    f"the graph has no tensor '{name}'", "names are listed by 'memplan analyze'"
                )
            if not types[name].is_float:
                raise UsageError(f"tensor '{name}' has no float type: it has no gradient")
    for y in request.ys:
        if y not in active:
            raise ModelError(
                f"'{y}' does not depend on {_some(request.xs)}",
                "name other tensors, or check that no integer or constant lies between",
            )
    _require_gradients(request, active)


def _require_gradients(request: Request, done: frozenset[str] | set[str]) -> None:
    lost = [x for x in request.xs if x not in done]
    if lost:
        raise ModelError(
            f"{_some(request.ys)} does not depend on {_some(lost)}, or only by zero derivatives",
            "leave these out",
        )


def _some(names: Sequence[str]) -> str:
    return listed([f"'{name}'" for name in names], 3)


def _seeds(emitter: Emitter, request: Request, sink: GradientSink) -> dict[str, Value]:
    """The gradient that each y starts with."""
    grads = request.grad_ys or (None,) * len(request.ys)
    if len(grads) != len(request.ys):
        raise UsageError(f"{len(request.ys)} ys, but {len(grads)} grad_ys")
    found = {}
    for name, grad in zip(request.ys, grads, strict=True):
        y = emitter.tensor(name)
        if grad is None:
            found[name] = sink.seed(emitter, y)
        elif isinstance(grad, str):
            known = grad in emitter.types
            if not known and y.type.shape is None:
                raise ModelError(
                    f"the rank of '{name}' is not known, and its gradient is to be a graph input",
                    "state the shape (value_info), or make that gradient an input of the model",
                )
            found[name] = emitter.tensor(grad) if known else emitter.input(grad, y.type)
        else:
            found[name] = emitter.const(grad, y.dtype)
        _check_seed(y, found[name])
    return found


def _check_seed(y: Value, grad: Value) -> None:
    sizes, own = grad.type.sizes, y.type.sizes
    if grad.dtype != y.dtype or (sizes and own and sizes != own):
        raise UsageError(f"the gradient given for '{y.name}' has type {grad.type}, not {y.type}")
