"""Chrome trace (chrome://tracing, ui.perfetto.dev): nodes as slices, bytes per class as counters.

Format: "Trace Event Format" of the Chromium project, JSON object form. Time is not time here: one
step of the schedule lasts one microsecond, which the track names say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np

from memplan.api.analysis import Analysis
from memplan.simulate.allocation import is_resident
from memplan.simulate.explain import Explainer, TensorClass
from memplan.simulate.timeline import Bytes
from memplan.units import format_bytes

_PID = 1
_NODE_TRACK = 1


def chrome_trace(analysis: Analysis) -> str:
    """The analysis as a Chrome trace, JSON text.

    One complete event (``ph: "X"``) per node, and one counter (``ph: "C"``) per tensor class with
    an event wherever its bytes change. Timestamps are step indices in microseconds.
    """
    events = [*_metadata(analysis), *_nodes(analysis), *_counters(analysis)]
    timeline = analysis.timeline
    return json.dumps(
        {
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "otherData": {
                "model": str(analysis.path),
                "time": "1 µs = 1 step of the schedule; no time was measured",
                "peak_bytes": timeline.peak_bytes,
                "peak_step": timeline.peak_step,
            },
        },
        separators=(",", ":"),
    )


def class_series(explainer: Explainer) -> dict[TensorClass, Bytes]:
    """Bytes per class in memory at every step; classes that are never there are left out.

    The classes of a step sum to the dynamic and the resident bytes of the timeline. Bytes inside
    control-flow bodies count as activations, as in :meth:`Explainer.by_class`.
    """
    timeline = explainer.timeline
    steps = len(timeline.order)
    change = {name: np.zeros(steps + 1, dtype=np.int64) for name in TensorClass}
    for tensor in timeline.graph.tensors:
        if is_resident(tensor):
            change[explainer.class_of(tensor)][0] += tensor.nbytes
    for buffer in timeline.allocation.buffers:
        delta = change[explainer.buffer_class(buffer)]
        delta[buffer.birth] += buffer.nbytes
        delta[buffer.death] -= buffer.nbytes
    series = {name: np.cumsum(delta)[:steps] for name, delta in change.items()}
    counted = np.zeros(steps, dtype=np.int64)
    for values in series.values():
        counted += values
    series[TensorClass.ACTIVATION] += timeline.dynamic + timeline.resident_bytes - counted
    return {name: values for name, values in series.items() if values.any()}


def _metadata(analysis: Analysis) -> Iterator[Mapping[str, object]]:
    peak = format_bytes(analysis.timeline.peak_bytes)
    names = {
        "process_name": f"memplan: {analysis.path.name}, predicted peak {peak}, 1 µs = 1 step",
        "thread_name": "nodes in execution order (1 µs = 1 step, not time)",
    }
    for kind, name in names.items():
        yield {
            "name": kind,
            "ph": "M",
            "pid": _PID,
            "tid": _NODE_TRACK,
            "args": {"name": name},
        }


def _nodes(analysis: Analysis) -> Iterator[Mapping[str, object]]:
    timeline, graph = analysis.timeline, analysis.graph
    for step, index in enumerate(timeline.order):
        node = graph.nodes[index]
        yield {
            "name": node.name or node.op,
            "cat": str(analysis.phases.of[index]),
            "ph": "X",
            "ts": step,
            "dur": 1,
            "pid": _PID,
            "tid": _NODE_TRACK,
            "args": {
                "op": node.op,
                "module": analysis.modules[index],
                "output_bytes": sum(graph.tensors[t].nbytes for t in node.writes),
                "workspace_bytes": int(timeline.workspace[step]),
                "total_bytes": int(timeline.dynamic[step]) + timeline.resident_bytes,
            },
        }


def _counters(analysis: Analysis) -> Iterator[Mapping[str, object]]:
    for name, values in class_series(analysis.explainer).items():
        changed = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
        for step, value in zip(changed.tolist(), values[changed].tolist(), strict=True):
            yield {
                "name": str(name),
                "ph": "C",
                "ts": step,
                "pid": _PID,
                "args": {"bytes": value},
            }
