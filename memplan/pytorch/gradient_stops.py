"""Where PyTorch lets no gradient through, said in what is traced.

A graph of operators loses ``detach``, blocks without gradients and ``requires_grad_(False)``. So
while a step is traced, what requires a gradient that PyTorch would not hand on is read through
:func:`~memplan.pytorch.surrogate_exports.backward_through`, a copy whose gradient goes nowhere.
PyTorch itself says where that is: a tensor knows whether it requires a gradient.

What is written in place without gradients keeps the history that it had: the gradient of the new
value is handed to the old one. A tensor that is detached shares its memory in PyTorch, and is a
copy here: it may be read, and not written to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from memplan.errors import ModelError, UsageError
from memplan.pytorch.operators import writes, written_to
from memplan.pytorch.places import called_from, of_node
from memplan.pytorch.surrogate_exports import BACKWARD_THROUGH, backward_through
from memplan.pytorch.torch_internals import internal

aten = torch.ops.aten
_pytree: Any = internal("torch.utils._pytree")
_SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_DETACH = (aten.detach.default, aten.detach_.default)
_ACCESS = ("__get__", "__set__")


class GradientStops:
    """What a traced step reads through stops.

    ``frozen`` are tensors that were told to require no gradient, by ``id``; ``copies`` those that
    stand for detached ones, by their storage.
    """

    def __init__(self) -> None:
        self.frozen: dict[int, Tensor] = {}
        self.copies: dict[int, Tensor] = {}

    def functions(self) -> Mapping[Any, Callable[..., Any]]:
        """What replaces attributes, methods and functions of tensors."""
        return {
            torch.detach: self.detached,
            Tensor.detach: self.detached,
            Tensor.data.__get__: self.detached,
            Tensor.data.__set__: self._overwrite,
            Tensor.detach_: lambda tensor: self.require(tensor, False),
            Tensor.requires_grad_: self.require,
            Tensor.requires_grad.__set__: self.require,
        }

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What a function gives that reads its arguments so.

        Raises:
            ModelError: it writes to a tensor that was detached.
        """
        if getattr(function, "__name__", "") in _ACCESS or torch.compiler.is_dynamo_compiling():
            return function(*args, **kwargs)
        off, read = not torch.is_grad_enabled(), list[tuple[Tensor, Tensor]]()

        def stopped(value: Any) -> Any:
            wanted = isinstance(value, Tensor) and (off or id(value) in self.frozen)
            if not wanted or not value.requires_grad:
                return value
            read.append((value, self.detached(value)))
            return read[-1][1]

        args, kwargs = _pytree.tree_map(stopped, (args, kwargs))
        given = [value for value in _pytree.tree_leaves((args, kwargs)) if self._is_copy(value)]
        versions = [value._version for value in given]
        result = function(*args, **kwargs)
        written = {
            id(v): v for v, version in zip(given, versions, strict=True) if v._version > version
        }
        for value, copy in read:
            if written.pop(id(copy), None) is not None:
                with torch.no_grad():
                    value.copy_(backward_through(copy, value))
                result = value if result is copy else result
        if written:
            raise _behind_autograd(called_from())
        return result

    def detached(self, tensor: Tensor, *_: Any) -> Tensor:
        """``Tensor.detach``, as a copy where a gradient would come through."""
        if not tensor.requires_grad or torch.compiler.is_dynamo_compiling():
            return tensor.detach()
        copy = backward_through(tensor)
        self.copies[_storage(copy)] = copy
        return copy

    def _is_copy(self, value: Any) -> bool:
        return isinstance(value, Tensor) and bool(self.copies) and _storage(value) in self.copies

    def _overwrite(self, tensor: Tensor, value: Tensor) -> None:
        """``tensor.data = value``.

        Raises:
            UsageError: the tensor would have another shape or type.
        """
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            raise UsageError(
                "the step gives a tensor another shape or type through .data",
                "compute a new tensor instead",
            )
        with torch.no_grad():
            self.call(Tensor.copy_, (tensor, value), {})

    def require(self, tensor: Tensor, wanted: bool = True) -> Tensor:
        """``Tensor.requires_grad_``.

        Raises:
            UsageError: a parameter that is frozen from outside is to be trained.
        """
        if not wanted and tensor.requires_grad:
            self.frozen[id(tensor)] = tensor
        elif wanted and id(tensor) in self.frozen:
            del self.frozen[id(tensor)]
        elif wanted and isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad:
            raise UsageError(
                "the step calls requires_grad_(True) for a parameter that does not require a "
                "gradient when it is captured",
                "call it before capture",
            )
        return tensor


