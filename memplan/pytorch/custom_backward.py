"""Backwards of the user's own, recorded where the forward part is exported.

An ``autograd.Function`` has a backward that need not be the derivative of its forward, and a hook
may return another gradient than it was given. PyTorch's forward graph holds neither. So while a
step is traced both are run at once, on what stands for the gradient
(:func:`~memplan.pytorch.surrogate_exports.gradient_of`), and what they compute is in the graph: a
:func:`~memplan.pytorch.surrogate_exports.with_gradient` hands it on. What cannot be recorded so is
refused with its name and line.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.export.graph_signature import ExportGraphSignature, OutputSpec, TensorArgument
from torch.fx import GraphModule, Node
from torch.fx.node import has_side_effect

from memplan.errors import MemplanError, ModelError
from memplan.pytorch.operators import written_to
from memplan.pytorch.places import called_from, defined_at, is_users
from memplan.pytorch.surrogate_exports import (
    BACKWARD_THROUGH,
    GRADIENT,
    WITH,
    gradient_of,
    with_gradient,
)
from memplan.pytorch.torch_errors import refusal
from memplan.pytorch.torch_internals import internal

_MACHINERY = (
    "torch._functorch.",
    "torch._higher_order_ops.",
    "torch._dynamo.",
    "torch._library.",
    "torch.nn.modules._functions",
    "torch.utils._",
    "torch.utils.checkpoint",
)
"""Whose ``autograd.Function`` is a part of a trace, a hook that is found by itself, or a mark."""
_COMPILED = "AutogradFunctionApply."
"""Within what the ``autograd.Function`` stands for one in a body that torch has compiled."""
_UNWRITTEN = (torch.ops.aten.detach.default, torch.ops.aten.sym_size.int, GRADIENT)
"""Reads through which no gradient comes."""
_HOOKED = "memplan_hooked"
"""The key of what stands behind a hook in its metadata."""
_SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_RECORDER: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
has_side_effect(WITH)  # what a hook is recorded as is read by nobody while the step is traced


@dataclass(frozen=True, slots=True)
class CustomBackward:
    """Something that changes gradients: what it is, its name, and where it is applied."""

    kind: str
    name: str
    place: str

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        return f"{self.kind} '{self.name}'{where}"


class Recorder:
    """Runs backwards while a step is traced.

    ``hooks`` are those that were recorded, by number.
    """

    def __init__(self, model: nn.Module) -> None:
        """Take note of the hooks that the model brings.

        Raises:
            ModelError: one of them cannot be recorded.
        """
        for what in _unrecordable(model):
            raise _refused(what)
        self.hooks: dict[int, CustomBackward] = {}
        self.brought: dict[str, tuple[CustomBackward, list[Any]]] = {}
        for name, parameter in model.named_parameters():
            hooks = list((parameter._backward_hooks or {}).values())
            if hooks and parameter.requires_grad:
                what = CustomBackward("parameter hook", _on(hooks[0], name), defined_at(hooks[0]))
                self.brought[name] = what, hooks
        self._numbers = iter(range(sys.maxsize))

    def function(self, kind: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """``kind.apply``, of which some argument needs a gradient."""
        what = CustomBackward("autograd.Function", _short(kind.__qualname__), called_from())
        ctx, result, args = _forward(kind, args, options)
        outputs = list(result) if isinstance(result, tuple) else [result]
        slots = [k for k, y in enumerate(outputs) if ctx.gives_gradient(y)]
        if ctx.dirty or (len(slots) > 1 and not ctx.materialize_grads):
            why = "changes its input in place" if ctx.dirty else "tells gradients that are missing"
            raise ModelError(
                f"the {what} {why}, which cannot be recorded",
                "write it without ctx.mark_dirty and ctx.set_materialize_grads(False)",
            )
        number = next(self._numbers)

        def backward() -> Any:
            places = {k: slot for slot, k in enumerate(slots)}
            grads = [
                gradient_of(y, number, places[k], str(what)) if k in places else ctx.nothing(y)
                for k, y in enumerate(outputs)
            ]
            own = kind.vjp is not torch.autograd.Function.vjp
            return (kind.vjp if own else kind.backward)(ctx, *grads)

        found = _run(what, backward)
        found = found if isinstance(found, tuple) else (found,)
        pairs = [
            (x, dx)
            for x, dx, needed in zip(args, found, ctx.needs_input_grad, strict=False)
            if needed and dx is not None
        ]
        if slots and pairs:
            made = _with(what, number, [outputs[k] for k in slots], pairs)
            for k, value in zip(slots, made, strict=True):
                outputs[k] = value
        return tuple(outputs) if isinstance(result, tuple) else outputs[0]

    def hook(self, what: CustomBackward, tensor: Tensor, hooks: Sequence[Any]) -> None:
        """Hooks of a tensor, in the order in which they are called."""
        if torch.compiler.is_dynamo_compiling():
            raise NotImplementedError(f"the {what} in a branch or a loop that torch compiles")
        number = next(self._numbers)

        def backward() -> Any:
            grad = begun = gradient_of(tensor, number, 0, str(what))
            version = begun._version
            for each in hooks:
                new = each(grad)
                grad = grad if new is None else new
            return None if grad is begun and begun._version == version else grad

        found = _run(what, backward)
        if found is not None:
            _with(what, number, [tensor], [(tensor, found)])
            self.hooks[number] = what

    def begin(self, module: nn.Module) -> None:
        """Record the hooks that the parameters of a module have brought."""
        for name, (what, hooks) in self.brought.items():
            self.hook(what, module.get_parameter(name), hooks)

    def functions(self) -> Mapping[Any, Callable[..., Any]]:
        """What replaces functions and attributes of PyTorch that the step calls."""
        return {
            Tensor.register_hook: self._hooked,
            Tensor.register_post_accumulate_grad_hook: _hooked_later,
            Tensor.grad_fn.__get__: _grad_fn,
            torch.autograd.grad: _taken,
        }

    def _hooked(self, tensor: Tensor, hook: Any) -> Any:
        handle = tensor.register_hook(hook)
        what = CustomBackward("tensor hook", _name(hook), called_from())
        handle.remove = _removed(what)
        self.hook(what, tensor, [hook])
        return handle

    def lead_through_hooks(self, program: Any) -> None:
        """Let what reads a tensor behind its hook read the recorded one, in place.

        Raises:
            ModelError: something has read it before, or writes over it.
        """
        left = dict(self.hooks)
        for module in program.graph_module.modules():
            if isinstance(module, GraphModule):
                for node in list(module.graph.nodes):
                    number = node.args[3] if node.target is WITH else None
                    if number in self.hooks:
                        outermost = module is program.graph_module
                        _lead_through(module.graph, node, left.pop(number), outermost)
                module.recompile()
        if left:
            raise _not_led(next(iter(left.values())), "is lost in what torch exports")


class _Context:
    """The ``ctx`` of a function."""

    def __init__(self, needed: tuple[bool, ...]) -> None:
        self.needs_input_grad = needed
        self.saved_tensors: tuple[Any, ...] = ()
        self.materialize_grads = True
        self.dirty: tuple[Any, ...] = ()
        self.fixed: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Of derivatives in forward mode, which nobody asks for."""

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.fixed = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value

    def gives_gradient(self, y: Any) -> bool:
        """Whether a gradient comes back for an output."""
        floats = isinstance(y, Tensor) and (y.is_floating_point() or y.is_complex())
        return floats and all(y is not each for each in self.fixed)

    def nothing(self, y: Any) -> Any:
        """What the backward is given in the place of a gradient."""
        return torch.zeros_like(y) if isinstance(y, Tensor) and self.materialize_grads else None


