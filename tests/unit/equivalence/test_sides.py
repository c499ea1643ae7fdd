"""What is compared beside nodes: inputs, outputs, constants, functions, opsets, draws, effects."""

from collections.abc import Callable
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


def with_text(*words: bytes) -> onnx.ModelProto:
    made = parse("g (float[4] x) => (float[4] p) { [p] p = Exp (x) }")
    kind, shape = TensorProto.STRING, [len(words)]
    made.graph.initializer.append(helper.make_tensor("words", kind, shape, list(words)))
    made.graph.node.append(helper.make_node("Identity", ["words"], ["out"], name="out"))
    made.graph.output.append(helper.make_tensor_value_info("out", kind, shape))
    return made


def with_constant(op: str, *reads: str, **attributes: object) -> onnx.ModelProto:
    made = parse("g (int64[1] n, float[2] x) => (float[2] p) { [p] p = Mul (x, c) }")
    made.graph.node.insert(0, helper.make_node(op, reads, ["c"], name="c", **attributes))
    return made


def filled(number: float) -> onnx.ModelProto:
    value = numpy_helper.from_array(np.asarray([number], np.float32))
    return with_constant("ConstantOfShape", "n", value=value)


CONSTANTS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "words": lambda k: with_text(*((b"a", b"b") if k else (b"b", b"a"))),
    "words that are cut elsewhere": lambda k: with_text(*((b"a\0", b"b") if k else (b"a", b"\0b"))),
    "a number": lambda k: with_constant("Constant", value_float=2.0 + k),
    "numbers": lambda k: with_constant("Constant", value_floats=[1.0, 3.0 + k]),
    "an attribute that is a tensor": filled,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_compared_by_content(name: str) -> None:
    made = CONSTANTS[name]
    assert sides(made(0), made(0))
    assert not sides(made(0), made(1))


# --- what is no function ---------------------------------------------------------------------

EFFECTS = """g (float[4] x, float[4] y) => (float[4] p) {
  [one] u = com.acme.Log (x) [two] v = com.acme.Log (y) [p] p = Exp (x) }"""
BRANCH = """g (float[4] x, bool flag) => (float[4] p) {{
  [branch] u = If (flag) < then_branch = one () => (float[4] s) {{ [s] s = {0} (x) }},
    else_branch = two () => (float[4] t) {{ [t] t = Neg (x) }} >
  [p] p = Exp (x) }}"""
DRAWS = """g (float[4] x, bool flag) => (float[4] p, float[4] q) {{
  [one] p = RandomNormalLike {0} (x)
  [two] q = If (flag) < then_branch = one () => (float[4] s) {{ [s] s = RandomNormalLike {0} (x) }},
    else_branch = two () => (float[4] t) {{ [t] t = Neg (x) }} > }}"""
LOGGED, PLAIN = BRANCH.format("com.acme.Log"), BRANCH.format("Sin")
# What may have an effect runs as often and in its order, in bodies too; draws take from one stream,
# unless each has a seed of its own.
MOVED = [
    (EFFECTS, "one two p", True),
    (EFFECTS, "one p two", True),
    (EFFECTS, "two one p", False),
    (EFFECTS, "one p", False),
    (LOGGED, "branch p", True),
    (LOGGED, "p", False),
    (PLAIN, "p", True),
    (DRAWS.format(""), "one two", True),
    (DRAWS.format(""), "two one", False),
    (DRAWS.format("<seed: float = 3.0>"), "two one", True),
]


def moved(text: str, names: str) -> onnx.ModelProto:
    """The nodes of those names, in that order."""
    model = parse(text)
    nodes = {node.name: node for node in model.graph.node}
    kept = [onnx.NodeProto.FromString(nodes[n].SerializeToString()) for n in names.split()]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


@pytest.mark.parametrize(("text", "names", "proved"), MOVED)
def test_nodes_that_move_or_go(text: str, names: str, proved: bool) -> None:
    assert sides(parse(text), moved(text, names)) == proved


def test_what_may_have_effects_does_not_run_twice() -> None:
    twice = moved(EFFECTS, "one two two p")
    twice.graph.node[2].output[0] = "w"
    for name in ("two", "three"):
        twice.graph.node[2].name = name
        assert not sides(parse(EFFECTS), twice)


@pytest.mark.parametrize("draw", ["com.acme.Draw", "RandomNormalLike <seed: float = 3.0>"])
def test_what_is_not_known_to_be_a_function_may_give_another_value(draw: str) -> None:
    text = f"""g (float[4] x) => (float[4] p, float[4] q) {{
      [one] u = {draw} (x) [two] v = {draw} (x) [p] p = Exp (u) [q] q = Exp (v) }}"""
    assert sides(parse(text), parse(text))
    assert not sides(parse(text), parse(text.replace("Exp (v)", "Exp (u)")))


# --- opsets and functions --------------------------------------------------------------------


@pytest.mark.parametrize("body", [False, True])
def test_an_opset_of_a_domain_that_is_used(body: bool) -> None:
    text = LOGGED if body else EFFECTS
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
    one, same, other, inner = (
        onnx.parser.parse_model(FUNCTIONS.format(*names))
        for names in (("Sin", "Exp"), ("Sin", "Exp"), ("Cos", "Exp"), ("Sin", "Cos"))
    )
    assert [sides(one, each) for each in (same, other, inner)] == [True, False, False]
    same.graph.node[0].overload = "fast"
    assert not sides(one, same)
