"""Recurrent layers: a step of the kernel for every time, both directions.

Scratch was measured by ``tools/probe_ort``; every formula is in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from memplan.ops.facets import Operator
from memplan.ops.instance import Instance


def _work(instance: Instance) -> float:
    """Multiply-adds: time × batch × the elements of input and recurrence weights."""
    weights = prod(instance.shape(1)) + prod(instance.shape(2))
    return float(prod(instance.shape(0)[:2])) * weights


def _flow(instance: Instance) -> tuple[int, int, int, int]:
    """Sequence length, batch size, input size and hidden size of a recurrent instance."""
    x, recurrent = instance.inputs[0], instance.inputs[2]
    assert x is not None
    assert recurrent is not None
    return x.shape[0], x.shape[1], x.shape[2], recurrent.shape[-1]


def _reversal(instance: Instance) -> int:
    """Elements of the reversed copies of input and output, for the backward direction."""
    steps, batch, width, hidden = _flow(instance)
    if instance.text("direction", "forward") == "forward":
        return 0
    return steps * batch * (width + hidden)


def _directions(instance: Instance) -> int:
    return 2 if instance.text("direction", "forward") == "bidirectional" else 1


def _rnn(instance: Instance) -> int | None:
    """The input product of one direction, and Y itself when it is not an output (rnn.cc)."""
    steps, batch, _, hidden = _flow(instance)
    frame = steps * batch * hidden
    return 4 * (frame + (frame * _directions(instance) if instance.output(0) is None else 0))


def _lstm(instance: Instance) -> int | None:
    """Per direction: 2 vectors, 3 states, 4 gates of the whole sequence, 4 biases, the lengths.

    Plus the reversed copies of the backward direction and the states that are not outputs.
    Source: uni_directional_lstm.cc, AllocateBuffers (peephole weights are used in place).
    """
    steps, batch, _, hidden = _flow(instance)
    state = batch * hidden
    each = 2 * hidden + 3 * state + 4 * steps * state
    each += 4 * hidden if instance.input(3) is not None else 0
    each += batch if instance.input(4) is None else 0
    absent = sum(state for index in (1, 2) if instance.output(index) is None)
    return 4 * (_directions(instance) * (each + absent) + _reversal(instance))


def _gru(instance: Instance) -> int | None:
    """Per direction: 2 states, 3 gates of the whole sequence, repeated biases, the lengths.

    With `linear_before_reset` one more bias and a product. Plus the reversed copies of the
    backward direction and Y_h when it is not an output. Source: deep_cpu_gru.cc, AllocateBuffers.
    """
    steps, batch, _, hidden = _flow(instance)
    state = batch * hidden
    linear = bool(instance.integer("linear_before_reset", 0))
    each = 2 * state + 3 * steps * state + (state if linear else 0)
    each += (4 if linear else 3) * state if instance.input(3) is not None else 0
    each += batch if instance.input(4) is None else 0
    each += state if instance.output(1) is None else 0
    return 4 * (_directions(instance) * each + _reversal(instance))


OPERATORS: Mapping[str, Operator] = {
    ":RNN": Operator(work=_work, scratch=_rnn),
    ":LSTM": Operator(work=_work, scratch=_lstm, packed_inputs=(1, 2)),
    ":GRU": Operator(work=_work, scratch=_gru, packed_inputs=(1, 2)),
    "com.microsoft:DynamicQuantizeLSTM": Operator(packed_inputs=(1, 2)),
}
