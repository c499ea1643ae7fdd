"""WebGPU that does not start, told in one line with the cure."""

from __future__ import annotations

import pytest

from memplan.errors import EXIT_ENVIRONMENT, ProviderMissingError
from memplan.runtime import adapters
from memplan.runtime.adapters import SOFTWARE_ALLOWED, Adapter, largest_buffer
from memplan.runtime.run_failures import explain

SOFT, HARD = Adapter("Soft", True, 8), Adapter("Hard", False, 4)
NO_ADAPTER = "RuntimeError: No supported adapters: Failed to get a WebGPU adapter."


@pytest.mark.parametrize(
    ("found", "error", "told"),
    [
        (
            (HARD,),
            "webgpu did not start: no onnxruntime-ep-webgpu: none",
            "no onnxruntime-ep-webgpu",
        ),
        ("no Vulkan loader", NO_ADAPTER, "did not start: no Vulkan loader"),
        ("no Vulkan device", NO_ADAPTER, "did not start: no Vulkan device"),
        ((SOFT,), NO_ADAPTER, f"only a software adapter (Soft); {SOFTWARE_ALLOWED}=1 allows it"),
        ((HARD,), NO_ADAPTER, "Failed to get a WebGPU adapter"),
    ],
)
def test_why_it_does_not_start(
    monkeypatch: pytest.MonkeyPatch, found: tuple[Adapter, ...] | str, error: str, told: str
) -> None:
    monkeypatch.setattr(adapters, "find_adapters", lambda: found)
    monkeypatch.setattr(adapters.sys, "platform", "linux")
    monkeypatch.delenv(SOFTWARE_ALLOWED, raising=False)
    failure = explain(error, "starting WebGPU", "webgpu")
    assert isinstance(failure, ProviderMissingError)
    assert failure.exit_code == EXIT_ENVIRONMENT
    assert told in failure.message
    assert "\n" not in failure.message
    assert "onnxruntime-ep-webgpu" in failure.hint


def test_the_largest_buffer_is_of_an_adapter_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapters, "find_adapters", lambda: (SOFT, HARD))
    monkeypatch.delenv(SOFTWARE_ALLOWED, raising=False)
    assert largest_buffer() == ("Hard", 4)
    monkeypatch.setenv(SOFTWARE_ALLOWED, "1")
    assert largest_buffer() == ("Soft", 8)
    monkeypatch.setattr(adapters, "find_adapters", lambda: "no Vulkan driver")
    assert largest_buffer() is None
