"""Shapes that ONNX's inference accepts and no kernel takes."""

from __future__ import annotations

import pytest
from onnx import helper

from memplan.errors import ModelError
from memplan.shapes.contracts import Shapes, check_contract

X = (2, 3, 8, 8)
CASES: dict[str, tuple[str, dict[str, object], Shapes, Shapes]] = {
    "scale": ("LayerNormalization", {}, [(4, 8), (8,)], [(4, 8), (7,)]),
    "axis": ("Softmax", {"axis": 1}, [(4, 8)], [(4,)]),
    "channels": ("BatchNormalization", {}, [X, *[(3,)] * 4], [X, *[(3,)] * 3, (4,)]),
    "groups": ("GroupNormalization", {"num_groups": 2}, [(1, 4, 2), (4,), (2,)], [(1, 3, 2)]),
    "slope": ("PRelu", {}, [X, (3, 1, 1)], [X, (2, 1, 1)]),
    "bounds": ("Clip", {}, [X, (), ()], [X, (5,), ()]),
    "bias": ("Gemm", {"transB": 1}, [(3, 6), (4, 6), (4,)], [(3, 6), (4, 6), (5,)]),
    "updates": ("ScatterElements", {}, [(3, 3), (2, 3), (2, 3)], [(3, 3), (2, 3), (3, 2)]),
    "slices": ("ScatterND", {}, [(4, 5), (3, 1), (3, 5)], [(4, 5), (3, 1), (3, 4)]),
    "labels": ("NegativeLogLikelihoodLoss", {}, [(3, 5), (3,), (5,)], [(3, 5), (4,), (5,)]),
    "weights": ("SoftmaxCrossEntropyLoss", {}, [(3, 5), (3,), (5,)], [(3, 5), (3,), ()]),
    "hidden": (
        "LSTM",
        {"hidden_size": 4},
        [(5, 2, 3), (1, 16, 3), (1, 16, 4), (1, 32)],
        [(5, 2, 3), (1, 16, 3), (1, 16, 4), (1, 31)],
    ),
    "state": (
        "GRU",
        {"layout": 1, "direction": "bidirectional"},
        [(2, 5, 3), (2, 12, 3), (2, 12, 4), None, None, (2, 2, 4)],
        [(2, 5, 3), (2, 12, 3), (2, 12, 4), None, None, (2, 1, 4)],
    ),
    "kernel": ("Conv", {"group": 3}, [X, (6, 1, 3, 3), (6,)], [X, (6, 3, 3, 3), (6,)]),
    "turned": ("ConvTranspose", {}, [X, (3, 2, 3, 3), (2,)], [X, (4, 2, 3, 3), (2,)]),
    "perm": ("Transpose", {"perm": [1, 0]}, [(3, 4)], [(3, 4, 5)]),
    "starts": ("Slice", {}, [X, (2,), (2,), (2,)], [X, (1, 2), (1, 2), (1, 2)]),
    "ends": ("Slice", {}, [X, (2,), (2,), (2,)], [X, (2,), (3,)]),
    "terms": ("Einsum", {"equation": "ij,jk->ik"}, [(2, 3), (3, 4)], [(2, 3, 1), (3, 4)]),
    "sums": ("Add", {}, [(4, 8, 1), (8, 5)], [(4, 8, 1), (2, 3, 4, 6)]),
    "repeats": ("Tile", {}, [(3, 4), (2,)], [(3, 4), (3,)]),
    "sides": ("Pad", {}, [(3, 4), (4,)], [(3, 4), (2,)]),
    "named sides": ("Pad", {}, [(3, 4), (2,), (), (1,)], [(3, 4), (2,), (), (2,)]),
    "ends of all axes": ("Slice", {}, [(3, 4), (1,), (1,), (1,)], [(3, 4), (1,), (2,), (1,)]),
    "too many ends": ("Slice", {}, [(3,), (1,), (1,)], [(3,), (2,), (2,)]),
    "flat ends": ("Slice", {}, [(3,), (1,), (1,)], [(3,), (), ()]),
    "scales": ("Resize", {}, [(1, 1, 4, 4), (0,), (4,)], [(1, 1, 4, 4), (0,), (2,)]),
    "sizes": (
        "Resize",
        {"axes": [2, 3]},
        [(1, 1, 4, 4), None, None, (2,)],
        [(1, 1, 4, 4), None, None, (4,)],
    ),
    "heads": (
        "Attention",
        {"q_num_heads": 4, "kv_num_heads": 2},
        [(2, 5, 32), (2, 7, 16), (2, 7, 16), (5, 7)],
        [(2, 5, 32), (2, 7, 17), (2, 7, 16)],
    ),
    "mask": (
        "Attention",
        {},
        [(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8), (6,)],
        [(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8), (5, 6)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_inputs_that_do_not_fit_are_told_with_their_shapes(case: str) -> None:
    op, attributes, right, wrong = CASES[case]
    inputs = [f"i{k}" for k in range(len(right))]
    node = helper.make_node(op, inputs, ["y"], name="n", **attributes)
    check_contract(node, right)
    check_contract(node, [None, *right[1:]])
    named = [None if s is None else tuple("N" for _ in s) for s in right]
    check_contract(node, named)
    with pytest.raises(ModelError, match=f"{op} 'n' has inputs of shapes"):
        check_contract(node, wrong)


def test_a_resized_tensor_keeps_its_rank() -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], name="n")
    check_contract(node, [(1, 1, 4, 4), None, (4,)], [(1, 1, 8, 8)])
    with pytest.raises(ModelError, match="do not fit"):
        check_contract(node, [(1, 1, 4, 4), None, (4,)], [()])


def test_parts_that_are_not_the_whole() -> None:
    node = helper.make_node("Split", ["x"], ["a", "b"], name="n")
    check_contract(node, [(8,)], [(3,), (5,)])
    check_contract(node, [(8,)], [(3,), None])
    with pytest.raises(ModelError, match="do not fit"):
        check_contract(node, [(8,)], [(3,), (6,)])


def test_operators_of_others_are_not_judged() -> None:
    node = helper.make_node("PRelu", ["x", "s"], ["y"], domain="acme")
    check_contract(node, [(2, 3), (5,)])
