"""Which of many changes are made: all but those that raise the peak, found in few simulations."""

from functools import partial
from typing import Any

import pytest
from onnx import helper

from helpers.graphs import TUNED, open_text
from memplan.passes import change
from memplan.passes.change import Change, with_most
from memplan.passes.surgery import ModelEdit
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.timeline import simulate

FEW, MANY = 64, 512


def copied(name: str, size: int, reader: int, edit: ModelEdit) -> None:
    """Let ``reader`` read a copy, so that both are in memory at once."""
    label = edit.fresh(f"{name}/copy")
    edit.types[label] = TensorType(1, (size,))
    edit.put_before(reader, helper.make_node("Neg", [name], [label], name=label))
    edit.node(reader).input[0] = label


@pytest.mark.parametrize(
    ("large", "tries"),
    [
        ({}, 1),
        ({3}, 3),  # all; all but the one; the one
        ({3, 17, 30}, 7),  # three together are halved
        (set(range(32)), 63),  # every half holds a bad one
    ],
)
def test_a_bad_change_does_not_spoil_the_others(
    large: set[int], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [MANY if k in large else FEW for k in range(32)]
    lines = [
        f"[e{k}] e{k} = Expand(x, n{k}) [s{k}] s{k} = ReduceSum <keepdims: int = 0>(e{k})"
        for k in range(32)
    ]
    shapes = ", ".join(f"int64[1] n{k} = {{{size}}}" for k, size in enumerate(sizes))
    outputs = ", ".join(f"float s{k}" for k in range(32))
    # The peak: two of 160 numbers, which two of 64 do not reach, but two of 512 do.
    text = f"""g (float[1] x, float[160] z) => ({outputs}, float s) <{shapes}>
      {{ {" ".join(lines)} [a] a = Exp(z) [b] b = Exp(a) [c] c = Add(a, b)
         [s] s = ReduceSum <keepdims: int = 0>(c) }}"""
    model = open_text(text)
    timeline = simulate(model.graph, TUNED)
    number = {node.name: node.id for node in model.graph.nodes}
    changes: list[Change] = [
        partial(copied, f"e{k}", size, number[f"s{k}"]) for k, size in enumerate(sizes)
    ]
    calls = []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return simulate(*given)

    monkeypatch.setattr(change, "simulate", counted)
    found = with_most(model, timeline, changes)
    assert len(calls) == tries
    made = 0 if found is None else found[2]
    assert made == 32 - len(large)
