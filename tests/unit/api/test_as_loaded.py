"""What ``analyze`` says where the runtime was asked, could not be asked, or need not be."""

from pathlib import Path

import pytest

from helpers.graphs import parse
from helpers.odd_models import loop, saved
from helpers.reports import text_of
from memplan.api import versions
from memplan.api.analysis import Analysis, analyze
from memplan.errors import RuntimeUnavailableError
from memplan.report.tell.analysis import tell_analysis
from memplan.runtime import optimize

FUSED = """g (float[8,8] x, float[8,8] w) => (float[8,8] y) {
    t = Transpose <perm = [1, 0]> (w)  a = MatMul(x, t)  y = Relu(a)
}"""


def first_screen(analysis: Analysis) -> str:
    return "\n".join(text_of(tell_analysis(analysis), width=120).splitlines()[:5])


def test_a_plain_session_runs_what_it_fused(tmp_path: Path) -> None:
    found = analyze(saved(parse(FUSED), tmp_path), session="default")
    values = found.as_json()
    assert [node.op for node in found.graph.nodes] == ["FusedMatMul", "Relu"]
    assert (values["as_loaded"], values["exact"]) == (True, True)
    assert found.asked == versions.measured_runtime()
    assert "NOT EXACT" not in first_screen(found)
    assert values["later_runs"]["peak_bytes"] >= values["peak_bytes"]  # type: ignore[index,operator]


def test_a_runtime_that_cannot_be_asked_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise RuntimeUnavailableError("ONNX Runtime is not installed")

    monkeypatch.setattr(optimize, "save_as_loaded", missing)
    found = analyze(saved(parse(FUSED), tmp_path), session="default")
    values = found.as_json()
    assert [node.op for node in found.graph.nodes] == ["Transpose", "MatMul", "Relu"]
    assert (values["as_loaded"], values["exact"]) == (False, False)
    assert any("not installed" in note for note in found.assumptions)
    assert "NOT EXACT" in first_screen(found)


def test_tuned_sessions_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "save_as_loaded", None)
    values = analyze(saved(parse(FUSED), tmp_path)).as_json()
    assert (values["as_loaded"], values["exact"]) == (True, True)
    assert "later_runs" not in values


def test_another_version_makes_figures_inexact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "installed_runtime", lambda: "onnxruntime 1.99.0")
    found = analyze(saved(parse(FUSED), tmp_path))
    assert found.as_json()["exact"] is False
    assert "1.99.0" in first_screen(found)


@pytest.mark.parametrize("session", ["tuned", "default"])
def test_loops_are_exact(tmp_path: Path, session: str) -> None:
    assert analyze(saved(loop(), tmp_path), session=session).as_json()["exact"] is True
