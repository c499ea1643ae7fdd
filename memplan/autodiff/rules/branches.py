"""The gradient of ``If``: an If on the same condition.

What a branch keeps for its gradient becomes a further output of the forward If. Where both branches
keep a tensor of one type, they share the output; where only one does, the other gives zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import onnx
from onnx import helper, numpy_helper

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.operations import Operations
from memplan.autodiff.emit.value import Value
from memplan.autodiff.forward.expand import expand_all
from memplan.autodiff.loop_bodies import (
    BodyWriter,
    body_model,
    restored,
    separate_outputs,
)
from memplan.autodiff.reverse import ReversePass
from memplan.ir.graph import Phase
from memplan.proto.edit import copied, live_nodes, rename_reads
from memplan.proto.metadata import PHASE_KEY
from memplan.proto.nodes import free_names, names_read
from memplan.shapes.tensor_type import TensorType, value_info

_BRANCHES = ("then_branch", "else_branch")


@gradient("If")
def if_(ctx: Context) -> Gradients:
    """See the module's text."""
    branches = [_Branch(ctx, name) for name in _BRANCHES]
    targets = sorted(set().union(*(branch.found for branch in branches)))
    if not targets:
        return {}
    for branch in branches:
        branch.finish([ctx.tensor(name) for name in targets])
    _keep(ctx, branches)
    condition = ctx.inputs[0]
    graphs = {name: branch.graph() for name, branch in zip(_BRANCHES, branches, strict=True)}
    found = ctx.emitter.ops(
        "If",
        condition,
        outputs=len(targets),
        results=tuple(ctx.tensor(name).type for name in targets),
        **graphs,
    )
    return dict(zip(targets, found, strict=True))


class _Branch:
    """One branch, differentiated; ``found`` are the gradients of captured tensors."""

    def __init__(self, ctx: Context, attribute: str) -> None:
        self.ctx = ctx
        bodies = {item.name: item.g for item in ctx.node.attribute}
        self.body: onnx.GraphProto = bodies[attribute]
        outer = ctx.emitter
        separate_outputs(self.body, outer)
        xs = {name for name in free_names(self.body) if name in ctx.needed}
        ends = [value.name for value in self.body.output]
        grads = {
            inner: grad for inner, grad in zip(ends, ctx.grads, strict=False) if grad is not None
        }
        model = body_model(outer, self.body, [])
        mark = f"{ctx.node.name}/{attribute}:"
        seen = expand_all(model, set(grads), xs, outer.names, mark, portable=outer.portable)
        self.emitter = seen.emitter
        self.writer = BodyWriter(self.emitter)
        seeds = {
            inner: self.writer.captured(grad)
            for inner, grad in grads.items()
            if inner in seen.activity.tensors
        }
        self.found: dict[str, Value] = {}
        active = [name for name in sorted(xs) if name in seen.activity.tensors]
        with self._scope():
            ReversePass(seen, active, self.found.__setitem__).run(seeds)
        restored(seen.model, self.body, self.emitter)
        self.known: dict[str, str] = dict(zip(ends, ctx.node.output, strict=False))
        self.again: list[onnx.NodeProto] = []

    def _scope(self) -> AbstractContextManager[None]:
        return self.emitter.scope(Scope(f"{self.ctx.node.name}/grad", {PHASE_KEY: Phase.BACKWARD}))

    def finish(self, targets: Sequence[Value]) -> None:
        """The outputs: a gradient for each target, zeros where there is none."""
        with self._scope():
            for target in targets:
                grad = self.found.get(target.name)
                self.writer.output(self._zeros_like(target) if grad is None else grad)

    def _zeros_like(self, target: Value) -> Value:
        """Zeros of the shape of a captured tensor, found out here: the forward branch, which is
        finished, does not read it."""
        make, like = Operations(self.emitter), self.writer.captured(target)
        if like.type.sizes is not None:
            return make.full_like(like)
        shape = make.op("Shape", like)
        return make.op("Expand", make.const(0, like.dtype), shape, result=like.type)

    def kept(self) -> list[str]:
        """Tensors that this branch computes and its gradient reads; constants are made again."""
        outputs = [value.name for value in self.writer.outputs]
        read = names_read(live_nodes(self.emitter.nodes, outputs))
        made: list[str] = []
        for node in self.body.node:
            names = [name for name in node.output if name in read and not self.known.get(name)]
            if names and node.op_type == "Constant":
                self.again.append(node)
            else:
                made += names
        return made

    def graph(self) -> onnx.GraphProto:
        """The gradient's branch."""
        constants = {tensor.name: tensor for tensor in self.body.initializer}
        for node in self.emitter.nodes:
            rename_reads(node, {k: v for k, v in self.known.items() if v})
        clones = [copied(node) for node in self.again]
        for clone in clones:
            clone.name = f"{clone.name}/recompute"
        return self.writer.graph(f"{self.body.name}_grad", constants, clones)


def _keep(ctx: Context, branches: Sequence[_Branch]) -> None:
    """Give the forward If an output for everything that its gradient reads of a branch."""
    waiting = [branch.kept() for branch in branches]
    outer = ctx.emitter
    while any(waiting):
        first = 0 if waiting[0] else 1
        name = waiting[first].pop(0)
        found = branches[first].emitter.types[name]
        # Where sizes have names, the other branch's zeros do not have them.
        stated = found if found.sizes is not None else _unsized(found)
        other = next((n for n in waiting[1 - first] if _same(branches[1 - first], n, found)), None)
        if other is not None:
            waiting[1 - first].remove(other)
        stash = outer.fresh(f"{name}/stash")
        ctx.node.output.append(stash)
        for k, inner in ((first, name), (1 - first, other)):
            branch = branches[k]
            if inner is None:
                inner = _zeros(branch.body, branch.emitter, found, f"{stash}/unused")
            else:
                branch.known[inner] = stash
            branch.body.output.append(value_info(inner, stated))
        outer.types[stash] = TensorType(found.dtype, outer.unnamed(stated.shape or ()))
        outer.places[stash] = ctx.node.name
        outer.makers[stash] = ctx.node


def _unsized(found: TensorType) -> TensorType:
    return found if found.shape is None else TensorType(found.dtype, ("",) * len(found.shape))


def _same(branch: _Branch, name: str, found: TensorType) -> bool:
    return branch.emitter.types[name] == found and found.sizes is not None


def _zeros(graph: onnx.GraphProto, emitter: Emitter, found: TensorType, name: str) -> str:
    """A tensor in place of one that only the other branch computes; empty if its size is not
    known."""
    sizes = found.sizes if found.sizes is not None else (0,) * len(found.shape or ())
    name = emitter.fresh(name)
    shape = emitter.fresh(f"{name}/shape")
    graph.initializer.append(numpy_helper.from_array(np.asarray(sizes, np.int64), shape))
    zero = helper.make_tensor("value", found.dtype, [1], [0])
    graph.node.append(helper.make_node("ConstantOfShape", [shape], [name], name=name, value=zero))
    return name
