"""What a child's failure says to the user."""

from pathlib import Path

import pytest

from memplan.errors import EXIT_ENVIRONMENT, NodeFailedError, RuntimeUnavailableError
from memplan.processes import child as children
from memplan.providers import PROVIDERS
from memplan.runtime import measure
from memplan.runtime.gpu import find_gpu
from memplan.runtime.messages import RunRequest
from memplan.runtime.run_failures import explain

ARENA = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Gemm node. "
    "Name:'layer/7' Status Message: bfc_arena.cc:360 void* AllocateRawInternal(size_t, bool) "
    "Failed to allocate memory for requested buffer of size 3221225472\n"
)


@pytest.mark.parametrize(
    ("error", "provider", "message"),
    [
        (
            ARENA,
            "cuda",
            "running m ran out of memory on the GPU: 3,221,225,472 B (3.00 GiB) were asked for by "
            "Gemm 'layer/7'",
        ),
        ("std::bad_alloc", "cpu", "running m ran out of memory on this machine: std::bad_alloc"),
        (
            "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; expr=x",
            "cuda",
            "running m failed on the GPU: CUDA failure 700: an illegal memory access was "
            "encountered",
        ),
        (
            "CUDA failure 35: CUDA driver version is insufficient ; GPU=0",
            "cuda",
            "CUDA was asked for but ONNX Runtime's CUDA provider did not start: CUDA failure 35: "
            "CUDA driver version is insufficient",
        ),
        ("something\nelse", "cpu", "running m failed: something else"),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:/model.cc:256 M(int&) "
            "Unsupported model IR version: 14, max supported IR version: 13\n",
            "cpu",
            "running m failed: Unsupported model IR version: 14, max supported IR version: 13",
        ),
    ],
)
def test_a_failure_is_one_clear_line(error: str, provider: str, message: str) -> None:
    found = explain(error, "running m", provider)
    assert found.message == message
    assert found.exit_code == EXIT_ENVIRONMENT
    assert "\n" not in found.message + found.hint


def test_a_provider_that_is_absent_says_what_to_install() -> None:
    text = "CUDAExecutionProvider did not start; the session fell back to the CPU"
    assert explain(text, "running m", "cuda").hint == PROVIDERS["cuda"].cure


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("kill -9 $$", "running m ran out of memory|running m failed: the process was killed"),
        ("kill -11 $$", "running m failed: the process died with SIGSEGV"),
        ("kill -40 $$", "running m failed: the process died with signal 40"),
        ("echo x >&2; echo y >&2; exit 3", "running m failed: y"),
        ("exit 3", "running m failed: exit code 3"),
        ("echo 'ImportError: no libz' >&2; exit 1", "ONNX Runtime does not load: no libz"),
    ],
)
def test_a_child_that_dies_leaves_the_parent_alive(
    end: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real-time signal has no name."""
    child = tmp_path / "child.sh"
    child.write_text(f"#!/bin/bash\n{end}\n")
    child.chmod(0o755)
    monkeypatch.setattr(children.sys, "executable", str(child))
    with pytest.raises(RuntimeUnavailableError, match=message):
        measure.run_child("start", RunRequest(provider="cuda"), "running m")


def test_a_child_that_reports_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise children.ChildError(ARENA)

    monkeypatch.setattr(measure, "call", fails)
    with pytest.raises(RuntimeUnavailableError, match="3,221,225,472 B"):
        measure.run_child("start", RunRequest(provider="cuda"), "running m")


def test_without_a_driver_there_is_a_reason() -> None:
    found = find_gpu()
    if not isinstance(found, str):
        pytest.skip("this machine has a GPU")
    assert "driver" in found


def test_a_failure_in_a_node_is_told_apart_from_others() -> None:
    """``validate`` says of it that inputs were made up."""
    inside = "Non-zero status code returned while running Gather node. Name:'g' Status Message: x"
    assert isinstance(explain(inside, "the run", "cpu"), NodeFailedError)
    assert not isinstance(explain("the disk is full", "the run", "cpu"), NodeFailedError)
