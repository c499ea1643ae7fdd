"""What is written over what: the decision, pair by pair, for the session that is really loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from memplan.equivalence.in_place import unsafe_pairs
from memplan.errors import MemplanError, RuntimeUnavailableError
from memplan.ops.book import MOVING
from memplan.proto.nodes import operator_key
from memplan.providers import on_host
from memplan.runtime.messages import RunRequest
from memplan.runtime.run_failures import explain
from memplan.simulate.state_memory import EARLY
from memplan.simulate.unrunnable import require_runs
from memplan.training.guard import with_guard, with_loss_before
from memplan.training.predict import bytes_between, predict
from memplan.training.step_file import opened_step

PLAIN = "the session decides on the order of its nodes"
UNGUARDED = "it must be undone if the loss is not a number, and nothing in this graph can say so"
NO_GUARD = "on a GPU nothing guards the state from a loss that is not a number; keep checkpoints"


_SAME_VALUES = MOVING | {":Cast"}


@dataclass(frozen=True, slots=True)
class Placing:
    """Where new values go.

    ``model`` is what to load. ``in_place``: output → the input over which it is written;
    ``second``: output → the input with which its buffer changes places, and ``reasons`` why.
    ``guard``: the node that stops a run whose loss is not a number; ``keeps``: whether the state is
    as it was after such a run.
    """

    model: onnx.ModelProto
    in_place: Mapping[str, str]
    second: Mapping[str, str]
    reasons: Mapping[str, str] = field(default_factory=dict)
    guard: str = ""
    keeps: bool = True


def place(
    model: onnx.ModelProto,
    pairs: Mapping[str, str],
    loss: str | None,
    request: RunRequest,
    folder: Path | None,
    *,
    in_place: bool = True,
    guarded: bool = True,
) -> Placing:
    """Decide for every pair, on the nodes that the session holds once it has loaded the model.

    Args:
        model: the step without defaults of its state.
        pairs: output → the input whose next value it is.
        loss: the loss output, if there is one.
        request: kind of session and provider.
        folder: where external data lies.
        in_place: whether anything may be written in place.
        guarded: whether the state must survive a loss that is not a number; on a GPU it does not.

    Raises:
        RuntimeUnavailableError: the runtime refuses the model, or would fail at a node.
    """
    if not on_host(request.provider):
        graph = opened_step(model, Path("step.onnx"), request.dims).graph
        require_runs(graph, request.provider)
    if not pairs or not in_place or request.session == "default":
        why = PLAIN if in_place else "it was asked for"
        return Placing(model, {}, pairs, dict.fromkeys(pairs, why))
    reasons = unsafe_pairs(_loaded(model, request, folder), pairs)
    safe = {output: given for output, given in pairs.items() if output not in reasons}
    guard = ""
    if guarded and loss is not None and safe and on_host(request.provider):
        model = _with_loss_early(model, loss, pairs, safe, reasons, request)
        found = with_guard(model, loss, safe, bytes_between(model, pairs, reasons, request))
        if found is None:
            reasons |= dict.fromkeys(safe, UNGUARDED)
        else:
            # Asked once more, of the graph with the guard in it.
            held = _loaded(found.model, request, folder)
            early = _made_before(held, found.output)
            reasons |= {o: EARLY for o in safe if o not in found.covered or o in early}
            reasons |= unsafe_pairs(held, {o: i for o, i in safe.items() if o not in reasons})
            if not pairs.keys() <= reasons.keys():
                model, guard = found.model, found.node
    own = {output: given for output, given in pairs.items() if output not in reasons}
    second = {output: given for output, given in pairs.items() if output in reasons}
    reasons = {output: reasons[output] for output in second}
    return Placing(model, own, second, reasons, guard, keeps=bool(guard) or not own)


@dataclass(frozen=True, slots=True)
class FailedNode:
    """A node in which a run failed. ``early``: nothing had been written in place before it;
    ``reads``: the inputs of the model that it reads as they are, or in another shape or type."""

    early: bool
    reads: tuple[str, ...]


def find_failed(
    placing: Placing, node: tuple[str, str], request: RunRequest, folder: Path | None
) -> FailedNode:
    """What a failure in ``node`` (operator, name) means, by the nodes that the session holds."""
    op, name = node
    nodes = _loaded(placing.model, request, folder).graph.node
    maker = {output: each for each in nodes for output in each.output}
    alike = [k for k, each in enumerate(nodes) if (each.op_type, each.name) == (op, name)]
    writers = [k for k, e in enumerate(nodes) if not placing.in_place.keys().isdisjoint(e.output)]
    early = bool(alike) and (not writers or alike[-1] < writers[0])
    found: dict[str, None] = {}
    todo = [given for k in alike for given in nodes[k].input]
    while todo:
        made = maker.get(each := todo.pop())
        if made is None:
            found.setdefault(each)
        elif operator_key(made) in _SAME_VALUES:
            todo.append(made.input[0])
    return FailedNode(early, tuple(found))


def _with_loss_early(
    model: onnx.ModelProto,
    loss: str,
    pairs: Mapping[str, str],
    safe: Mapping[str, str],
    reasons: Mapping[str, str],
    request: RunRequest,
) -> onnx.ModelProto:
    """The model with its loss before what is to be in place, where that takes no more memory."""
    moved = with_loss_before(model, loss, safe)
    if moved is model:
        return model
    try:
        before, after = (predict(m, pairs, reasons, request, request.dims) for m in (model, moved))
    except MemplanError:
        return model
    return moved if after.dynamic_bytes <= before.dynamic_bytes else model


def _made_before(held: onnx.ModelProto, check: str) -> set[str]:
    """What is made before the node that makes ``check``."""
    made: set[str] = set()
    for node in held.graph.node:
        if check in node.output:
            break
        made.update(node.output)
    return made


def _loaded(model: onnx.ModelProto, request: RunRequest, folder: Path | None) -> onnx.ModelProto:
    from memplan.runtime.loaded_order import loaded_graph  # imports onnxruntime

    try:
        return loaded_graph(model, request, folder)
    except RuntimeUnavailableError:
        raise
    except Exception as error:
        raise explain(str(error), "loading the model", request.provider) from None
