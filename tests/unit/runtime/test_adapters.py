"""WebGPU that does not start, told in one line with the cure."""

import pytest

from memplan.errors import EXIT_ENVIRONMENT, ProviderMissingError
from memplan.runtime import adapters, plugins, sessions
from memplan.runtime.adapters import SOFTWARE_ALLOWED, Adapter, largest_buffer
from memplan.runtime.messages import RunRequest
from memplan.runtime.run_failures import explain
from memplan.runtime.session_options import session_options

SOFT, HARD = Adapter("Soft", True, 8), Adapter("Hard", False, 4)


class Plugin:
    """In the place of the package of WebGPU's library."""

    @staticmethod
    def get_library_path() -> str:
        return "no/library.so"


@pytest.mark.parametrize(
    ("found", "installed", "told"),
    [
        ((HARD,), False, "no onnxruntime-ep-webgpu"),
        ("no Vulkan driver", True, "did not start: no Vulkan driver"),
        ("no Vulkan device", True, "did not start: no Vulkan device"),
        ((SOFT,), True, f"only a software adapter (Soft); {SOFTWARE_ALLOWED}=1 allows it"),
        ((SOFT, HARD), True, "no/library.so"),
    ],
)
def test_why_it_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    found: tuple[Adapter, ...] | str,
    installed: bool,
    told: str,
) -> None:
    def imported(name: str) -> type[Plugin]:
        if not installed:
            raise ImportError(f"No module named '{name}'")
        return Plugin

    monkeypatch.setattr(adapters, "find_adapters", lambda: found)
    monkeypatch.setattr(adapters.sys, "platform", "linux")
    monkeypatch.setattr(plugins, "import_module", imported)
    monkeypatch.delenv(SOFTWARE_ALLOWED, raising=False)
    with pytest.raises(RuntimeError) as refused:
        plugins.register.__wrapped__("webgpu")
    failure = explain(str(refused.value), "starting WebGPU", "webgpu")
    assert isinstance(failure, ProviderMissingError)
    assert failure.exit_code == EXIT_ENVIRONMENT
    assert told in failure.message
    assert "\n" not in failure.message
    assert "onnxruntime-ep-webgpu" in failure.hint
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("error")
def test_a_provider_that_the_runtime_does_not_have_is_told_without_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "register", lambda provider: None)
    with pytest.raises(RuntimeError, match="not in available") as refused:
        sessions.open_session(b"", RunRequest(provider="webgpu"), session_options())
    assert isinstance(explain(str(refused.value), "a run", "webgpu"), ProviderMissingError)


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
