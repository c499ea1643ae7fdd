"""Which PyTorch memplan was tried with: an older one is refused, a newer one named in a note and in
what fails."""

from __future__ import annotations

import sys
import warnings

import pytest

from memplan.errors import ModelError, RuntimeUnavailableError
from memplan.pytorch import installed_torch


def install(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(installed_torch, "find_spec", lambda name: sys)
    monkeypatch.setattr(installed_torch, "version", lambda name: version)


@pytest.mark.parametrize("version", ["2.13.0", "2.14.1+cu130", "2.13.0a0+git1234", "unknown"])
def test_a_version_that_was_tried_is_not_mentioned(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, version)
    installed_torch.require_torch()
    assert installed_torch.torch_notes() == ()


def test_an_older_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "2.9.1")
    with pytest.raises(RuntimeUnavailableError, match=r"2\.13 or newer, and 2\.9\.1") as refused:
        installed_torch.require_torch()
    assert refused.value.hint == "pip install 'torch>=2.13'"


def test_a_newer_version_is_noted_and_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "3.0.0")
    installed_torch.require_torch()
    (note,) = installed_torch.torch_notes()
    assert note == "memplan was tried with PyTorch 2.13 and 2.14, and 3.0.0 is installed"
    with (
        pytest.raises(
            RuntimeUnavailableError, match="ImportError: gone; memplan was tried"
        ) as told,
        installed_torch.named_in_failures("capture"),
    ):
        raise ImportError("gone")
    assert told.value.hint == "pip install 'torch==2.14.*'"


@pytest.mark.parametrize("error", [ModelError("theirs"), FileNotFoundError("x"), MemoryError()])
def test_other_failures_stay_what_they_are(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "3.0.0")
    with pytest.raises(type(error)), installed_torch.named_in_failures("capture"):
        raise error


def test_a_bug_with_a_version_that_was_tried_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "2.13.0")
    with pytest.raises(KeyError), installed_torch.named_in_failures("capture"):
        raise KeyError("ours")


def test_a_refusal_names_a_newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from memplan.pytorch.torch_errors import refusal

    install(monkeypatch, "3.0.0")
    assert refusal("no", ValueError("odd")).hint.endswith("and 3.0.0 is installed")


def test_the_solver_warns_of_a_version_that_it_was_not_tried_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    import memplan

    install(monkeypatch, "2.14.0")
    with pytest.warns(UserWarning, match=r"tried with PyTorch 2\.13, and 2\.14\.0 is installed"):
        memplan.torch_solver("6GB")
    install(monkeypatch, "2.13.1")
    with warnings.catch_warnings(action="error"):
        memplan.torch_solver("6GB")
