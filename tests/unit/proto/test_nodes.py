"""Walks over nodes."""

from __future__ import annotations

from onnx import parser

from memplan.proto.nodes import all_nodes


def test_all_nodes_goes_into_bodies_behind_their_node() -> None:
    graph = parser.parse_graph(
        """g (bool c, float[2] x) => (float[2] z) {
            y = Neg(x)
            z = If(c) <
                then_branch = t () => (float[2] a) {
                    a = If(c) <
                        then_branch = u () => (float[2] e) { e = Abs(y) },
                        else_branch = v () => (float[2] f) { f = Exp(y) }
                    >
                },
                else_branch = w () => (float[2] b) { b = Sin(y) }
            >
        }"""
    )
    assert [node.op_type for node in all_nodes(graph.node)] == [
        "Neg",
        "If",
        "If",
        "Abs",
        "Exp",
        "Sin",
    ]
