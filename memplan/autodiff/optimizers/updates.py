"""Gradients of one graph → updates of its parameters, each as early as it may be.

An update stands right behind the last node that reads its parameter; that of small vectors, which
are updated together (:func:`joined_names`), at the end. But where all gradients are clipped to a
norm of all of them together, or the loss is scaled and one that is not finite skips the step, none
can be used before the last one is there: all gradients are held, and all updates stand at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx

from memplan.autodiff.assemble import append
from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.operations import Operations
from memplan.autodiff.emit.value import Value
from memplan.autodiff.forward.expand import emitter_for
from memplan.autodiff.optimizers.optimizer import (
    CLIP_NORM,
    DOUBLE,
    FLOAT,
    SCALE,
    Member,
    Optimizer,
    UpdateBuilder,
    update_scope,
)
from memplan.autodiff.optimizers.scaling import LossScale, ScaledGradients
from memplan.ir.roles import EMA_DECAY, FOUND_INF, LOSS_SCALE, Averages, Role
from memplan.shapes.tensor_type import TensorType, value_info

_EPSILON = 1e-6
"""``torch.nn.utils.clip_grad_norm_`` adds it to the norm that it divides by."""
VECTORS = "vectors"
"""What the nodes of a joined update are named after."""
_MOST_ELEMENTS = 4096
_FEWEST = 4
"""Of AdamW, joining and cutting take seven nodes, and gradients wait."""


def members_of(optimizer: Optimizer, parameters: Sequence[str]) -> dict[str, Member]:
    """All parameters updated by one optimizer; those that its ``no_decay`` names do not decay.

    Raises:
        UsageError: ``no_decay`` names a parameter that is not there.
    """
    fixed = set(optimizer.not_decayed(parameters))
    return {name: Member(optimizer, decays=name not in fixed) for name in parameters}


def joined_names(
    members: Mapping[str, Member], types: Mapping[str, TensorType]
) -> dict[str, tuple[str, ...]]:
    """The parameters that are updated together, by each of them: small vectors of one layer.

    AdamW makes thirteen nodes for every parameter, SGD with momentum four. Most parameters of a
    network are vectors of a few hundred elements, for which a node's arithmetic is nothing and its
    launch everything. So their gradients wait for each other, values and states are joined end to
    end, and what comes out is cut into new values again: element by element the same arithmetic.

    Only those of one layer wait for each other. Joined across layers, the new value of one vector
    (``rewrite --wrt``) would need the backward pass of all of them.
    """
    small = [name for name, member in members.items() if _is_small(member, types[name])]
    kinds = {name: (members[name], types[name].dtype) for name in small}
    sizes = Counter((kinds[name], layer) for name in small for layer in _layers(name))
    alike: dict[object, list[str]] = {}
    for name in small:
        layers = (layer for layer in _layers(name) if sizes[kinds[name], layer] >= _FEWEST)
        if (layer := next(layers, None)) is not None:
            alike.setdefault((kinds[name], layer), []).append(name)
    groups = [tuple(names) for names in alike.values() if len(names) >= _FEWEST]
    return {name: group for group in groups for name in group}


def _is_small(member: Member, of: TensorType) -> bool:
    """Whether a parameter is a vector that is updated element by element, and short."""
    if not member.optimizer.by_element or of.shape is None or len(of.shape) != 1:
        return False
    return isinstance(of.shape[0], int) and 0 < of.shape[0] <= _MOST_ELEMENTS


def _layers(name: str) -> list[str]:
    """``stages.2.blocks.7`` and ``stages.2`` of ``stages.2.blocks.7.norm.bias``; a name without an
    index tells no layer."""
    parts = name.split(".")
    ends = [k for k, part in enumerate(parts[:-1], start=1) if part.isdecimal()]
    return [".".join(parts[:end]) for end in reversed(ends)]


class Updates(ScaledGradients):
    """Makes the updates of one graph."""

    def __init__(
        self,
        members: Mapping[str, Member],
        types: Mapping[str, TensorType],
        *,
        scaled: bool = False,
        scale: LossScale | None = None,
        averages: Averages | None = None,
    ) -> None:
        """Prepare for one graph.

        Args:
            members: how every parameter is updated, by name. Clipping is that of the first.
            types: of all parameters, by name.
            scaled: gradients are multiplied by an input first: they may be sums over batches.
            scale: the loss scale, by which gradients are divided first; None: there is none.
            averages: what follows the parameters; None: nothing does.
        """
        self.members = {
            name: replace(member, optimizer=member.optimizer.suited(types[name]))
            for name, member in members.items()
        }
        decays = {m.optimizer.weight_decay for m in self.members.values() if m.decays}
        self.wide = any(types[name].dtype == DOUBLE for name in members)
        super().__init__(scale, feeds_decay=len(decays - {0.0}) == 1 and not self.wide)
        self.joined = joined_names(self.members, types)
        self.optimizer = next(iter(self.members.values())).optimizer
        self.scaled = scaled
        self.found_infs: Mapping[int, Value] = {}
        self.averages = averages
        self.latest: dict[str, Value] = {}
        self.waiting: dict[str, Value] = {}
        self.squares: list[Value] = []

    def roles(self) -> Mapping[str, Role]:
        """Of hyperparameters, optimizer state, step counters and averages."""
        averages = () if self.averages is None else self.averages.following(self.members)
        return {**super().roles(), **dict.fromkeys(averages, Role.AVERAGE)}

    def take(self, emitter: Emitter, name: str, grad: Value) -> Mapping[str, Value]:
        """Update a parameter; or keep its gradient, if it has to wait for others."""
        with emitter.scope(update_scope(name)):
            grad = self._unscaled(emitter, name, grad)
            if self.optimizer.clip_value:
                bound = self.optimizer.clip_value
                grad = emitter.op("Clip", grad, -bound, bound)
            if self.optimizer.clip_norm:
                wide = Operations(emitter).cast(grad, DOUBLE if self.wide else FLOAT)
                self.squares.append(emitter.op("ReduceSumSquare", wide, keepdims=0))
            elif self.scale is None and name not in self.joined:
                return self._update(emitter, {name: grad})
        self.waiting[name] = grad
        return {}

    def finish(self, emitter: Emitter) -> Mapping[str, Value]:
        """Make the updates that waited for all gradients, the next step's number, and the next loss
        scale."""
        outputs: dict[str, Value] = {}
        if self.scale is not None:
            self.found_infs, found_inf = self.find_infs(emitter)
            outputs[emitter.fresh(FOUND_INF)] = found_inf
        factor = self._clipping_factor(emitter) if self.squares else None
        for names in dict.fromkeys(self.joined.get(name, (name,)) for name in self.waiting):
            grads = {name: self.waiting[name] for name in names if name in self.waiting}
            with emitter.scope(update_scope(names[0] if len(names) == 1 else VECTORS)):
                outputs |= self._update(emitter, grads, factor)
        outputs |= self._named(emitter, self.inputs.counter_values)
        if self.scale is not None:
            with emitter.scope(update_scope(LOSS_SCALE)):
                found = self.next_values(emitter, found_inf)
            outputs |= self._named(emitter, found)
        if self.averages is not None:
            outputs |= self._named(emitter, self._averaged(emitter, self.averages))
        return outputs

    def _unscaled(self, emitter: Emitter, name: str, grad: Value) -> Value:
        """A gradient as the optimizer is to see it, but for clipping."""
        if self.scale is not None:
            owner = self.members[name].owner
            return self.unscaled(emitter, grad, owner, scaled=self.scaled)
        if not self.scaled:
            return grad
        share = self.inputs.number(emitter, SCALE, 1.0)
        return grad * Operations(emitter).cast(share, grad.dtype)

    def _clipping_factor(self, emitter: Emitter) -> Value:
        """What all gradients are multiplied by: clip_norm / their norm, but at most 1."""
        most = self.optimizer.clip_norm
        with emitter.scope(update_scope("clip_norm")):
            total = emitter.op("Sqrt", emitter.op("Sum", *self.squares))
            bound = most if self.wide else self.inputs.number(emitter, CLIP_NORM, most)
            return emitter.op("Min", bound / (total + _EPSILON), 1.0)

    def _update(
        self, emitter: Emitter, grads: Mapping[str, Value], factor: Value | None = None
    ) -> dict[str, Value]:
        """Update a parameter, or several vectors at once; ``factor``: of their gradients."""
        member = self.members[next(iter(grads))]
        skipped = self.found_infs.get(member.owner)
        build = UpdateBuilder(emitter, member, self.inputs, grads, skipped)
        if factor is not None:
            build.gradient = build.gradient * build.own_cast(factor, build.gradient.dtype)
        renewed = build.new_values()
        self.latest |= {name: new for name, new in renewed.items() if name in self.members}
        return self._named(emitter, renewed)

    def _averaged(self, emitter: Emitter, averages: Averages) -> dict[str, Value]:
        """The next values of averages, as ``torch.optim.swa_utils.get_ema_multi_avg_fn`` has them:
        ``average + (1 - decay) · (weight - average)``, by arithmetic on the old one, index by
        index. 1 - decay is taken in float64, as float32 has three digits of it."""
        decay = self.inputs.number(emitter, EMA_DECAY, averages.decay, DOUBLE)
        found: dict[str, Value] = {}
        for name, source in averages.following(self.latest).items():
            with emitter.scope(update_scope(name)):
                new = self.latest[source] if source in self.latest else emitter.tensor(source)
                known = name in emitter.types
                old = emitter.tensor(name) if known else emitter.input(name, new.type)
                apart = new - old
                found[name] = old + apart * Operations(emitter).cast(1 - decay, new.dtype)
        return found

    def _named(self, emitter: Emitter, found: Mapping[str, Value]) -> dict[str, Value]:
        outputs = {}
        for old, new in found.items():
            output = emitter.fresh(f"{old}_new")
            self.new_values[output] = old
            outputs[output] = new
        return outputs


def build_update(
    step: onnx.ModelProto,
    gradients: Mapping[str, str],
    types: Mapping[str, TensorType],
    updates: Updates,
) -> onnx.ModelProto:
    """The graph that updates the parameters of a training graph: gradients come in.

    For gradients that are summed over several batches before they are used: they are multiplied by
    the input ``gradient_scale`` (1 over the number of batches) before anything else; of a loss that
    is scaled, also divided by the scale, which all batches share. Parameters are inputs without a
    default: their values are those of the training graph.

    Args:
        step: the training graph, for its opset; it is not changed.
        gradients: its outputs that are gradients → its parameters. They are inputs of the same
            names here.
        types: of the parameters.
        updates: makes the updates, of gradients that are ``scaled``.
    """
    model = onnx.ModelProto(ir_version=step.ir_version, producer_name=step.producer_name)
    model.opset_import.extend(item for item in step.opset_import if item.domain in ("", "ai.onnx"))
    model.graph.name = f"{step.graph.name or 'graph'}_update"
    for gradient, name in gradients.items():
        model.graph.input.extend(value_info(given, types[name]) for given in (name, gradient))
    emitter = emitter_for(model, ())
    outputs: dict[str, Value] = {}
    for gradient, name in gradients.items():
        outputs.update(updates.take(emitter, name, emitter.tensor(gradient)))
    outputs.update(updates.finish(emitter))
    append(model, emitter, outputs)
    return model
