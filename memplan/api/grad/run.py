"""``grad``: a forward graph → a training graph. :func:`gradients` is the same for Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from memplan.api.grad.notes import notes_on_logits, notes_on_sharing
from memplan.api.source import Model, as_file, shown_path
from memplan.api.summary import Rows, Summary
from memplan.autodiff.build import Request, Seed, build_gradients, gradient_outputs
from memplan.autodiff.forward.annotate import flat_copy, require_differentiable
from memplan.autodiff.forward.expand import emitter_for
from memplan.autodiff.losses import KINDS as LOSSES
from memplan.autodiff.losses import add_loss
from memplan.autodiff.optimizers import parse_optimizer
from memplan.autodiff.parameters import Candidates, choose, find_candidates
from memplan.autodiff.statistics import Statistics, renew_statistics
from memplan.errors import MemplanError, ModelError, UsageError
from memplan.ir.graph import Phase
from memplan.loops.layers import ScanLayer, scan_layers
from memplan.proto.checks import find_fault
from memplan.proto.metadata import (
    NEW_VALUES,
    PHASE_KEY,
    get_metadata,
    node_metadata,
    set_metadata,
)
from memplan.proto.read import read_model
from memplan.proto.weights import NO_WEIGHTS, Placement, plan_weights, write_with_weights
from memplan.proto.write import check_target
from memplan.shapes.checks import check_stated
from memplan.shapes.infer import stated_types
from memplan.shapes.prepare import inline_functions, name_nodes
from memplan.shapes.tensor_type import UNKNOWN, TensorType

SCHEMA = "memplan.grad/1"
Checkpoints = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class GradOptions:
    """How to differentiate.

    ``loss`` is a scalar tensor, or a kind of loss to build behind ``logits``, whose classes lie
    along ``class_axis``. ``wrt`` are globs of tensor names; none: what looks trained.
    ``optimizer`` as in ``adamw{weight_decay=0.1}``; ``none``: gradients are outputs.
    ``checkpoints``: see :func:`memplan.api.grad.checkpoints.with_checkpoints`. ``scan_recompute``:
    see :class:`memplan.loops.cell.ScanRecompute`. ``weights``: see
    :class:`memplan.proto.weights.Weights`.
    """

    loss: str
    logits: str | None = None
    class_axis: int | None = None
    wrt: tuple[str, ...] = ()
    optimizer: str = "none"
    checkpoints: str = "none"
    forward_only: bool = False
    scan_recompute: str = "none"
    weights: str = "auto"


@dataclass(frozen=True, slots=True, repr=False)
class TrainingGraph(Summary):
    """The answer of ``grad``; ``output`` is None if nothing was written.

    ``new_values`` maps graph outputs to the graph inputs that they are the next value of.
    """

    path: Path
    output: Path | None
    options: GradOptions
    loss: str
    wrt: tuple[str, ...]
    candidates: Candidates
    model: onnx.ModelProto
    new_inputs: tuple[str, ...]
    new_outputs: tuple[str, ...]
    class_axis: int | None
    scans: tuple[ScanLayer, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    new_values: Mapping[str, str] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=Statistics)
    notes: tuple[str, ...] = ()
    placement: Placement = NO_WEIGHTS

    @property
    def nodes(self) -> Mapping[Phase, int]:
        """How many nodes each part has; the loss counts as forward."""
        counts = dict.fromkeys((Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE), 0)
        for node in self.model.graph.node:
            told = node_metadata(node).get(PHASE_KEY)  # the author may have written anything
            counts[Phase(told) if told in counts else Phase.FORWARD] += 1
        return counts

    def summary_rows(self) -> Rows:
        """What ``repr`` shows."""
        nodes = ", ".join(f"{count:,} {phase}" for phase, count in self.nodes.items() if count)
        return (
            ("TrainingGraph", f"of {self.path}"),
            ("loss", self.loss),
            ("nodes", nodes),
            (f"by {len(self.wrt)}", ", ".join(self.wrt)),
            (f"not by {len(self.not_trained)}", ", ".join(self.not_trained)),
            ("optimizer", self.options.optimizer),
            ("new inputs", ", ".join(self.new_inputs)),
            ("new outputs", ", ".join(self.new_outputs)),
            ("output", str(self.output) if self.output is not None else "nothing written"),
        )

    @property
    def not_trained(self) -> tuple[str, ...]:
        """Floats that could have been differentiated by, and running statistics."""
        known = (*self.candidates.all, *self.candidates.statistics)
        return tuple(name for name in known if name not in set(self.wrt))

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {
            "schema": SCHEMA,
            "loss": self.loss,
            "class_axis": self.class_axis,
            "wrt": list(self.wrt),
            "optimizer": self.options.optimizer,
            "checkpoints": self.options.checkpoints,
            "scan_recompute": self.options.scan_recompute,
            "scans": [pair.as_json(self.dims) for pair in self.scans],
            "not_trained": list(self.not_trained),
            "running_statistics": dict(self.statistics.renewed),
            "new_values": dict(self.new_values),
            "notes": list(self.notes),
            "nodes": {str(phase): count for phase, count in self.nodes.items()},
            "new_inputs": list(self.new_inputs),
            "new_outputs": list(self.new_outputs),
            "weights": self.placement.how,
            "output": str(self.output) if self.output is not None else None,
        }


def gradients(
    model: onnx.ModelProto | Path | str,
    ys: str | Sequence[str],
    xs: str | Sequence[str],
    grad_ys: Seed | Sequence[Seed] = None,
    checkpoints: Checkpoints | None = None,
    dims: Mapping[str, int] | None = None,
    scan_recompute: str | Sequence[str] = "none",
) -> onnx.ModelProto:
    """``model`` with further outputs ``<x>_grad``: the gradients of the sum of ``ys`` by each x.

    Args:
        model: a forward graph or its path; it is not changed.
        ys: names of float tensors.
        xs: names of float tensors; initializers among them become graph inputs with a default.
        grad_ys: what each y's gradient is (an array, or the name of a tensor, which becomes a graph
            input if there is none of that name); default: ones.
        checkpoints: ``memory``, ``speed``, ``collection`` or a list of names: everything else is
            recomputed in the backward part. None: nothing is.
        dims: values for symbolic dimensions, which checkpoints need.
        scan_recompute: what the backward of a Scan, LSTM, GRU or RNN makes again at every step
            instead of storing it: ``none``, ``all`` (states alone are stored), ``auto`` (what takes
            no matrix product, so that the fewest bytes are stored), or names of cell tensors.

    Raises:
        InfeasibleError: with the checkpoints the graph would need more memory than without.
        ModelError: an operator on the way has no gradient; a y does not depend on the xs, or the ys
            do not depend on an x.
        UsageError: a name is not in the graph, or not a float tensor.
    """
    path = Path("model.onnx") if isinstance(model, onnx.ModelProto) else Path(model)
    proto = model if isinstance(model, onnx.ModelProto) else read_model(path)
    require_differentiable(proto)
    seeds = (grad_ys,) if not isinstance(grad_ys, list | tuple) else tuple(grad_ys)
    if grad_ys is None:
        seeds = ()
    again = scan_recompute if isinstance(scan_recompute, str) else "+".join(scan_recompute)
    request = Request(_names(ys), _names(xs), seeds, again)
    flat = _flat(proto)
    result = _finished(build_gradients(flat, request))
    return _checkpointed(result, path, checkpoints, dims or {}, None)


def _flat(model: onnx.ModelProto) -> onnx.ModelProto:
    """A flat copy whose stated shapes are those that its inputs make.

    Raises:
        ModelError: see :func:`~memplan.autodiff.forward.annotate.flat_copy` and
            :func:`~memplan.shapes.checks.check_stated`.
    """
    flat = flat_copy(model)
    check_stated(flat, stated_types(flat.graph))
    return flat


def grad(
    path: Model,
    options: GradOptions | str,
    output: Path | str | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    force: bool = False,
) -> TrainingGraph:
    """Differentiate the loss of the forward graph in ``path``.

    Args:
        path: a forward graph: a path or a ``ModelProto``.
        options: the loss, and what to differentiate by; or the name of the loss.
        output: where to write; None: nowhere.
        dims: values for symbolic dimensions, which checkpoints need; the file keeps its symbols.
        force: overwrite ``output``.

    Raises:
        InfeasibleError: with the checkpoints the graph would need more memory than without.
        ModelError: the model cannot be read or differentiated; the loss is no scalar.
        UsageError: bad option or output path.
    """
    if not isinstance(options, GradOptions):
        options = GradOptions(loss=options)
    target = Path(output) if output is not None else None
    with as_file(path) as file:
        found = _grad(file, options, target, dims or {}, force)
    return replace(found, path=shown_path(path))


def _grad(
    path: Path, options: GradOptions, output: Path | None, dims: Mapping[str, int], force: bool
) -> TrainingGraph:
    """The same for a file."""
    if output is not None:
        check_target(output, force, path)
    optimizer = parse_optimizer(options.optimizer)
    model = read_model(path)
    placement = NO_WEIGHTS
    if output is not None:
        placement = plan_weights(model, path, output, options.weights, force)
    require_differentiable(model)
    flat = _flat(model)
    loss, class_axis = _loss(flat, options)
    statistics = Statistics() if options.forward_only else renew_statistics(flat.graph)
    types = dict(emitter_for(flat, ()).types)
    _check_loss(loss, flat.graph, types.get(loss, UNKNOWN))
    candidates = find_candidates(flat.graph, types, [loss], statistics.names)
    wrt: tuple[str, ...] = ()
    if options.forward_only:
        result = flat
    else:
        wrt = choose(candidates, options.wrt)
        request = Request((loss,), wrt, (), options.scan_recompute)
        result = build_gradients(flat, request, optimizer or gradient_outputs)
    _require_output(result.graph, loss, types[loss].dtype)
    result = _finished(result)
    if not options.forward_only:
        result = _checkpointed(result, path, options.checkpoints, dims, loss)
    state = _new_values(result.graph, statistics)
    if state:
        set_metadata(result, {**get_metadata(result), NEW_VALUES: state})
    if output is not None:
        write_with_weights(result, path, output, placement, force=force)
    given = {value.name for value in (*model.graph.input, *model.graph.output)}
    return TrainingGraph(
        path=path,
        output=output,
        options=options,
        loss=loss,
        wrt=wrt,
        candidates=candidates,
        model=result,
        new_inputs=tuple(v.name for v in result.graph.input if v.name not in given),
        new_outputs=tuple(v.name for v in result.graph.output if v.name not in given),
        class_axis=class_axis,
        scans=scan_layers(result),
        dims=dims,
        new_values=state,
        statistics=statistics,
        notes=(
            *statistics.notes,
            *notes_on_logits(model.graph, options.loss, options.logits),
            *notes_on_sharing(flat.graph, wrt),
        ),
        placement=placement,
    )


def _new_values(graph: onnx.GraphProto, statistics: Statistics) -> dict[str, str]:
    """Graph output → the graph input whose value it is in the next step."""
    inputs = {value.name for value in graph.input}
    renewed = {new: old for old, new in statistics.renewed.items()}
    found = {}
    for value in graph.output:
        old = renewed.get(value.name, value.name.removesuffix("_new"))
        if old != value.name and old in inputs:
            found[value.name] = old
    return found


def _loss(flat: onnx.ModelProto, options: GradOptions) -> tuple[str, int | None]:
    """The loss's name, built first if a kind is named, and the axis of its classes.

    Raises:
        ModelError, UsageError: see :func:`memplan.autodiff.losses.add_loss`.
    """
    if options.logits is None:
        if options.class_axis is not None:
            raise UsageError("--class-axis is for a loss that is built", "give --logits, too")
        if options.loss in LOSSES and not _computed(flat.graph, options.loss):
            raise UsageError(
                f"--loss {options.loss} is built behind logits or predictions",
                "name them: --logits NAME",
            )
        return options.loss, None
    if options.loss not in LOSSES:
        raise UsageError(
            f"--loss {options.loss}: --logits is for losses that are built",
            "those are " + ", ".join(LOSSES),
        )
    built = add_loss(flat, options.loss, options.logits, options.class_axis)
    return built.loss, built.class_axis


def _computed(graph: onnx.GraphProto, name: str) -> bool:
    return any(name in node.output for node in graph.node)


def _checkpointed(
    model: onnx.ModelProto,
    path: Path,
    checkpoints: Checkpoints | None,
    dims: Mapping[str, int],
    loss: str | None,
) -> onnx.ModelProto:
    if checkpoints is None or checkpoints == "none":
        return model
    from memplan.api.grad.checkpoints import with_checkpoints  # the planner is slow to import

    return with_checkpoints(model, path, checkpoints, dims, loss)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_loss(loss: str, graph: onnx.GraphProto, found: TensorType) -> None:
    """Check that the loss is a float tensor that the graph computes, with one element.

    Raises:
        ModelError: it is not.
    """
    if not _computed(graph, loss):
        outputs = ", ".join(value.name for value in graph.output[:8])
        raise ModelError(
            f"--loss {loss}: no node of the graph computes it", f"graph outputs: {outputs}"
        )
    if found.elements != 1 or not found.is_float:
        raise ModelError(
            f"the loss '{loss}' is not a float scalar",
            "reduce it first, for example by ReduceMean; or let --loss cross-entropy or mse build "
            "one behind --logits; memplan.gradients takes tensors of any shape",
        )


def _require_output(graph: onnx.GraphProto, name: str, dtype: int) -> None:
    """Make the loss a graph output, as the first, if it is none."""
    if any(value.name == name for value in graph.output):
        return
    rest = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in graph.output]
    del graph.output[:]
    graph.output.append(onnx.helper.make_tensor_value_info(name, dtype, None))
    graph.output.extend(rest)
    kept = [value for value in graph.value_info if value.name != name]
    for value in graph.value_info:
        if value.name == name:
            graph.output[0].CopyFrom(value)
    copies = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in kept]
    del graph.value_info[:]
    graph.value_info.extend(copies)


def _finished(model: onnx.ModelProto) -> onnx.ModelProto:
    """What is left to do on a training graph: function operators that no runtime has a kernel for
    are inlined, so that its order stays the file's.

    Raises:
        MemplanError: the ONNX checker refuses the result; our bug.
    """
    model, _ = inline_functions(model)
    name_nodes(model.graph)
    set_metadata(model, {})
    fault = find_fault(model)
    if fault is not None:
        raise MemplanError(
            f"the training graph was rejected: {fault}",
            "nothing was written; please report this with the model",
        )
    return model
