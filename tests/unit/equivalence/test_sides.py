"""What is compared beside nodes: inputs, outputs, constants, functions, opsets, draws, effects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from helpers.graphs import HEADER, parse
from helpers.proofs import proof
from memplan.equivalence.prove import Side, prove

TEXT = """g (float[4] x, float[4] y, float[4] rest) => (float[4] p, float[4] q)
<float[4] scale = {1, 2, 3, 4}> {
  [a] a = Mul (x, scale) [p] p = Exp (a) [q] q = Sin (y) }"""


def sides(first: onnx.ModelProto, second: onnx.ModelProto, folder: Path = Path()) -> bool:
    """The proof without what memplan refuses to prepare."""
    return prove(Side(first, folder), Side(second, folder)).proved


SCALE = "<float[4] scale = {1, 2, 3, 4}>"
BITS = "{1065353216, 1073741824, 1077936128, 1082130432}"  # the same as int32
WRONG = {
    "another type": ("float[4] rest", "double[4] rest"),
    "another shape": ("float[4] rest", "float[5] rest"),
    "another name": ("float[4] rest", "float[4] more"),
    "one more input": ("float[4] rest", "float[4] rest, float[4] more"),
    "inputs change places": (
        "(x, scale) [p] p = Exp (a) [q] q = Sin (y)",
        "(y, scale) [p] p = Exp (a) [q] q = Sin (x)",
    ),
    "outputs in another order": ("float[4] p, float[4] q", "float[4] q, float[4] p"),
    "another output": ("float[4] q)", "float[4] q, float[4] a)"),
    "an output of another shape": ("float[4] p", "float[5] p"),
    "a default of an input": (SCALE, SCALE[:-1] + ", float[4] rest = {0, 0, 0, 0}>"),
    "an input instead of a constant": ("(x, scale)", "(x, rest)"),
    "a constant of another type": (SCALE, f"<int32[4] scale = {BITS}>"),
    "a constant of another shape": ("float[4] scale", "float[4, 1] scale"),
    "a name that nobody makes": ("(x, scale)", "(x, nobody)"),
    "a node that serves nothing": ("[q]", "[idle] idle = Cos (x) [q]"),
    "a node of another domain": ("p = Exp", "p = com.microsoft.Exp"),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_graph(name: str) -> None:
    assert proof(TEXT, TEXT).proved
    assert WRONG[name][0] in TEXT
    found = proof(TEXT, TEXT.replace(*WRONG[name]))
    assert not found.proved
    assert found.reason


def test_a_constant_of_no_type_proves_nothing() -> None:
    """Found by the fuzzer of proofs: ONNX's own reading raised a TypeError."""
    second = parse(TEXT)
    second.graph.initializer[0].data_type = TensorProto.UNDEFINED
    found = prove(Side(parse(TEXT), Path()), Side(second, Path()))
    assert found.reason is not None


def test_a_pruned_output_is_told() -> None:
    second = parse(TEXT)
    del second.graph.output[1], second.graph.node[2], second.graph.input[1]
    found = proof(TEXT, second)
    assert found.proved
    assert found.removed_outputs == ("q",)


def test_defaults_are_compared() -> None:
    first, second = parse(TEXT), parse(TEXT)
    for model, value in ((first, 1.0), (second, 1.0)):
        array = np.full(4, value, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, "rest"))
    assert proof(first, second).proved
    del second.graph.initializer[1]
    assert not proof(first, second).proved
    second.graph.initializer.append(numpy_helper.from_array(np.zeros(4, np.float32), "rest"))
    assert not proof(first, second).proved


def test_a_default_is_not_the_value_of_its_input() -> None:
    """A run may give another."""
    model = parse(TEXT)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(4, np.float32), "y"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(4, np.float32), "rest"))
    second = onnx.ModelProto.FromString(model.SerializeToString())
    second.graph.node[2].input[0] = "rest"
    assert proof(model, model).proved
    assert not proof(model, second).proved


# --- constants -------------------------------------------------------------------------------


def external(folder: Path, name: str, content: bytes, **entries: int) -> onnx.ModelProto:
    """The model with its constant in a file."""
    model = parse(TEXT)
    (folder / name).write_bytes(content)
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(TensorProto(name="scale", data_type=TensorProto.FLOAT, dims=[4]))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": name, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model


