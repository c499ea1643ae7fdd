"""Small files stay small: what would take gigabytes or minutes is refused before the work."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from helpers.graphs import parse
from memplan.errors import ModelError
from memplan.proto import limits
from memplan.proto.read import check_structure
from memplan.shapes import fold, infer
from memplan.shapes.infer import stated_types
from memplan.shapes.prepare import prepare

PATH = Path("model.onnx")


def floats(name: str, shape: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [floats("x", [4])], [floats("y", [4])])
    imports = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def calling_twice(levels: int) -> onnx.ModelProto:
    """Functions of which each calls the next twice."""
    calls = ["Relu", *(f"local.f{level}" for level in range(levels))]
    functions = "\n".join(
        f'<domain: "local", opset_import: ["" : 18, "local" : 1]> '
        f"f{level} (a) => (c) {{ b = {call} (a)  c = {call} (b) }}"
        for level, call in enumerate(calls[:-1])
    )
    return parse(f"""<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        g (float[4] x) => (float[4] y) {{ y = {calls[-1]} (x) }}
        {functions}""")


@pytest.mark.parametrize(
    ("levels", "message"),
    [(15, r"32,768 nodes after inlining .* at most 20,000"), (30, "functions cannot be inlined")],
)
def test_functions_that_call_each_other_twice_are_refused(levels: int, message: str) -> None:
    assert len(prepare(calling_twice(8), PATH, {}).proto.graph.node) == 2**8
    with pytest.raises(ModelError, match=message):
        prepare(calling_twice(levels), PATH, {})


def test_functions_that_copy_a_constant_are_refused() -> None:
    model = calling_twice(13)
    held = numpy_helper.from_array(np.zeros(100_000, np.float32))
    constant = helper.make_node("Constant", [], ["k"], value=held)
    model.functions[0].node.append(constant)
    with pytest.raises(ModelError, match="functions cannot be inlined"):
        prepare(model, PATH, {})


def nested(depth: int) -> onnx.ModelProto:
    """If in If; built inside out, without a look at the serialized size."""
    inner = helper.make_node("Relu", ["x"], ["y"])
    flag = numpy_helper.from_array(np.array(True), "flag")
    for _ in range(depth):
        body = helper.make_graph([inner], "b", [], [floats("y", [4])])
        inner = helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body)
        inner.attribute.pop()  # one branch will do for this look
    model = model_of([inner])
    model.graph.initializer.append(flag)
    return model


def test_bodies_nested_deeper_than_protobuf_reads_are_refused() -> None:
    with pytest.raises(ModelError, match=r"Required attribute .* is missing"):
        check_structure(nested(3), PATH)
    with pytest.raises(ModelError, match=r"25 bodies within bodies .* at most 24"):
        limits.require(25, limits.MOST_NESTED, "bodies within bodies in model.onnx")


@pytest.mark.parametrize("place", ["node", "tensor"])
def test_a_name_longer_than_archives_allow_is_refused(place: str) -> None:
    long = "é" * 33_000  # 66,000 bytes
    model = model_of([helper.make_node("Relu", ["x"], ["y"], name="n")])
    if place == "node":
        model.graph.node[0].name = long
    else:
        model.graph.node[0].output[0] = model.graph.output[0].name = long
    with pytest.raises(ModelError, match=r"66,000 bytes in a name .* at most 65,000"):
        check_structure(model, PATH)


def test_too_many_outputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.proto.read.MOST_OUTPUTS", 3)
    model = model_of([helper.make_node("Relu", ["x"], ["y"])])
    check_structure(model, PATH)
    model.graph.output.extend([model.graph.output[0]] * 3)
    with pytest.raises(ModelError, match=r"4 graph outputs .* at most 3"):
        check_structure(model, PATH)


BRANCHES = ("then_branch", "else_branch")


def doubling(levels: int, *, in_body: bool) -> onnx.ModelProto:
    """A vector that doubles: 4·2^levels elements; its shape is all that is wanted."""
    nodes = "  ".join(f"c{k + 1} = Concat <axis = 0> (c{k}, c{k})" for k in range(levels))
    nodes += f"  y = Expand (one, c{levels})"
    if in_body:
        bodies = (f"{way} = {way} () => (y) {{ {nodes} }}" for way in BRANCHES)
        nodes = f"y = If (flag) <{', '.join(bodies)}>"
    return parse(f"""g (float[4] x) => (y) <int64[4] c0 = {{1, 1, 1, 1}}, float[1] one = {{1}},
        bool flag = {{1}}> {{ {nodes} }}""")


@pytest.mark.parametrize("in_body", [False, True])
def test_vectors_that_double_take_no_memory_here(in_body: bool) -> None:
    small = infer.infer(doubling(3, in_body=in_body))
    assert stated_types(small.graph)["y"].shape == (1,) * 32 or in_body
    huge = infer.infer(doubling(40, in_body=in_body))
    assert stated_types(huge.graph)["y"].shape is None


@pytest.mark.parametrize(
    ("op", "shapes", "elements"),
    [
        ("Add", [(64, 1), (1, 64)], 4096),
        ("Sum", [(64, 1, 1), (1, 64, 1), (1, 1, 64)], 64**3),
        ("Where", [(100, 1), (1, 100), (1,)], 10_000),
        ("Concat", [(4000,)] * 5, 20_000),
        ("Gather", [(50,), (70,)], 3500),
        ("Neg", [(7, 3)], 21),
    ],
)
def test_the_size_of_what_is_folded_is_known_before(
    op: str, shapes: list[tuple[int, ...]], elements: int
) -> None:
    names = [f"i{k}" for k in range(len(shapes))]
    values = {name: np.zeros(shape, np.int64) for name, shape in zip(names, shapes, strict=True)}
    assert fold._grown(helper.make_node(op, names, ["y"]), values) == elements


def test_text_is_not_folded_as_if_it_were_numbers() -> None:
    values = {"a": np.asarray("abc", dtype=object)}
    assert fold._grown(helper.make_node("Range", ["a", "a", "a"], ["y"]), values) == np.inf
