"""Runs under the runtime's profiler: memory and place of every node. Used in child processes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.providers import PROVIDERS
from memplan.runtime.archive import digests, load_arrays, save_arrays
from memplan.runtime.messages import Draw, Measurement, NodeRun, RunRequest
from memplan.runtime.sessions import open_session, run_step
from memplan.runtime.times import Event, node_name, split_runs

Feeds = dict[str, npt.NDArray[np.generic]]
Keep = Callable[[list[Any]], None]
Step = Callable[[Feeds], list[Any]]


def save_outputs(path: Path, outputs: Sequence[Any]) -> None:
    """Save outputs by their place: ``o0``, ``o1``, ..."""
    save_arrays(path, {f"o{k}": value for k, value in enumerate(outputs)})


def profiled_runs(
    model: str | bytes,
    request: RunRequest,
    feeds: Feeds,
    options: Any,
    keep: Keep = lambda outputs: None,
    further: Sequence[Draw] = (),
    more: Mapping[str, str] | None = None,
) -> Measurement:
    """Two runs under the profiler, and one more for every further draw.

    Args:
        model: a path, or a model as bytes.
        request: provider and its options, seed, threads.
        feeds: one array per graph input.
        options: ``onnxruntime.SessionOptions``, which get a profile file.
        keep: is given the outputs of the first run; they must be gone before the second, or they
            would count as in use there. Of the second run's, digests are kept.
        further: draws for the runs after the second. The first that fails ends them.
        more: further options of the provider.

    Figures are of the memory of the provider that was asked for.
    """
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        session = open_session(model, request, options, more=more)
        names = [value.name for value in session.get_outputs()]
        step = _stepper(session, request)
        keep(step(feeds))
        second = digests(step(feeds))
        done, failed = _run_further(step, further)
        events = json.loads(Path(session.end_profiling()).read_text())
    first = split_runs(events)[0][1]
    own = own_nodes(first, request.provider)
    dynamic = dynamic_peaks(events, request.provider)[: 2 + done]
    return Measurement(
        output_names=tuple(names),
        nodes=tuple(_node_run(event) for event in first),
        base_bytes=_base(own),
        dynamic_bytes=dynamic[0],
        second_run_dynamic_bytes=dynamic[1],
        arena_bytes=max((int(e["args"].get("mem_arena_held", 0)) for e in own), default=0),
        further_dynamic_bytes=tuple(dynamic[2:]),
        second_run_digests=second,
        failed=failed,
    )


def _stepper(session: Any, request: RunRequest) -> Step:
    if not request.is_bound:
        return partial(run_step, session)
    from memplan.runtime.bound import run_bound

    return lambda feeds: run_bound(session, feeds, request)


def _run_further(step: Step, further: Sequence[Draw]) -> tuple[int, str]:
    """How many draws ran, and why the next one did not."""
    for count, draw in enumerate(further):
        try:
            outputs = step(load_arrays(draw.inputs))
        except Exception as error:  # the runtime's own; whoever asked judges what it means
            return count, " ".join(str(error).split()) or type(error).__name__
        save_outputs(draw.outputs, outputs)
        del outputs
    return len(further), ""


def dynamic_peaks(events: Sequence[Event], provider: str) -> list[int]:
    """Dynamic bytes at the peak of every run that ended, from the events of a profile."""
    runs = [own_nodes(nodes, provider) for _, nodes in split_runs(events)]
    base = _base(runs[0]) if runs else 0
    return [_peak(run) - base for run in runs]


def own_nodes(nodes: Sequence[Event], provider: str) -> list[Event]:
    """The events of nodes that the provider ran: others report another memory."""
    here = PROVIDERS[provider].runtime_name
    return [event for event in nodes if event["args"].get("provider", here) == here]


def _node_run(event: Event) -> NodeRun:
    arguments = event["args"]
    return NodeRun(
        name=node_name(event),
        op=arguments.get("op_name", ""),
        provider=arguments.get("provider", ""),
        nbytes=_in_use(event),
    )


def _in_use(event: Event) -> int:
    """Requested bytes in use when a node ended."""
    return int(event["args"].get("mem_bytes_requested_in_use", 0))


def _base(events: Sequence[Event]) -> int:
    """Bytes in use before the first node of a run: small initializers.

    The runtime keeps initializers of 128 B and more outside the arena that it profiles. Nodes of a
    loop's body are listed before the loop, so the least that was in use before any node counts.
    """
    return min(
        (_in_use(e) - int(e["args"].get("mem_requested_in_use_delta", 0)) for e in events),
        default=0,
    )


def _peak(events: Sequence[Event]) -> int:
    return max(map(_in_use, events), default=0)