def test_external_data_is_compared_by_content(tmp_path: Path) -> None:
    values = np.arange(1, 5, dtype=np.float32)
    inside = parse(TEXT)
    inside.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "scale"))
    raw = values.tobytes()
    one = external(tmp_path, "one.bin", raw)
    assert sides(inside, one, tmp_path)
    moved = external(tmp_path, "moved.bin", bytes(8) + raw + bytes(8), offset=8, length=16)
    assert sides(one, moved, tmp_path)
    for entries in ({"offset": 0, "length": 16}, {"offset": 8, "length": 12}, {"offset": 8}):
        wrong = external(tmp_path, "wrong.bin", bytes(8) + raw + bytes(8), **entries)
        assert not sides(one, wrong, tmp_path), entries
    other = external(tmp_path, "other.bin", raw[:-1] + bytes([raw[-1] ^ 1]))
    assert not sides(one, other, tmp_path)
    (tmp_path / "other.bin").unlink()
    assert "cannot be followed" in str(prove(Side(one, tmp_path), Side(other, tmp_path)).reason)


def test_long_external_data_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memplan.equivalence.terms._CHUNK", 3)
    raw = np.arange(1, 5, dtype=np.float32).tobytes()
    one = external(tmp_path, "one.bin", raw, length=16)
    assert sides(parse(TEXT), one, tmp_path)
    assert not sides(one, external(tmp_path, "two.bin", raw[:-1] + b"x", length=16), tmp_path)


def test_constants_of_text_are_compared() -> None:
    def model(*words: bytes) -> onnx.ModelProto:
        made = parse("g (float[4] x) => (float[4] p) { [p] p = Exp (x) }")
        text = helper.make_tensor("words", TensorProto.STRING, [len(words)], list(words))
        made.graph.initializer.append(text)
        made.graph.node.append(helper.make_node("Identity", ["words"], ["out"], name="out"))
        made.graph.output.append(
            helper.make_tensor_value_info("out", TensorProto.STRING, [len(words)])
        )
        return made

    assert sides(model(b"a", b"b"), model(b"a", b"b"))
    assert not sides(model(b"a", b"b"), model(b"b", b"a"))
    assert not sides(model(b"a\0", b"b"), model(b"a", b"\0b"))


@pytest.mark.parametrize(("name", "values"), [("value_float", 2.0), ("value_floats", [1.0, 3.0])])
def test_constants_of_nodes_are_compared(name: str, values: object) -> None:
    def model(given: object, op: str = "Constant") -> onnx.ModelProto:
        made = parse("g (float[2] x) => (float[2] p) { [p] p = Mul (x, c) }")
        node = helper.make_node(op, [], ["c"], name="c", **{name: given})
        made.graph.node.insert(0, node)
        return made

    other = [1.0, 4.0] if isinstance(values, list) else 2.5
    assert sides(model(values), model(values))
    assert not sides(model(values), model(other))


def test_an_attribute_that_is_a_tensor_is_compared_by_content() -> None:
    def model(fill: float, **more: float) -> onnx.ModelProto:
        made = parse("g (int64[1] n, float[4] x) => (float[4] p) { [p] p = Mul (x, c) }")
        value = numpy_helper.from_array(np.asarray([fill], np.float32))
        made.graph.node.insert(
            0, helper.make_node("ConstantOfShape", ["n"], ["c"], name="c", value=value)
        )
        return made

    assert sides(model(1.0), model(1.0))
    assert not sides(model(1.0), model(2.0))


# --- what is no function ---------------------------------------------------------------------

EFFECTS = """g (float[4] x, float[4] y) => (float[4] p) {
  [one] u = com.acme.Log (x) [two] v = com.acme.Log (y) [p] p = Exp (x) }"""


def moved(text: str, *names: str) -> onnx.ModelProto:
    """The nodes of those names, in that order."""
    model = parse(text)
    nodes = {node.name: node for node in model.graph.node}
    kept = [onnx.NodeProto.FromString(nodes[name].SerializeToString()) for name in names]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def test_what_may_have_effects_runs_as_often_and_in_its_order() -> None:
    model = parse(EFFECTS)
    assert sides(model, moved(EFFECTS, "one", "two", "p"))
    assert sides(model, moved(EFFECTS, "one", "p", "two"))
    assert not sides(model, moved(EFFECTS, "two", "one", "p"))
    assert not sides(model, moved(EFFECTS, "one", "p"))
    twice = moved(EFFECTS, "one", "two", "two", "p")
    twice.graph.node[2].output[0] = "w"
    assert not sides(model, twice)
    twice.graph.node[2].name = "three"
    assert not sides(model, twice)


