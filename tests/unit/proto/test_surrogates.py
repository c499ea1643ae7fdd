"""The operator whose gradient goes elsewhere is taken out, and with it what only gradients read."""

import onnx
import pytest

from memplan.proto.surrogates import DOMAIN, OP, without_surrogates


def taken_out(outputs: str, nodes: str) -> onnx.ModelProto:
    """The model behind ``nodes``, in which ``through`` is the operator."""
    typed = ", ".join(f"float[2] {name}" for name in outputs.split())
    found = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20, "{DOMAIN}" : 1]>
        g (float[2] x) => ({typed}) {{ {nodes.replace("through", f"{DOMAIN}.{OP}")} }}"""
    )
    without_surrogates(found)
    assert "through" not in nodes or [item.domain for item in found.opset_import] == [""]
    return found


def shown(graph: onnx.GraphProto) -> list[str]:
    return [f"{n.op_type} {' '.join(n.input)} -> {n.output[0]}" for n in graph.node]


@pytest.mark.parametrize(
    ("outputs", "nodes", "left"),
    [
        # Readers read the value, and the surrogate is gone.
        (
            "y",
            "a = Abs(x) aside = Neg(x) b = through(a, aside) c = through(b) y = Exp(c)",
            ["Abs x -> a", "Exp a -> y"],
        ),
        # An output keeps its name.
        (
            "y z w",
            "a = Abs(x) y = through(a) z = through(a) w = through(x)",
            ["Abs x -> y", "Identity y -> z", "Identity x -> w"],
        ),
    ],
)
def test_what_reads_it_reads_the_value(outputs: str, nodes: str, left: list[str]) -> None:
    found = taken_out(outputs, nodes)
    assert shown(found.graph) == left
    onnx.checker.check_model(found)


def test_bodies_are_seen() -> None:
    branch = "() => (float[2] r) { v = Abs(a) r = through(v) }"
    found = taken_out(
        "y",
        f"""a = through(x) s = ReduceSum <keepdims = 0> (x) nan = IsNaN(s)
        y = If(nan) <then_branch = t {branch}, else_branch = e {branch}>""",
    )
    for attribute in found.graph.node[2].attribute:
        assert shown(attribute.g) == ["Abs x -> r"]


def test_other_models_are_left_alone() -> None:
    found = taken_out("y", "y = Abs(x) unread = Neg(x)")
    assert shown(found.graph) == ["Abs x -> y", "Neg x -> unread"]
