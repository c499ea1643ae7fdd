"""A step in a type that the provider has no kernels for: nothing is planned that nobody can run."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from helpers.graphs import parse
from helpers.reports import text_of
from memplan.api.analysis import analyze
from memplan.api.rewrite import rewriting
from memplan.api.rewrite.goal import RewriteOptions
from memplan.errors import EXIT_ENVIRONMENT, RuntimeUnavailableError
from memplan.report.tell.analysis import tell_analysis
from memplan.shapes.prepare import load
from memplan.units import parse_budget

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
