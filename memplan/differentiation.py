"""``grad``: a forward graph → a training graph. :func:`gradients` is the same for Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from memplan.autodiff.builder import Request, Seed, build_gradients
from memplan.autodiff.expansions import emitter_for
from memplan.autodiff.forward import flat_copy
from memplan.autodiff.parameters import Candidates, choose, find_candidates
from memplan.autodiff.types import UNKNOWN
from memplan.errors import MemplanError, ModelError, UsageError
from memplan.graph.phases import KEY as PHASE_KEY
from memplan.graph.types import Phase
from memplan.model.external import repoint_external_data
from memplan.model.faults import find_fault
from memplan.model.metadata import node_metadata, set_metadata
from memplan.model.prepare import inline_functions, name_nodes
from memplan.model.read import read_model
from memplan.model.write import check_output, write_model

SCHEMA = "memplan.grad/1"


@dataclass(frozen=True, slots=True)
class GradOptions:
    """How to differentiate. ``wrt`` are globs of tensor names; none: what looks trained."""

    loss: str
    wrt: tuple[str, ...] = ()
    forward_only: bool = False


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """The answer of ``grad``; ``output`` is None if nothing was written."""

    path: Path
    output: Path | None
    options: GradOptions
    loss: str
    wrt: tuple[str, ...]
    candidates: Candidates
    model: onnx.ModelProto
    new_inputs: tuple[str, ...]
    new_outputs: tuple[str, ...]

    @property
    def nodes(self) -> Mapping[Phase, int]:
        """How many nodes each part has; the loss counts as forward."""
        counts = dict.fromkeys((Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE), 0)
        for node in self.model.graph.node:
            counts[Phase(node_metadata(node).get(PHASE_KEY, Phase.FORWARD))] += 1
        return counts

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {
            "schema": SCHEMA,
            "loss": self.loss,
            "wrt": list(self.wrt),
            "not_trained": [n for n in self.candidates.all if n not in self.wrt],
            "nodes": {str(phase): count for phase, count in self.nodes.items()},
            "new_inputs": list(self.new_inputs),
            "new_outputs": list(self.new_outputs),
            "output": str(self.output) if self.output is not None else None,
        }


def gradients(
    model: onnx.ModelProto | Path | str,
    ys: str | Sequence[str],
    xs: str | Sequence[str],
    grad_ys: Seed | Sequence[Seed] = None,
) -> onnx.ModelProto:
    """``model`` with further outputs ``<x>_grad``: the gradients of the sum of ``ys`` by each x.

    Args:
        model: a forward graph or its path; it is not changed.
        ys: names of float tensors.
        xs: names of float tensors; initializers among them become graph inputs with a default.
        grad_ys: what each y's gradient is (an array, or the name of a tensor, which becomes a graph
            input if there is none of that name); default: ones.

    Raises:
        ModelError: an operator on the way has no gradient; a y does not depend on the xs, or the ys
            do not depend on an x.
        UsageError: a name is not in the graph, or not a float tensor.
    """
    proto = model if isinstance(model, onnx.ModelProto) else read_model(Path(model))
    seeds = (grad_ys,) if not isinstance(grad_ys, list | tuple) else tuple(grad_ys)
    if grad_ys is None:
        seeds = ()
    return _finished(build_gradients(proto, Request(_names(ys), _names(xs), seeds)))


def grad(
    path: Path, options: GradOptions, output: Path | None = None, *, force: bool = False
) -> TrainingGraph:
    """Differentiate the loss of the forward graph in ``path``.

    Args:
        path: an ONNX file.
        options: the loss, and what to differentiate by.
        output: where to write; None: nowhere.
        force: overwrite ``output``.

    Raises:
        ModelError: the model cannot be read or differentiated; the loss is no scalar.
        UsageError: bad option or output path.
    """
    if output is not None:
        check_output(output, force)
        if output.exists() and output.samefile(path):
            raise UsageError(f"{output} is the input model", "choose another output")
    model = read_model(path)
    flat = flat_copy(model)
    emitter = emitter_for(flat, ())
    _check_loss(options.loss, flat.graph, emitter.value(options.loss).type.elements)
    candidates = find_candidates(flat.graph, dict(emitter.types), [options.loss])
    wrt = choose(candidates, options.wrt)
    result = flat
    if not options.forward_only:
        result = build_gradients(flat, Request((options.loss,), wrt))
    _require_output(result.graph, options.loss, emitter.types.get(options.loss, UNKNOWN).dtype)
    result = _finished(result)
    if output is not None:
        repoint_external_data(result, path, output)
        write_model(result, output, force=force)
    given = {value.name for value in (*model.graph.input, *model.graph.output)}
    return TrainingGraph(
        path=path,
        output=output,
        options=options,
        loss=options.loss,
        wrt=wrt,
        candidates=candidates,
        model=result,
        new_inputs=tuple(v.name for v in result.graph.input if v.name not in given),
        new_outputs=tuple(v.name for v in result.graph.output if v.name not in given),
    )


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_loss(loss: str, graph: onnx.GraphProto, elements: int | None) -> None:
    """Check that the loss is a tensor of the graph with one element.

    Raises:
        ModelError: it is not.
    """
    made = {name for node in graph.node for name in node.output if name}
    if loss not in made:
        outputs = ", ".join(value.name for value in graph.output[:8])
        raise ModelError(
            f"--loss {loss}: no node of the graph computes it", f"graph outputs: {outputs}"
        )
    if elements != 1:
        raise ModelError(
            f"the loss '{loss}' is no scalar",
            "reduce it first, for example by ReduceMean; memplan.gradients takes any tensor",
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
