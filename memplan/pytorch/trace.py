"""The user's step → torch's exported program, whose operators are functional."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import torch
from torch.export.graph_signature import ExportGraphSignature, InputKind

from memplan.errors import MemplanError, UsageError
from memplan.pytorch.custom_backward import Recorder, name_outputs, recording
from memplan.pytorch.gradient_stops import complete_stops
from memplan.pytorch.hidden_state import HiddenState
from memplan.pytorch.places import lines_told
from memplan.pytorch.prepared_step import PreparedStep, first_names
from memplan.pytorch.torch_checkpoints import marked_regions
from memplan.pytorch.torch_errors import reason_of, refusal
from memplan.pytorch.traced_calls import tracing

STORED = (InputKind.PARAMETER, InputKind.BUFFER)
_SUGGESTED = "Suggested fixes:\n"
_LIMIT = re.compile(r"(\w+) = Dim\('\w+'((?:, (?:min|max)=\d+)+)\)")
_BOUND = re.compile(r"(min|max)=(\d+)")


def export(prepared: PreparedStep, state: HiddenState) -> tuple[Any, tuple[str, ...]]:
    """The ``torch.export.ExportedProgram`` of the forward part, with backwards of the user's own,
    and what limits dynamic sizes. The step finds ``state`` in Python, and leaves it so.

    A model may limit a size, as a table of positions does. Torch then refuses, and says the limit;
    with that it is asked again.

    Raises:
        ModelError: torch.export refuses the model, or a backward cannot be recorded.
        UsageError: the loss is not a scalar, or the model fails on the batch.
    """
    limits: dict[str, dict[str, int]] = {}
    while True:
        recorder = Recorder(prepared.module)
        try:
            with recording(recorder):
                program = _exported(prepared, limits)
            break
        except MemplanError:
            raise
        except Exception as error:
            found = _limits_in(str(error))
            if found.keys() - limits.keys():
                limits = {**found, **limits}
                continue
            state.put_back()
            _require_runs(prepared)
            raise refusal("torch.export refuses the model", error, prepared.module) from error
        finally:
            state.put_back()
    _merge_tied(program, first_names(prepared.module))
    recorder.lead_through_hooks(program)
    complete_stops(program)
    name_outputs(program)
    return program, tuple(_limit_note(name, limit) for name, limit in limits.items())


def _exported(prepared: PreparedStep, limits: Mapping[str, Mapping[str, int]]) -> Any:
    names = sorted({label for axes in prepared.dynamic.values() for label in axes.values()})
    dims = {name: torch.export.Dim(name, **{"min": 1, **limits.get(name, {})}) for name in names}
    shapes = None
    if dims:
        shapes = {
            "batch": {
                name: {axis: dims[label] for axis, label in prepared.dynamic.get(name, {}).items()}
                for name in prepared.batch
            }
        }
    # Of what it refuses, torch prints the graph so far to stderr.
    with quiet(), redirect_stderr(StringIO()), tracing(), marked_regions(), lines_told():
        return torch.export.export(prepared.module, (dict(prepared.batch),), dynamic_shapes=shapes)


def _limits_in(message: str) -> dict[str, dict[str, int]]:
    """The limits of dynamic sizes that torch suggests; none where it suggests other things, too."""
    _, _, text = message.partition(_SUGGESTED)
    lines = [line.strip() for line in text.split("\n\n")[0].splitlines() if line.strip()]
    found = [_LIMIT.fullmatch(line) for line in lines]
    return {
        match[1]: {key: int(value) for key, value in _BOUND.findall(match[2])}
        for match in found
        if match and all(found)
    }


def _limit_note(name: str, limit: Mapping[str, int]) -> str:
    said = [f"at least {limit['min']}"] if "min" in limit else []
    said += [f"at most {limit['max']}"] if "max" in limit else []
    return f"the dynamic dimension '{name}' is {' and '.join(said)}: the model limits it"


def _merge_tied(program: Any, names: Mapping[str, str]) -> None:
    """Let one input stand for a parameter that has several names, in place."""
    places = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    kept: dict[str, Any] = {}
    specs = []
    for spec in program.graph_signature.input_specs:
        name = names.get(str(spec.target)) if spec.kind in STORED else None
        if name is not None and name in kept:
            places[spec.arg.name].replace_all_uses_with(kept[name])
            program.graph.erase_node(places[spec.arg.name])
            continue
        if name is not None:
            kept[name] = places[spec.arg.name]
        specs.append(spec)
    if len(specs) < len(program.graph_signature.input_specs):
        program.graph_module.recompile()
        outputs = list(program.graph_signature.output_specs)
        program._graph_signature = ExportGraphSignature(specs, outputs)


def _require_runs(prepared: PreparedStep) -> None:
    """Tell a model that fails by itself from one that cannot be exported."""
    module = prepared.module
    kept = [(held, held.detach().clone()) for held in (*module.parameters(), *module.buffers())]
    try:
        # A step may take a gradient by itself.
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            prepared.module(dict(prepared.batch))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"the model fails on the batch: {reason_of(error)}",
            "call the loss function with this batch; the code is yours",
        ) from error
    finally:
        for held, copy in kept:
            held.data.copy_(copy)


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's warnings and log lines: what concerns the user is said by us."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)
