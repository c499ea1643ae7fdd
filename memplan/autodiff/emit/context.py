"""What a gradient rule gets to see of its node; it builds with the operations."""

from __future__ import annotations

import math
from collections.abc import Collection, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import onnx
from onnx import helper

from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.operations import Operations
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError
from memplan.proto.limits import MOST_CONSTANT, require

T = TypeVar("T")


class Context(Operations):
    """One forward node, seen by its rule.

    ``inputs`` and ``outputs`` are the node's tensors, None where an optional one is left out;
    ``grads`` the gradients of the outputs, None where none flows in; ``wanted[k]`` whether input
    ``k`` needs a gradient, ``needed`` all tensors that need one. Dimensions may be symbolic
    (:mod:`memplan.shapes.tensor_type`).
    """

    def __init__(
        self,
        emitter: Emitter,
        node: onnx.NodeProto,
        grads: tuple[Value | None, ...] = (),
        wanted: tuple[bool, ...] = (),
        sums: MutableMapping[str, Value] | None = None,
        needed: Collection[str] = (),
    ) -> None:
        super().__init__(emitter)
        self.node = node
        self.inputs = tuple(emitter.tensor(name) if name else None for name in node.input)
        self.outputs = tuple(emitter.tensor(name) if name else None for name in node.output)
        self.grads = grads
        self.wanted = wanted
        self.needed = needed
        self._sums = sums if sums is not None else {}

    # -- the node ------------------------------------------------------------------------------

    @property
    def tensors(self) -> tuple[Value, ...]:
        """The inputs that are present."""
        return tuple(value for value in self.inputs if value is not None)

    def input(self, index: int) -> Value | None:
        """Input ``index``, or None if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def y(self) -> Value:
        """The first output."""
        value = self.outputs[0]
        assert value is not None
        return value

    @property
    def dy(self) -> Value:
        """The gradient of the first output, for rules in which no other brings one in."""
        value = self.grads[0]
        assert value is not None
        return value

    def whole(self, index: int = 0) -> Value:
        """The gradient of an output, in the output's shape."""
        grad, output = self.grads[index], self.outputs[index]
        assert grad is not None
        assert output is not None
        return self.expand_like(grad, output)

    def base(self, index: int) -> Value:
        """What a scatter adds the gradient of input ``index`` to.

        That is the sum of the gradients so far, which the rule takes over, or zeros.
        """
        target = self.inputs[index]
        assert target is not None
        return self.base_of(target.name)

    def base_of(self, name: str) -> Value:
        """:meth:`base` of a tensor that is an input of the node, or that its bodies read."""
        target = self.emitter.tensor(name)
        grad = self._sums.pop(name, None)
        return self.full_like(target) if grad is None else self.expand_like(grad, target)

    def wants(self, index: int) -> bool:
        """Whether input ``index`` needs a gradient."""
        return index < len(self.wanted) and self.wanted[index]

    def attribute(self, name: str, default: T) -> T:
        """An attribute's value, of the type of ``default``; ``default`` where it is not set.

        Raises:
            ModelError: it has another type; of the operators of others nobody knows the schema.
        """
        for item in self.node.attribute:
            if item.name == name:
                value: Any = helper.get_attribute_value(item)
                if isinstance(value, bytes):
                    value = value.decode(errors="replace")
                if not _same_kind(value, default):
                    raise ModelError(
                        f"{self.node.op_type} '{self.node.name}': attribute '{name}' has the "
                        "wrong type",
                        "export the model again; the file is damaged or was edited",
                    )
                return list(value) if isinstance(default, list) else value  # type: ignore[return-value]
        return default

    @property
    def epsilon(self) -> float:
        """What a normalization adds to a variance."""
        return self.attribute("epsilon", 1e-5)

    def has_attribute(self, name: str) -> bool:
        """Whether the node states an attribute."""
        return any(item.name == name for item in self.node.attribute)

    def integers(self, slot: int, name: str) -> list[int] | None:
        """The integers that input ``slot`` holds, which messages call ``name``; None if it is left
        out.

        Raises:
            ModelError: they are computed at run time.
        """
        value = self.input(slot)
        if value is None:
            return None
        known = self.constant(value)
        if known is None:
            raise ModelError(
                f"the {name} of {self.node.op_type} '{self.node.name}' are computed at run time, "
                "and its gradient depends on them",
                "make them constant, for example by onnxruntime's or onnxsim's constant folding",
            )
        return [int(item) for item in known.reshape(-1)]

    def needs(self, what: str) -> ModelError:
        """The error of a rule that depends on sizes that are known at run time only."""
        return ModelError(
            f"the gradient of {self.node.op_type} '{self.node.name}' needs {what}",
            "bind the dimensions first: onnx.tools.update_model_dims",
        )

    def require_room(self, *sizes: int) -> None:
        """Check that a constant of these sizes may be put into the file.

        Raises:
            ModelError: it is too large.
        """
        what = f"elements of a constant for the gradient of {self.node.op_type} '{self.node.name}'"
        require(math.prod(sizes), MOST_CONSTANT, what, "use smaller shapes or fewer steps")

    def axis(self, default: int, rank: int) -> int:
        """The attribute ``axis``, counted from the front."""
        axis = self.attribute("axis", default)
        return axis + rank if axis < 0 else axis

    def output(self, index: int) -> Value:
        """Output ``index`` of the forward node, which is made to give it if it does not yet.

        Only for outputs whose presence changes nothing else (masks, indices, statistics).
        """
        node = self.node
        while len(node.output) <= index:
            node.output.append("")
        if not node.output[index]:
            name = self.emitter.fresh(f"{node.name}/{index}")
            node.output[index] = name
            self.emitter.types[name] = self.emitter.infer(node)[index]
            self.emitter.places[name] = node.name
            self.emitter.further_outputs.add(name)
        return self.emitter.tensor(node.output[index])

    def in_forward(self) -> AbstractContextManager[None]:
        """Nodes made inside stand right behind the forward node, as part of the forward."""
        return self.emitter.placed_behind(self.node.name)


def _same_kind(value: object, default: object) -> bool:
    """Whether an attribute can stand for a default: numbers for numbers, text for text, lists for
    lists."""
    if isinstance(default, str) or isinstance(value, str):
        return isinstance(default, str) == isinstance(value, str)
    if isinstance(default, list):
        return isinstance(value, Sequence)
    return default is None or isinstance(value, int | float)