def test_what_is_not_known_to_be_a_function_may_give_another_value() -> None:
    text = """g (float[4] x) => (float[4] p, float[4] q) {
      [one] u = com.acme.Draw (x) [two] v = com.acme.Draw (x) [p] p = Exp (u) [q] q = Exp (v) }"""
    second = parse(text)
    second.graph.node[3].input[0] = "u"
    assert sides(parse(text), parse(text))
    assert not sides(parse(text), second)


BRANCH = """g (float[4] x, bool flag) => (float[4] p) {{
  [branch] u = If (flag) < then_branch = one () => (float[4] s) {{ [s] s = {0} (x) }},
    else_branch = two () => (float[4] t) {{ [t] t = Neg (x) }} >
  [p] p = Exp (x) }}"""


def test_what_has_an_effect_in_a_body_stays() -> None:
    text = BRANCH.format("com.acme.Log")
    assert sides(parse(text), parse(text))
    assert not sides(parse(text), moved(text, "p"))
    plain = BRANCH.format("Sin")
    assert sides(parse(plain), moved(plain, "p"))


DRAWS = """g (float[4] x, bool flag) => (float[4] p, float[4] q) {{
  [one] p = RandomNormalLike {0} (x)
  [two] q = If (flag) < then_branch = one () => (float[4] s) {{ [s] s = RandomNormalLike {0} (x) }},
    else_branch = two () => (float[4] t) {{ [t] t = Neg (x) }} > }}"""


def test_draws_keep_their_order_in_bodies_too() -> None:
    """They take from one stream, unless each has a seed of its own."""
    shared, own = DRAWS.format(""), DRAWS.format("<seed: float = 3.0>")
    assert sides(parse(shared), parse(shared))
    assert not sides(parse(shared), moved(shared, "two", "one"))
    assert sides(parse(own), moved(own, "two", "one"))


def test_a_draw_is_not_another_draw() -> None:
    text = """g (float[4] x) => (float[4] p, float[4] q) {
      [one] a = RandomNormalLike <seed: float = 3.0> (x)
      [two] b = RandomNormalLike <seed: float = 3.0> (x) [p] p = Exp (a) [q] q = Exp (b) }"""
    second = parse(text)
    second.graph.node[3].input[0] = "a"
    assert sides(parse(text), parse(text))
    assert not sides(parse(text), second)


# --- opsets and functions --------------------------------------------------------------------


@pytest.mark.parametrize("body", [False, True])
def test_an_opset_of_a_domain_that_is_used(body: bool) -> None:
    text = BRANCH.format("com.acme.Log") if body else EFFECTS
    header = HEADER.replace("]>", ', "com.acme" : {0}]>')
    one, other = (parse(header.replace("{0}", str(k)) + text) for k in (1, 2))
    assert sides(one, one)
    assert not sides(one, other)
    standard = parse(header.replace("{0}", "1").replace('"" : 20', '"" : 21') + text)
    assert not sides(one, standard)


FUNCTIONS = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
g (float[4] x) => (float[4] p) {{ [p] p = own.outer (x) }}
<domain: "own", opset_import: ["" : 20, "own" : 1]> outer (a) => (c)
{{ b = own.inner (a) c = {0} (b) }}
<domain: "own", opset_import: ["" : 20]> inner (a) => (c) {{ c = {1} (a) }}"""


def test_functions_are_compared_with_what_they_call() -> None:
    one = onnx.parser.parse_model(FUNCTIONS.format("Sin", "Exp"))
    assert sides(one, one)
    for names in (("Cos", "Exp"), ("Sin", "Cos")):
        assert not sides(one, onnx.parser.parse_model(FUNCTIONS.format(*names))), names


def test_an_overload_of_a_function_is_another() -> None:
    one = onnx.parser.parse_model(FUNCTIONS.format("Sin", "Exp"))
    second = onnx.ModelProto.FromString(one.SerializeToString())
    second.graph.node[0].overload = "fast"
    assert not sides(one, second)
