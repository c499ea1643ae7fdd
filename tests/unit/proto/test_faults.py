"""Graphs that break a rule of ONNX: what is wrong, in which words."""

from collections.abc import Callable, MutableSequence
from pathlib import Path

import onnx.parser
import pytest

from helpers import odd_models as odd
from helpers.odd_models import constant, info
from helpers.reading import refusal, refused


def put(names: MutableSequence[str], place: int, name: str) -> None:
    """Another name there."""
    names[place] = name


def test_an_opset_before_seven(tmp_path: Path) -> None:
    message = refused(odd.training(6), tmp_path)
    assert "opset 6" in message
    assert "7 and newer" in message


SORTED = "must be topologically sorted, however input"
TWICE = "has been used as output names multiple times"
FAULTS: dict[str, tuple[Callable[[onnx.GraphProto], object], tuple[str, ...]]] = {
    "no outputs": (lambda g: g.ClearField("output"), ("no outputs",)),
    "a cycle": (
        lambda g: put(g.node[0].input, 0, "h_grad"),
        (f"{SORTED} 'h_grad' of node: name: fc1",),
    ),
    "a wrong order": (lambda g: g.node.reverse(), (SORTED,)),
    "a node that reads its own output": (
        lambda g: put(g.node[1].input, 0, "a"),
        (f"{SORTED} 'a'",),
    ),
    "two nodes": (lambda g: put(g.node[2].output, 0, "h"), (f"'h' {TWICE}",)),
    "a node and an input": (lambda g: put(g.node[2].output, 0, "x"), (f"'x' {TWICE}",)),
    "a node and an initializer": (lambda g: put(g.node[2].output, 0, "w1"), (f"'w1' {TWICE}",)),
    "two inputs": (lambda g: g.input.append(info("x", [3])), ("'x'", "input names multiple times")),
    "two initializers": (
        lambda g: g.initializer.append(constant("zero", 1.0)),
        ("name is not unique",),
    ),
    "an undefined tensor": (
        lambda g: put(g.node[5].input, 0, "nowhere"),
        ("'nowhere'", "fc2_grad_a", "is not output of any previous nodes"),
    ),
    "an output that nothing computes": (
        lambda g: setattr(g.output[0], "name", "lost"),
        ("Graph output 'lost' is not an output of any node",),
    ),
    "no name": (
        lambda g: g.input.append(info("", [3])),
        ("'name' of 'value_info' is required",),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_graphs_that_break_a_rule(tmp_path: Path, name: str) -> None:
    edit, words = FAULTS[name]
    model = odd.training()
    edit(model.graph)
    message = refused(model, tmp_path)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda node: put(node.output, 0, "h"), f"however 'h' {TWICE}"),
        (lambda node: put(node.input, 0, "w2_grad"), "'w2_grad'"),
    ],
    ids=["hides an outer tensor", "reads what is computed later"],
)
def test_bodies_that_break_a_rule(
    tmp_path: Path, edit: Callable[[onnx.NodeProto], None], words: str
) -> None:
    model = odd.conditional()
    edit(model.graph.node[2].attribute[0].g.node[0])
    assert words in refused(model, tmp_path)


def _functional() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "own": 1]>'
        ' g (float[3] x) => (float[3] y) <string[1] s = {"text"}>'
        ' { h = RNN<activations = ["Relu"], hidden_size = 1>(x, x, x) y = own.Twice(x) }'
        ' <opset_import: ["": 20], domain: "own"> Twice (a) => (b) { one = Exp(a) b = Neg(one) }'
    )


@pytest.mark.parametrize("version", [-(2**63), 2**40])
def test_a_function_of_an_opset_that_cannot_be(tmp_path: Path, version: int) -> None:
    model = _functional()
    model.functions[0].opset_import[0].version = version
    assert "which cannot be" in refused(model, tmp_path)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (odd.training, b"fc2_grad_a"),
        *((_functional, name) for name in (b"Exp", b"one", b"b", b"text", b"Relu")),
    ],
)
def test_a_name_that_is_no_text(
    tmp_path: Path, model: Callable[[], onnx.ModelProto], name: bytes
) -> None:
    field = bytes([len(name)]) + name
    data = model().SerializeToString()
    assert field in data
    path = tmp_path / "model.onnx"
    path.write_bytes(data.replace(field, field[:-1] + b"\xff"))
    assert "UTF-8" in refusal(path).message