def _forward(
    kind: Any, args: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[_Context, Any, tuple[Any, ...]]:
    """The forward of a function: its context, result and arguments with defaults."""
    split = kind.setup_context is not torch.autograd.Function.setup_context
    if split:
        bound = inspect.signature(kind.forward).bind(*args, **options)
        bound.apply_defaults()
        args, options = bound.args, bound.kwargs
    ctx = _Context(tuple(isinstance(each, Tensor) and each.requires_grad for each in args))
    with torch.no_grad():
        if not split:
            return ctx, kind.forward(ctx, *args, **options), args
        result = kind.forward(*args, **options)
        kind.setup_context(ctx, args, result)
    return ctx, result, args


def _run(what: CustomBackward, backward: Callable[[], Any]) -> Any:
    """A backward, run as autograd would: without gradients, and outside of autocast.

    Raises:
        ModelError: it cannot be traced.
    """
    try:
        with torch.no_grad(), ExitStack() as stack:
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            return backward()
    except MemplanError:
        raise
    except Exception as error:
        raise refusal(f"the {what} cannot be recorded", error) from error


def _with(
    what: CustomBackward, number: int, ys: list[Tensor], pairs: Sequence[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    """``ys`` with recorded gradients, each of which fits its tensor as autograd lets it."""
    fitted = []
    with torch.no_grad():
        for x, dx in pairs:
            dx = dx if dx.shape == x.shape else dx.sum_to_size(x.shape)
            fitted.append(dx.to(x.dtype))
    found: list[Tensor] = with_gradient(ys, [x for x, _ in pairs], fitted, number, str(what))
    return found


def _lead_through(graph: Any, node: Node, what: CustomBackward, outermost: bool) -> None:
    """Let what reads a tensor behind a hook read the result of ``node``."""
    x = node.args[1][0]
    nodes = list(graph.nodes)
    place = nodes.index(node)
    before, behind = set(nodes[:place]), set(nodes[place + 1 :])
    if x.op == "placeholder" and not outermost:
        raise _not_led(what, "is registered inside of a block for a tensor from outside")
    if x.meta.get(_HOOKED):
        raise _not_led(what, "is the second of its tensor")
    if any(user in before and not _reads_alone(user) for user in x.users):
        raise _not_led(what, "is registered behind what reads its tensor")
    if any(x in written_to(user) for user in x.users):
        raise _not_led(what, "is on a tensor that is changed in place")
    with graph.inserting_after(node):
        made = graph.call_function(operator.getitem, (node, 0))
    made.meta = {**x.meta, _HOOKED: True}
    x.replace_all_uses_with(
        made, delete_user_cb=lambda user: user in behind and user is not made, propagate_meta=False
    )


def _reads_alone(user: Node) -> bool:
    """Whether no gradient comes back from a reader."""
    stops = user.target is BACKWARD_THROUGH and len(user.args) == 1
    return stops or user.target in _UNWRITTEN or (user.target is _SET_GRAD and not user.args[0])


def _not_led(what: CustomBackward, why: str) -> ModelError:
    return ModelError(
        f"the {what} {why}, and cannot be recorded",
        "register one hook per tensor, right behind the line that makes it; or write an "
        "autograd.Function",
    )


def name_outputs(program: Any) -> None:
    """Let the signature of a program name the outputs that it has."""
    signature = program.graph_signature
    ends = program.graph.output_node().args[0]
    outputs = [
        OutputSpec(spec.kind, TensorArgument(node.name), spec.target)
        if isinstance(spec.arg, TensorArgument)
        else spec
        for node, spec in zip(ends, signature.output_specs, strict=True)
    ]
    program._graph_signature = ExportGraphSignature(list(signature.input_specs), outputs)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Inside, backwards of the user's own are recorded, while a model is traced."""
    with ExitStack() as stack:
        for target, name, own in _watched(recorder):
            stack.enter_context(mock.patch.object(target, name, own))
        token = _RECORDER.set(recorder)
        stack.callback(_RECORDER.reset, token)
        yield


def current_recorder() -> Recorder | None:
    """That of the step that is traced, if one is."""
    return _RECORDER.get()


def _watched(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    """What is replaced while a step is traced: place, name and what it is replaced by."""
    function: Any = torch.autograd.Function
    apply = inspect.getattr_static(function, "apply")  # Python's class method; from 2.14 on, C's

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        active = torch.is_grad_enabled() and any(
            isinstance(each, Tensor) and each.requires_grad for each in given
        )
        if active and _COMPILED in cls.__qualname__:
            raise NotImplementedError(
                "an autograd.Function in a branch or loop of torch.cond's kind"
            )
        if active and not cls.__module__.startswith(_MACHINERY):
            return recorder.function(cls, args, kwargs)
        return apply.__get__(None, cls)(*args, **kwargs)

    enter = saved_tensors_hooks.__enter__

    def entered(self: Any) -> Any:
        if not isinstance(self, save_on_cpu):
            what = CustomBackward("saved-tensor hook", _name(self.unpack_hook), called_from())
            raise _refused(what)
        return enter(self)

    return [
        (function, "apply", classmethod(applied)),
        (saved_tensors_hooks, "__enter__", entered),
    ]


def _refused(what: CustomBackward) -> ModelError:
    return ModelError(
        f"gradients pass through the {what}, which cannot be recorded",
        "remove it before the capture; what it does to gradients belongs into a tensor hook or an "
        "autograd.Function, what it does to parameters into the optimizer",
    )


def _hooked_later(_tensor: Tensor, hook: Any) -> Any:
    raise _refused(CustomBackward("post-accumulate-grad hook", _name(hook), called_from()))


def _grad_fn(tensor: Tensor, *_: Any) -> Any:
    found = tensor.grad_fn
    if found is not None and is_users(sys._getframe(2).f_code.co_filename):
        # Hooks of it are not Python's to see.
        raise _refused(CustomBackward("autograd node", type(found).__name__, called_from()))
    return found


def _taken(*_args: Any, **_kwargs: Any) -> Any:
    raise NotImplementedError("the step takes a gradient by itself (torch.autograd.grad)")


def _removed(what: CustomBackward) -> Callable[[], None]:
    def remove() -> None:
        raise NotImplementedError(f"the {what} is removed within the step")

    return remove


def _unrecordable(model: nn.Module) -> Iterator[CustomBackward]:
    """The hooks that are there before a step runs, but for those of tensors."""
    for name in ("_global_backward_pre_hooks", "_global_backward_hooks"):
        for hook in internal(f"torch.nn.modules.module.{name}").values():
            yield CustomBackward("global module hook", _name(hook), defined_at(hook))
    for name, each in model.named_modules():
        for hooks in (each._backward_pre_hooks, each._backward_hooks):
            for hook in hooks.values():
                yield CustomBackward("module hook", _on(hook, name), defined_at(hook))
    for name, parameter in model.named_parameters():
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            yield CustomBackward("post-accumulate-grad hook", _on(hook, name), defined_at(hook))


def _on(hook: Any, name: str) -> str:
    name = name.removeprefix("model").removeprefix(".")
    return f"{_name(hook)} on {name}" if name else _name(hook)


def _name(hook: Any) -> str:
    return _short(getattr(hook, "__qualname__", None) or type(hook).__qualname__)


def _short(name: Any) -> str:
    return str(name).rpartition("<locals>.")[2]
