"""LSTM, GRU and RNN of ATen → the operators of ONNX of the same names.

Weights are reordered in the graph, so that they stay PyTorch's parameters. Sizes come from the
weights: those of the states may depend on a dynamic batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from onnxscript import opset20 as op

aten = torch.ops.aten

_LSTM_GATES = (0, 3, 1, 2)  # PyTorch's input, forget, cell, output → ONNX's input, output, ...
_GRU_GATES = (1, 0, 2)  # reset, update, new → update, reset, new


@dataclass(frozen=True, slots=True)
class _Layers:
    """The settings that all of them share; ``gates`` is ONNX's order of PyTorch's gates."""

    kind: str
    gates: tuple[int, ...]
    attributes: Mapping[str, Any]
    params: Sequence[Any]
    has_biases: bool
    count: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def run(self, x: Any, states: Sequence[Any]) -> tuple[Any, ...]:
        """The output, and the last states (one tensor per kind of state)."""
        each = 4 if self.has_biases else 2
        if len(self.params) != each * self.count * self.directions:
            raise NotImplementedError(f"{self.kind} with projections (proj_size)")
        if self.batch_first:
            x = op.Transpose(x, perm=[1, 0, 2])
        last: list[list[Any]] = [[] for _ in states]
        for layer in range(self.count):
            if layer and self.dropout > 0.0 and self.train:
                x, _ = op.Dropout(x, self.dropout, True)
            x, final = self._layer(layer, x, states)
            for found, value in zip(last, final, strict=True):
                found.append(value)
        if self.batch_first:
            x = op.Transpose(x, perm=[1, 0, 2])
        joined = [op.Concat(*values, axis=0) if len(values) > 1 else values[0] for values in last]
        return (x, *joined)

    def _layer(self, layer: int, x: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        first = layer * self.directions
        weights = [self._direction(first + k) for k in range(self.directions)]
        stacked = [
            op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]
            for parts in zip(*weights, strict=True)
        ]
        initial = [self._initial(state, first) for state in states]
        names = ("initial_h", "initial_c")
        hidden = int(self.params[1].shape[1])
        y, *final = getattr(op, self.kind)(
            x,
            *stacked,
            **dict(zip(names, initial, strict=False)),
            hidden_size=hidden,
            **self._attributes(),
        )
        if not self.bidirectional:
            return op.Squeeze(y, [1]), final
        apart = op.Transpose(y, perm=[0, 2, 1, 3])
        return op.Reshape(apart, [0, 0, 2 * hidden]), final

    def _initial(self, state: Any, first: int) -> Any:
        if self.count == 1:
            return state
        return op.Slice(state, [first], [first + self.directions], [0])

    def _direction(self, index: int) -> list[Any]:
        """Weights of one direction of one layer, with a leading axis for the direction."""
        each = 4 if self.has_biases else 2
        given = list(self.params[index * each : (index + 1) * each])
        ordered = [self._ordered(value) for value in given]
        if not self.has_biases:
            return [op.Unsqueeze(value, [0]) for value in ordered]
        bias = op.Concat(*ordered[2:], axis=0)
        return [op.Unsqueeze(value, [0]) for value in (*ordered[:2], bias)]

    def _ordered(self, value: Any) -> Any:
        """The rows of a weight in ONNX's order of gates."""
        if len(self.gates) == 1:
            return value
        size = int(value.shape[0]) // len(self.gates)
        parts = [op.Slice(value, [k * size], [(k + 1) * size], [0]) for k in self.gates]
        return op.Concat(*parts, axis=0)

    def _attributes(self) -> dict[str, Any]:
        if self.bidirectional:
            found = {"direction": "bidirectional", **self.attributes}
            if "activations" in found:
                found["activations"] = found["activations"] * 2
            return found
        return {"direction": "forward", **self.attributes}


def _recurrent(kind: str, gates: tuple[int, ...], **attributes: Any) -> Callable[..., Any]:
    """The translation of an operator of ATen, whose settings are those of :class:`_Layers`."""

    def translated(x: Any, hx: Any, *settings: Any) -> tuple[Any, ...]:
        states = hx if kind == "LSTM" else [hx]
        return _Layers(kind, gates, attributes, *settings).run(x, states)

    return translated


RECURRENT: Mapping[Any, Callable[..., Any]] = {
    aten.lstm.input: _recurrent("LSTM", _LSTM_GATES),
    aten.gru.input: _recurrent("GRU", _GRU_GATES, linear_before_reset=1),  # PyTorch's formula
    aten.rnn_tanh.input: _recurrent("RNN", (0,)),
    aten.rnn_relu.input: _recurrent("RNN", (0,), activations=["Relu"]),
}
