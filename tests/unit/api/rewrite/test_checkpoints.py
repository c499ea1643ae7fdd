"""Models rewritten by a choice of checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import memplan
from helpers.graphs import parse
from helpers.models import SAMPLES
from helpers.running import Memplan
from helpers.training_steps import saved_step, with_dropout
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.api.validate.validating import ValidateOptions, validate
from memplan.errors import UsageError
from memplan.proto.metadata import CHECKPOINT_KEY
from memplan.units import parse_size

pytestmark = pytest.mark.slow

MODEL = SAMPLES / "mlp_adamw.onnx"
NAMES = ("speed", "memory", "list{names=linear*}", "collection")


Marked = Callable[..., Path]


@pytest.fixture
def marked(tmp_path: Path) -> Marked:
    """A sample model with the outputs of an operator marked."""

    def make(op: str, source: Path = MODEL) -> Path:
        model = onnx.load(source)
        for node in model.graph.node:
            if node.op_type == op:
                node.metadata_props.add(key=CHECKPOINT_KEY, value="true")
        onnx.save(model, tmp_path / "marked.onnx")
        return tmp_path / "marked.onnx"

    return make


def rewritten(inside: Memplan, model: Path, *options: str) -> dict[str, object]:
    done = inside("rewrite", model, *options, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("name", "optimize"), [*((name, "extended") for name in NAMES), ("speed", "none")]
)
def test_a_model_rewritten_by_each(
    name: str, optimize: str, inside: Memplan, marked: Marked, tmp_path: Path
) -> None:
    options = ("--strategy", name, "--optimize", optimize, "-o", "fits.onnx")
    found = rewritten(inside, marked("Gemm"), *options)
    assert found["strategy"] == name.partition("{")[0]
    assert found["optimize"] == optimize
    assert found["budget_bytes"] == found["baseline_peak_with_workspace_bytes"]
    assert found["predicted_peak_bytes"] < found["baseline_peak_bytes"]  # type: ignore[operator]
    assert (tmp_path / "fits.onnx").exists()


# ONNX Runtime makes one node of the Transpose and the product, and with it t is gone.
FUSED = """g (float[64, 64] x, float[64, 64] w) => (float loss) {
  t = Transpose <perm = [1, 0]> (w)  a = MatMul(x, t)  b = Tanh(a)  c = Exp(b)  d = Mul(c, b)
  loss = ReduceSum <keepdims = 0> (d) }"""


def test_names_and_marks_that_fusions_take_away(
    inside: Memplan, marked: Marked, tmp_path: Path
) -> None:
    onnx.save(memplan.gradients(parse(FUSED), "loss", ["w"]), tmp_path / "step.onnx")
    path = marked("Transpose", tmp_path / "step.onnx")
    for name in ("list{names=t+a}", "collection"):
        found = rewritten(inside, path, "--strategy", name, "--budget", "200%", "--dry-run")
        assert found["optimize"] == "none"
        assert any("planned without fusions: " in str(n) for n in found["assumptions"])  # type: ignore[attr-defined]
    done = inside("rewrite", MODEL, "--strategy", "list{names=linear_66}", "--optimize", "none")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("hint: near matches: linear_6")


def test_a_plan_over_budget_says_what_it_reaches(inside: Memplan) -> None:
    done = inside("rewrite", SAMPLES / "lstm.onnx", "--strategy", "speed", "--optimize", "none")
    assert done.returncode == 4
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: strategy 'speed' reaches a peak of ")
    assert ", above the budget of " in error
    assert hint.startswith("hint: it makes the same plan for every budget: allow ")
    assert inside("rewrite", MODEL, "--strategy", "greedy").returncode == 2  # needs a budget


@pytest.mark.parametrize("name", ["speed", "memory"])
def test_results_are_bitwise_equal(name: str, tmp_path: Path) -> None:
    source, output = saved_step(with_dropout, tmp_path), tmp_path / "fits.onnx"
    done = rewrite(source, RewriteOptions(parse_size("100%"), strategy=name), output)
    assert done.plan.clones > 0
    proof = validate(source, output, ValidateOptions(runs=1, plain=False))
    assert not proof.findings, proof.findings
    assert proof.equality == "bitwise"


def test_tensors_that_the_user_keeps_are_a_collection() -> None:
    def planned(strategy: str, *keep: str) -> RewriteOptions:
        return RewriteOptions(
            parse_size("100%"), strategy=strategy, optimize="none", keep=keep, passes="none"
        )

    named = rewrite(MODEL, planned("list{names=linear*}"), dry_run=True)
    kept = rewrite(MODEL, planned("collection", "linear*"), dry_run=True)
    assert named.plan.clones > 0
    assert kept.plan.sequence == named.plan.sequence
    with pytest.raises(UsageError, match="no tensor of the forward part is marked") as caught:
        rewrite(MODEL, planned("collection"), dry_run=True)
    assert "--keep GLOB" in caught.value.hint
