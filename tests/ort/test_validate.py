"""What validate finds, and which of its parts."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers import fooling, wrong_files
from helpers.effort import few_by_day
from helpers.graphs import parse
from helpers.running_inside import without_children
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewriting import rewrite
from memplan.api.validate.validating import ValidateOptions, validate
from memplan.api.validate.validation import Validation
from memplan.errors import ModelError, RuntimeUnavailableError, UsageError
from memplan.units import parse_size


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    without_children(monkeypatch)


def validated(
    folder: Path, first: onnx.ModelProto, second: onnx.ModelProto, **options: object
) -> Validation:
    paths = folder / "original.onnx", folder / "rewritten.onnx"
    for path, model in zip(paths, (first, second), strict=True):
        onnx.save(model, path)
    settings = {"runs": 1, "plain": False, "threads": 1, **options}
    return validate(*paths, ValidateOptions(**settings))  # type: ignore[arg-type]


def parts(found: Validation) -> set[str]:
    return {finding.part for finding in found.findings}


@pytest.mark.parametrize("name", fooling.PAIRS)
def test_what_once_fooled_it_is_found(name: str, tmp_path: Path) -> None:
    case = fooling.PAIRS[name]
    found = validated(tmp_path, case.original(), case.rewritten())
    assert parts(found) == set(case.parts.split()), [str(f) for f in found.findings]
    assert not found.proved
    same = validated(tmp_path, case.original(), case.original())
    assert same.findings == (), [str(f) for f in same.findings]


MISSED_BY_RUNS = {
    # Last bits are within the tolerance, and within what additions in another order change.
    "a scalar constant is off by one ulp",
    "an element of a constant is off by one ulp",
    # The runs give values to all inputs that have no default in the original.
    "an input has another default",
    # A Dropout with a seed draws the same in both of its nodes.
    "a_random_operator_runs_twice",
}
REFUSED = {"a fence has an axis", "a view has another shape"}


@pytest.mark.parametrize("name", few_by_day(wrong_files.WRONG))
def test_fifty_wrong_files_are_found(name: str, tmp_path: Path) -> None:
    """By the static proof all of them, by the runs alone all but those that are listed."""
    files = wrong_files.original(), wrong_files.wrong_file(name)
    if name in REFUSED:
        with pytest.raises(ModelError):
            validated(tmp_path, *files)
        return
    found = validated(tmp_path, *files)
    assert "construction" in parts(found)
    assert ("outputs" in parts(found)) == (name not in MISSED_BY_RUNS)
    assert not found.proved


def test_the_right_rewrite_is_proved_word_by_word(tmp_path: Path) -> None:
    found = validated(tmp_path, wrong_files.original(), wrong_files.rewritten())
    assert found.findings == ()
    assert found.proved
    assert found.summary == (
        "equivalent by construction, bitwise equal in 2 draws; peak measured 2,802 B -> 2,750 B "
        "(-1.9%), as predicted; no budget"
    )
    answer = found.as_json()
    assert answer["proved"] is True
    assert answer["draws"] == 2
    assert found.rewritten.as_json()["further_draws"] == [
        {"dynamic_bytes": found.rewritten.measured_dynamic_bytes}
    ]
    assert answer["vacuous_outputs"] == {}
    assert answer["equivalence"]["recomputed_nodes"] == 3  # type: ignore[index]


def test_one_draw_proves_less_and_says_so(tmp_path: Path) -> None:
    found = validated(tmp_path, *[wrong_files.original()] * 2, draws=1)
    assert "bitwise equal in 1 draw;" in found.summary
    case = fooling.PAIRS["the_learning_rate_is_ignored"]
    found = validated(tmp_path, case.original(), case.rewritten(), draws=1)
    assert parts(found) == {"construction"}
    assert found.equality == "bitwise"


def test_outputs_that_show_nothing_are_named(tmp_path: Path) -> None:
    model = parse(
        """g (float[8] x, float s) => (float[8] n, float[8] z, float[8] c, float[8] e, float k)
        <float m = {-1}, float five = {5}, int64[1] eight = {8}> {
          a = Abs(x)  b = Mul(a, m)  n = Log(b)  z = Sub(x, x)  t = Mul(s, z)
          c = Add(z, five)  e = Expand(s, eight)  k = Identity(five) }"""
    )
    found = validated(tmp_path, model, model)
    assert found.vacuous_outputs == {
        "n": "all NaN",
        "z": "all 0",
        "c": "always 5.0",
        "k": "always 5.0",
    }
    assert "(4 of 5 outputs vacuous)" in found.summary
    assert "vacuous: c, k always 5.0, so the runs say nothing of them" in found.details
    assert found.proved


def test_swapped_arguments_are_said(tmp_path: Path) -> None:
    plain = parse("g (float[8] x) => (float[8] y) { y = Neg(x) }")
    written = fooling.recorded(
        parse("g (float[8] x) => (float[8] y) { y = Neg(x) }"), budget_bytes=1000
    )
    assert parts(validated(tmp_path, written, plain)) == {"interface"}
    assert parts(validated(tmp_path, plain, written)) == set()


def test_a_draw_on_which_the_original_fails_is_not_counted(tmp_path: Path) -> None:
    """With 3 instead of 1 the index is out of bounds."""
    model = parse(
        """g (float[2, 4] x, int64 step) => (float[4] y) <int64 none = {0}> {
          i = Mul(step, none)  j = Add(i, step)  y = Gather<axis = 0>(x, j) }"""
    )
    model.graph.node[0].op_type = "Mod"  # hides from the search for indices what is indexed
    model.graph.node[0].input[1] = "big"
    model.graph.initializer[0].name = "big"
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.asarray(100, np.int64), "big")
    )
    model.graph.node[1].op_type = "Mod"
    model.graph.node[1].input[:] = ["i", "big"]
    found = validated(tmp_path, model, model)
    assert len(found.comparisons) == 1
    assert any(note.startswith("draw 2 was not compared") for note in found.notes)
    assert "in 1 draw;" in found.summary


def test_given_weights_are_used_though_the_file_has_defaults(tmp_path: Path) -> None:
    model = parse("g (float[4] x, float[4] w) => (float[4] y) { y = Mul(x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    ones = np.ones(4, np.float32)
    np.savez(tmp_path / "inputs.npz", x=ones, w=np.nan * ones)
    given = validated(tmp_path, model, model, inputs=tmp_path / "inputs.npz", draws=1)
    assert given.vacuous_outputs == {"y": "all NaN"}
    np.savez(tmp_path / "inputs.npz", x=ones)
    assert not validated(tmp_path, model, model, inputs=tmp_path / "inputs.npz").vacuous_outputs


def test_bfloat16_goes_in_and_out(tmp_path: Path) -> None:
    text = """g (bfloat16[64] x) => (bfloat16[64] y, float[64] z) {{
      f = Cast<to = 1>(x)  z = {op}(f)  y = Cast<to = 16>(z) }}"""
    model, wrong = parse(text.format(op="Neg")), parse(text.format(op="Abs"))
    same = validated(tmp_path, model, model)
    assert same.proved
    found = validated(tmp_path, model, wrong)
    assert {d.name for c in found.comparisons for d in c.differences} == {"y", "z"}
    assert found.equality == "different"


def test_outputs_missing_without_a_word_are_refused(tmp_path: Path) -> None:
    narrow = wrong_files.original()
    del narrow.graph.output[0]
    with pytest.raises(UsageError, match="different graph outputs"):
        validated(tmp_path, wrong_files.original(), narrow)


def test_float16_is_proved_with_the_casts_that_a_session_adds(tmp_path: Path) -> None:
    text = """g (float16[64, 64] x, float16[64, 64] w) => (float16[64, 64] y) {
      [a] a = MatMul(x, w)  [b] b = Sigmoid(a)  [c] c = MatMul(b, w)  [d] d = Sigmoid(c)
      [e] y = MatMul(d, w) }"""
    onnx.save(parse(text), tmp_path / "m.onnx")
    options = RewriteOptions(parse_size("100%"), strategy="greedy", optimize="none")
    rewrite(tmp_path / "m.onnx", options, tmp_path / "fits.onnx")
    found = validate(
        tmp_path / "m.onnx", tmp_path / "fits.onnx", ValidateOptions(runs=1, plain=False)
    )
    assert found.proved, [str(f) for f in found.findings]


DECIDED_BY_VALUES = """
g (float[24] x, int64[3] shape) => (float[2,3,4] y) {
  e = Exp(x)
  y = Reshape <allowzero = 1> (e, shape)
}
"""
DECIDED_BY_SIZES = "g (int64[3] shape) => (float[2,3,4] y) { y = ConstantOfShape(shape) }"


def test_a_shape_that_made_up_values_decide_is_told(tmp_path: Path) -> None:
    model = parse(DECIDED_BY_SIZES)
    found = validated(tmp_path, model, model)
    told = [str(finding) for finding in found.findings]
    assert any("in the run and [2, 3, 4] in the file" in text for text in told), told
    assert any("give --inputs" in text for text in told), told
    given = tmp_path / "inputs.npz"
    np.savez(given, shape=np.array([2, 3, 4]))
    assert validated(tmp_path, model, model, inputs=given, draws=1).proved


def test_a_run_that_fails_on_made_up_values_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # children word their failures
    model = parse(DECIDED_BY_VALUES)
    with pytest.raises(RuntimeUnavailableError) as failed:
        validated(tmp_path, model, model)
    assert "--inputs" in failed.value.hint
    given = tmp_path / "inputs.npz"
    np.savez(given, x=np.ones(24, np.float32), shape=np.array([2, 3, 4]))
    assert validated(tmp_path, model, model, inputs=given, draws=1).findings == ()


def with_and_without_a_copy() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A product with a copy of a constant weight, and with the weight itself."""
    text = "g (float[16,1000] x) => (float[16,64] y) {{ {0} y = MatMul (x, {1}) }}"
    models = parse(text.format("v = Identity (w)", "v")), parse(text.format("", "w"))
    weight = np.random.default_rng(0).standard_normal((1000, 64), dtype=np.float32)
    for model in models:
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return models


def test_equal_up_to_rounding_is_not_proved(tmp_path: Path) -> None:
    found = validated(tmp_path, *with_and_without_a_copy(), threads=2)
    assert (found.verdict, found.equality) == ("no finding, but not proved", "tolerance")
    assert found.details[0] == (
        "construction: every node (1 kept), but 'y' (made from weights that only one of the files "
        "holds as constants) is assumed equal up to rounding"
    )
    assert found.contradicted_outputs == ()


def test_proved_and_bits_that_differ_never_stand_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof that knew less would say equal; the runs know better, and the verdict says so."""
    monkeypatch.setattr("memplan.equivalence.numbering.packed_inputs", lambda *_: ())
    found = validated(tmp_path, *with_and_without_a_copy(), threads=2)
    assert found.equivalence.proved
    assert not found.proved
    assert found.verdict == "not proved"
    assert [str(finding) for finding in found.findings] == [
        "the runs contradict the proof: y has other bits with 2 threads, though the same by "
        "construction; please report this with both files"
    ]
    assert parts(found) == {"construction"}
    assert found.summary.startswith("equal within tolerance")
    assert found.details[0].endswith("(1 kept), which the runs contradict")
    assert found.as_json()["contradicted_outputs"] == ["y"]