def _storage(tensor: Tensor) -> int:
    """What is equal for tensors that share memory; 0 of those that have none of their own."""
    has_storage = internal("torch._C._has_storage")(tensor)
    return int(tensor.untyped_storage()._cdata) if has_storage else 0


def _behind_autograd(place: str) -> ModelError:
    where = f" ({place})" if place else ""
    return ModelError(
        f"a tensor that shares its storage with one that needs a gradient is changed in place "
        f"without one (.data, detach(), no_grad){where}",
        "compute a new tensor instead",
    )


def complete_stops(program: Any) -> None:
    """State in an exported program, in place, what PyTorch's own functions and branches detach, and
    let blocks without gradients stand in line: their nodes tell their own modules then.

    Raises:
        ModelError: a branch writes to what it has detached.
    """
    given = [node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")]
    flags = [isinstance(value, Tensor) and value.requires_grad for value in given]
    _stop_detached(program.graph_module, flags)
    _write_in_line(program.graph_module)


def _stop_detached(module: GraphModule, flags: Sequence[bool]) -> None:
    """In a graph of which it is known which inputs require a gradient."""
    places = module.graph.find_nodes(op="placeholder")
    active = {place for place, flag in zip(places, flags, strict=True) if flag}
    for node in module.graph.nodes:
        for named in node.all_input_nodes:
            body = getattr(module, str(named.target), None) if named.op == "get_attr" else None
            if isinstance(body, GraphModule):
                _stop_detached(body, _flags_of(node, body, active))
        if active.isdisjoint(node.all_input_nodes) or node.target is BACKWARD_THROUGH:
            continue
        if node.target not in _DETACH or not _is_float(node.meta.get("val")):
            active.add(node)
        elif node.target is _DETACH[1] or any(node in written_to(user) for user in node.users):
            raise _behind_autograd(of_node(node))
        else:
            node.target = BACKWARD_THROUGH
    module.recompile()


def _flags_of(node: Node, body: GraphModule, active: set[Node]) -> list[bool]:
    """Which inputs of a graph that a node calls require a gradient. Of branches and loops, any may
    if one does."""
    count = len(body.graph.find_nodes(op="placeholder"))
    if node.target not in (_SET_GRAD, _AUTOCAST):
        return [not active.isdisjoint(node.all_input_nodes)] * count
    return [operand in active for operand in node.args[len(node.args) - count :]]


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _write_in_line(module: GraphModule) -> None:
    """Let what blocks without gradients compute stand where it is called, in place. Blocks that
    write in place stay: parameters may be written so alone."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=_SET_GRAD):
        named = node.args[1]
        body = getattr(module, str(named.target))
        if any(inner.op == "get_attr" or writes(inner) for inner in body.graph.nodes):
            continue
        given = dict(zip(body.graph.find_nodes(op="placeholder"), node.args[2:], strict=True))
        with graph.inserting_before(node):
            results = graph.graph_copy(body.graph, given)
        for taken in list(node.users):
            taken.replace_all_uses_with(results[taken.args[1]])
            graph.erase_node(taken)
        graph.erase_node(node)
        if not named.users:
            graph.erase_node(named)
    module.recompile()
