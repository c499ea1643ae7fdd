"""What ONNX Runtime gets wrong: told of a user's file, never written into one, never a measure."""

from pathlib import Path

import onnx
import pytest

from helpers.graphs import parse
from helpers.reports import text_of
from memplan import RewriteOptions, rewrite, validate
from memplan.api.analysis import analyze
from memplan.api.rewrite import rewriting
from memplan.errors import EXIT_ENVIRONMENT, ModelError, RuntimeUnavailableError
from memplan.report.tell.analysis import tell_analysis
from memplan.runtime.optimize import optimize_offline
from memplan.shapes.prepare import load
from memplan.units import parse_budget

STEP = """g (float[64,32] p, float[64] v, float[64,32] w)
  => (float[32] y, float loss, float[64,32] w_grad) {
  [t] t = Transpose <perm = [1, 0]> (p)
  [n] y = MatMul (t, v)
  [e] e = Exp (w)
  [h] h = Mul (e, p)
  [k] k = Tanh (h)
  [g] w_grad = Mul (k, e)
  [l] loss = ReduceSum <keepdims = 0> (y)
}"""
# Named without need: the runtime does not move this Transpose behind the Gather.
GATHERED = """[t0] t0 = Transpose <perm = [1, 0]> (p)
  [i] i = Constant <value_ints = [3, 1]> ()
  [t] t = Gather <axis = 0> (t0, i)"""
HALF = """g (float16[64,32] p, int64[8,32] i, float16[8,32] u) => (float16[64,32] y, float16 loss) {
  [e] e = Exp (p)
  [s] s = ScatterElements <reduction = "add"> (e, i, u)
  [t] y = Tanh (s)
  [l] loss = ReduceSum <keepdims = 0> (y)
}"""


def saved(text: str, folder: Path) -> Path:
    path = folder / "step.onnx"
    onnx.save(parse(text), path)
    return path


@pytest.mark.parametrize("session", ["tuned", "default"])
def test_analyze_names_a_wrong_fusion_and_is_still_exact(session: str, tmp_path: Path) -> None:
    found = analyze(saved(STEP, tmp_path), session=session).as_json()
    (note,) = [text for text in found["assumptions"] if "MatmulTransposeFusion" in text]
    assert note.startswith("MatMul 'n' of a transposed matrix and a vector")
    assert found["exact"] is True


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_analyze_says_what_its_provider_cannot_run(provider: str, tmp_path: Path) -> None:
    found = analyze(saved(HALF, tmp_path), provider=provider).as_json()
    notes = [text for text in found["assumptions"] if "cannot run" in text]
    if provider == "cuda":
        assert not notes
        return
    assert notes == [
        "ONNX Runtime cannot run 1 node in float16 on the CPU (ScatterElements 's'): "
        "a step fails at it"
    ]
    assert found["exact"] is False


@pytest.mark.slow
def test_no_wrong_fusion_is_written_nor_a_measure(tmp_path: Path) -> None:
    path, target = saved(STEP, tmp_path), tmp_path / "out.onnx"
    written = rewrite(path, "100%", target)
    said = "fused without MatmulTransposeFusion, which ONNX Runtime gets wrong at MatMul 'n'"
    assert said in written.assumptions
    ops = [node.op_type for node in onnx.load(target).graph.node]
    assert "MatMul" in ops
    assert "FusedMatMul" not in ops
    proof = validate(path, target)
    assert proof.proved
    assert said in proof.notes


@pytest.mark.slow
def test_a_wrong_fusion_that_is_in_a_file_is_found(tmp_path: Path) -> None:
    path, fused = saved(STEP, tmp_path), tmp_path / "fused.onnx"
    optimize_offline(path, fused, "cpu")
    assert "FusedMatMul" in [node.op_type for node in onnx.load(fused).graph.node]
    proof = validate(path, fused)
    assert not proof.proved
    assert any(finding.part == "outputs" for finding in proof.findings)
    assert any("a wrong fusion is in the file" in note for note in proof.notes)


@pytest.mark.slow
def test_nothing_is_planned_for_plain_sessions_that_compute_it_wrongly(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a plain session of ONNX Runtime computes this") as error:
        rewrite(saved(STEP, tmp_path), RewriteOptions("100%", session="default"))
    assert "--session tuned" in error.value.hint


@pytest.mark.slow
def test_what_plain_sessions_leave_alone_is_planned_for_them(tmp_path: Path) -> None:
    path = saved(
        STEP.replace("[t] t = Transpose <perm = [1, 0]> (p)", GATHERED).replace("32] y", "2] y"),
        tmp_path,
    )
    assert any("MatmulTransposeFusion" in text for text in analyze(path).assumptions)
    rewrite(path, RewriteOptions("100%", session="default"), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").exists()


# --- A step in a type that the provider has no kernels for: no plan that nothing runs.

PRODUCT = "g (bfloat16[8, 8] x, bfloat16[8, 8] w) => (bfloat16[8, 8] y) { [m] y = MatMul(x, w) }"


def test_a_step_in_bfloat16_is_refused_for_the_cpu_and_not_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the search; who trains on a GPU plans where there is none."""
    path, target = tmp_path / "step.onnx", tmp_path / "new.onnx"
    onnx.save(parse(PRODUCT), path)
    monkeypatch.setattr(rewriting, "_warm_up", lambda: None)
    options = RewriteOptions(parse_budget("100%"), effort=1)
    with pytest.raises(RuntimeUnavailableError, match="in bfloat16 on the CPU") as caught:
        rewriting.rewrite(path, options, target)
    assert caught.value.exit_code == EXIT_ENVIRONMENT
    assert "--provider cuda" in caught.value.hint
    assert not target.exists()
    rewriting._require_opens(load(path, {}), "cuda")


def test_analyze_says_first_that_no_session_opens(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(parse(PRODUCT), path)
    first, second = text_of(tell_analysis(analyze(path)), width=120).splitlines()[:2]
    text = f"{first} {second}"
    assert first.startswith("ONNX Runtime cannot run 1 node in bfloat16 on the CPU (MatMul 'm')")
    assert "no session opens; use float16 or float32" in text
    cuda = text_of(tell_analysis(analyze(path, provider="cuda")), width=120)
    assert cuda.startswith("peak ")
