"""Which PyTorch memplan was tried with: an older one is refused, a newer one named in a note and in
what fails."""

import sys
import tomllib
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from memplan.errors import ModelError, RuntimeUnavailableError
from memplan.pytorch import installed_torch


def install(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(installed_torch, "find_spec", lambda name: sys)
    monkeypatch.setattr(installed_torch, "version", lambda name: version)


@pytest.mark.parametrize(
    "version", ["2.13.0", "2.14.1+cu130", "2.15.0+cpu", "2.13.0a0+git1234", "unknown"]
)
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
    assert refused.value.hint == "pip install 'torch>=2.13,<2.16'"


def test_a_newer_version_is_noted_and_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "3.0.0")
    installed_torch.require_torch()
    (note,) = installed_torch.torch_notes()
    assert note == "memplan was tried with PyTorch 2.13 to 2.15, and 3.0.0 is installed"
    with (
        pytest.raises(
            RuntimeUnavailableError, match="ImportError: gone; memplan was tried"
        ) as told,
        installed_torch.named_in_failures("capture"),
    ):
        raise ImportError("gone")
    assert told.value.hint == "pip install 'torch>=2.13,<2.16'"


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

    install(monkeypatch, "2.16.0")
    tried = r"tried with PyTorch 2\.13 to 2\.15, and 2\.16\.0 is installed"
    with pytest.warns(UserWarning, match=tried):
        memplan.torch_solver("6GB")
    install(monkeypatch, "2.15.1")
    with warnings.catch_warnings(action="error"):
        memplan.torch_solver("6GB")


def test_the_extra_installs_what_was_tried() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (torch,) = [n for n in project["optional-dependencies"]["torch"] if n.startswith("torch")]
    assert f"pip install '{torch}'" == installed_torch.REMEDY


def other(*_: Any) -> None:
    """What another version of PyTorch could have in the place of a part of it."""


HANDLES = [
    ("torch.autograd.graph", "saved_tensors_hooks.__enter__", None),
    ("torch.onnx._internal.exporter._core", "export", other),
    ("torch.compiler", "set_stance", None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name", "value"), HANDLES)
def test_a_handle_on_pytorch_that_does_not_fit_is_not_the_model_s_fault(
    module: str, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    import memplan

    def loss(model: Any, x: Any) -> Any:
        return model(x).square().mean()

    step = memplan.TorchStep(torch.nn.Linear(3, 2), loss, {"x": torch.randn(4, 3)})
    memplan.capture(step, check=False)  # with everything imported
    owner, _, last = name.rpartition(".")
    place: Any = import_module(module)
    place = getattr(place, owner) if owner else place
    monkeypatch.setattr(place, last, value)
    if value is None:
        monkeypatch.delattr(place, last)
    monkeypatch.setattr(installed_torch, "version", lambda name: "2.16.0")
    with pytest.raises(RuntimeUnavailableError) as told:
        memplan.capture(step)
    assert told.value.message.startswith(
        "memplan's own handle on PyTorch does not fit PyTorch 2.16.0: "
    )
    assert last in told.value.message or "other()" in told.value.message
    assert told.value.message.endswith("tried with PyTorch 2.13 to 2.15")
    assert "/torch/" not in told.value.message
    assert told.value.hint == installed_torch.REMEDY
