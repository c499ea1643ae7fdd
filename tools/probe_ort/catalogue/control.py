"""Operators with subgraphs."""

from __future__ import annotations

import numpy as np
from cases import Catalogue, f32, given, scalar
from onnx import TensorProto, helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
SHAPE = [5, 17, 24]


def _info(name: str, kind: int, shape: list[int]) -> object:
    return helper.make_tensor_value_info(name, kind, shape)


def fill(book: Catalogue) -> None:
    """Add this module's cases."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Neg", ["state"], ["next"]),
            helper.make_node("Exp", ["next"], ["seen"]),
        ],
        "body",
        [_info("i", INT64, []), _info("go", BOOL, []), _info("state", FLOAT, SHAPE)],
        [_info("go_on", BOOL, []), _info("next", FLOAT, SHAPE), _info("seen", FLOAT, SHAPE)],
    )
    book.add(
        "Loop",
        "carried and scanned",
        scalar(3, "int64"),
        given(True, "bool"),
        f32(*SHAPE),
        outputs=2,
        body=body,
    )
    branches = [
        _with_own_input(
            helper.make_graph(
                [helper.make_node(op, [f"{op}_in"], [f"{op}_out"])],
                op,
                [],
                [_info(f"{op}_out", FLOAT, SHAPE)],
            )
        )
        for op in ("Neg", "Exp")
    ]
    for choice in (True, False):
        book.add(
            "If",
            f"branch {choice}",
            given(np.array(choice), "bool"),
            then_branch=branches[0],
            else_branch=branches[1],
        )
    step = helper.make_graph(
        [
            helper.make_node("Add", ["state", "row"], ["next"]),
            helper.make_node("Exp", ["next"], ["seen"]),
        ],
        "step",
        [_info("state", FLOAT, SHAPE[1:]), _info("row", FLOAT, SHAPE[1:])],
        [_info("next", FLOAT, SHAPE[1:]), _info("seen", FLOAT, SHAPE[1:])],
    )
    book.add(
        "Scan", "one state", f32(*SHAPE[1:]), f32(*SHAPE), outputs=2, body=step, num_scan_inputs=1
    )


def _with_own_input(branch: object) -> object:
    """The branch reading a tensor of its own instead of one of the outer graph."""
    name = branch.node[0].input[0]
    value = helper.make_tensor(name, FLOAT, SHAPE, np.ones(SHAPE, np.float32).tobytes(), raw=True)
    branch.initializer.append(value)
    return branch
