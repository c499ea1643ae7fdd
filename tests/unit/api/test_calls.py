"""The functions as people call them: text paths, models in memory, wrong values, what is shown."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import memplan
from helpers.graphs import parse
from memplan.training.train import TrainOptions

STEP = """
    g (float[64, 64] x, float[64, 64] w) => (float loss, float[64, 64] w_grad)
    <float one = {1}>
    { h = MatMul(x, w) a = Tanh(h) loss = ReduceMean<keepdims = 0>(a)
      s = Mul(a, a) d = Sub(one, s) w_grad = Gemm<transA = 1>(x, d) }"""
FORWARD = """
    g (float[4, 8] x, float[8, 3] w) => (float[4, 3] y)
    { y = MatMul(x, w) }"""


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "step.onnx"
    onnx.save(parse(STEP), path)
    return path


GIVEN: list[Callable[[Path], object]] = [Path, str, onnx.load]


@pytest.mark.parametrize("given", GIVEN, ids=["Path", "str", "ModelProto"])
def test_every_function_takes_every_kind_of_model(
    step: Path, given: Callable[[Path], object]
) -> None:
    model: str = given(step)  # type: ignore[assignment]
    options = memplan.ValidateOptions(runs=1, plain=False)
    analysis = memplan.analyze(model)
    result = memplan.rewrite(model, "100%", dry_run=True)
    found = memplan.grad(model, memplan.GradOptions("loss", wrt=("w",)))
    profile = memplan.profile(model, memplan.ProfileOptions(runs=1))
    proved = memplan.validate(model, model, options)
    session = memplan.load(model)
    assert analysis.graph.nodes == memplan.analyze(step).graph.nodes
    assert {analysis.path.name, result.path.name, found.path.name} <= {"step.onnx", "model.onnx"}
    assert [value.name for value in session.get_outputs()] == ["loss", "w_grad"]
    assert proved.equality == "bitwise"
    for answer in (analysis, result, found, profile, proved):
        assert len(repr(answer).splitlines()) <= 13
        assert len(repr(answer)) < 2000


def test_a_model_in_memory_is_rewritten_in_memory(step: Path) -> None:
    result = memplan.rewrite(onnx.load(step), "100%")
    assert result.output is None
    onnx.checker.check_model(result.model)
    written = step.with_name("out.onnx")
    assert memplan.rewrite(str(step), "100%", str(written)).output == written


def test_bytes_may_be_a_number(step: Path) -> None:
    peak = memplan.analyze(step).timeline.peak_with_workspace_bytes
    assert memplan.rewrite(step, peak, dry_run=True).budget_bytes == peak


WRONG: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: memplan.analyze(f, session="tunned"), "did you mean 'tuned'"),
    (lambda f: memplan.analyze(f, provider="rocm"), "providers: cpu, cuda"),
    (lambda f: memplan.analyze(3), "as str or Path"),  # type: ignore[arg-type]
    (lambda f: memplan.rewrite(f, 60), "did you mean '60%'"),
    (lambda f: memplan.rewrite(f, 0.6), "'60%' of the peak"),  # type: ignore[arg-type]
    (lambda f: memplan.profile(f, memplan.ProfileOptions(provider="cpx")), "did you mean 'cpu'"),
    (
        lambda f: memplan.validate(f, f, memplan.ValidateOptions(provider="rocm")),
        "expected one of: auto, cpu, cuda",
    ),
    (lambda f: memplan.RewriteOptions("60%", optimize="extendet"), "did you mean 'extended'"),
    (lambda f: memplan.RewriteOptions("60%", weights="copies"), "did you mean 'copy'"),
    (lambda f: memplan.RewriteOptions("60%", time_limit=-1), ""),
    (lambda f: memplan.RewriteOptions("60%", time_limit=float("nan")), "a finite number"),
    (lambda f: memplan.RewriteOptions("60%", effort=-1), "at least 0"),
    (lambda f: memplan.RewriteOptions("60%", costs=3), "give a path"),  # type: ignore[arg-type]
    (lambda f: memplan.RewriteOptions("60%", keep=(3,)), "a text, or several"),  # type: ignore[arg-type]
    (lambda f: memplan.ValidateOptions(draws=0), "at least 1"),
    (lambda f: memplan.ValidateOptions(threads=100_000), "at most"),
    (lambda f: memplan.ProfileOptions(seed=-1), "at least 0"),
    (lambda f: TrainOptions(seed=10**23), "at most"),
    (lambda f: TrainOptions(threads=-1), "at least 0"),
    (lambda f: memplan.ValidateOptions(seed=1.5), "a whole number"),  # type: ignore[arg-type]
    (lambda f: memplan.ProfileOptions(threads=-1), "at least 0"),
    (lambda f: memplan.ProfileOptions(runs=True), "a whole number"),
    (lambda f: memplan.GradOptions(3), "give a text"),  # type: ignore[arg-type]
    (lambda f: memplan.LowerOptions(weights="x"), "reference, copy"),
    (lambda f: memplan.SweepOptions(fit_dim=3), "give a text"),  # type: ignore[arg-type]
    (lambda f: memplan.load(3), "as str or Path"),  # type: ignore[arg-type]
    (lambda f: memplan.gradients(3, "y", ["w"]), "as str or Path"),  # type: ignore[arg-type]
    (lambda f: memplan.rewrite(f, "100%", 3), "str or Path"),  # type: ignore[arg-type]
    (lambda f: memplan.parse_size(None), "with a unit"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "hint"), WRONG)
def test_wrong_values_are_usage_errors(
    step: Path, call: Callable[[Path], object], hint: str
) -> None:
    with pytest.raises(memplan.MemplanError) as caught:
        call(step)
    assert caught.value.exit_code == 2
    assert hint in caught.value.hint


def test_options_take_text_for_a_path_and_one_glob_for_several() -> None:
    options = memplan.RewriteOptions("60%", costs="costs.json", keep="embedding*", wrt=["w", "b"])  # type: ignore[arg-type]
    assert options.costs == Path("costs.json")
    assert (options.keep, options.wrt) == (("embedding*",), ("w", "b"))


def test_what_is_shown_is_short_whatever_names_a_file_has() -> None:
    model = parse(FORWARD)
    model.graph.node[0].name = "<i>\n" + "n" * 500
    shown = memplan.analyze(model)
    assert len(repr(shown).splitlines()) <= 13
    assert max(map(len, repr(shown).splitlines())) < 200


def test_an_inference_graph_gets_one_answer_and_the_command_to_type(tmp_path: Path) -> None:
    path = tmp_path / "net work.onnx"
    onnx.save(parse(FORWARD), path)
    command = f"memplan grad '{path}' -o '{tmp_path}/net work.step.onnx'"
    command += " --loss cross-entropy --logits y"
    notes = memplan.analyze(path).assumptions
    assert any("the graph has no backward part" in note and command in note for note in notes)
    with pytest.raises(memplan.MemplanError, match="the graph has no backward part") as caught:
        memplan.rewrite(path, "1B", dry_run=True)
    assert caught.value.exit_code == 4
    assert command in caught.value.hint


def test_a_training_graph_gets_no_such_answer(step: Path) -> None:
    assert not any("backward part" in note for note in memplan.analyze(step).assumptions)


WEIGHT = "<float[2, 2] w = {1, 2, 3, 4}>"


def test_softmax_as_logits_is_pointed_out() -> None:
    model = parse(
        f"g (float[4, 2] x) => (float[4, 2] y) {WEIGHT} {{ h = MatMul(x, w) y = Softmax(h) }}"
    )
    told = memplan.grad(model, memplan.GradOptions("cross-entropy", logits="y")).notes
    assert "takes the softmax again; its input 'h'" in told[0]
    assert not memplan.grad(model, memplan.GradOptions("cross-entropy", logits="h")).notes


def test_a_loss_that_no_gradient_reaches_through_names_the_weights() -> None:
    model = parse(f"""
        g (float[4, 2] x, float[4] t) => (float loss) {WEIGHT}
        {{ h = MatMul(x, w) a = ArgMax<axis = 1, keepdims = 0>(h) f = Cast<to = 1>(a)
           d = Sub(f, t) loss = ReduceMean<keepdims = 0>(d) }}""")
    with pytest.raises(memplan.MemplanError, match="no gradient reaches w") as caught:
        memplan.grad(model, "loss")
    assert "ArgMax" in caught.value.hint
