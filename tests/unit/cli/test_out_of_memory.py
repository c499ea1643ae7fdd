"""What does not fit into memory, and a runtime that is not there: answers, with exit code 5."""

import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import memplan
from helpers.graphs import parse
from helpers.running import Memplan
from memplan.errors import EXIT_ENVIRONMENT, RuntimeUnavailableError
from memplan.runtime import installed, room
from memplan.runtime.run_failures import explain
from memplan.training.initial import initial_state
from memplan.training.step_file import read_step


def a_step(size: int | str = 4, weights: int = 4) -> onnx.ModelProto:
    model = parse(
        f"t (float[{weights}, 4] w, float lr, float[{size}, 4] x) => (float loss, "
        f"float[{weights}, 4] w_new) {{ s = ReduceSum<keepdims = 0>(x) q = Mul(w, s)"
        "  loss = ReduceSum<keepdims = 0>(q) u = Mul(s, lr) w_new = Sub(w, u) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "lr"))
    return model


def test_parameters_that_no_memory_holds_are_told_before_any_is_made(
    inside: Memplan, tmp_path: Path
) -> None:
    onnx.save(a_step(weights=2**48), tmp_path / "step.onnx")
    done = inside("run", "step.onnx", "--init", "random", "--steps", "1")
    assert done.returncode == EXIT_ENVIRONMENT
    assert "the weights and the optimizer state of the step take" in done.stderr
    assert "hint: use a smaller batch or smaller sizes" in done.stderr


def test_a_large_state_is_told_before_it_is_filled(
    inside: Memplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memplan_cli import run as command

    monkeypatch.setattr(command, "_LARGE", 64)
    onnx.save(a_step(), tmp_path / "step.onnx")
    done = inside("run", "step.onnx", "--init", "random", "--steps", "1")
    assert (done.returncode, done.stderr.splitlines()[0][:13]) == (0, "state: 64 B, ")


@pytest.mark.parametrize("batch", [10**12, 4 * 10**11])
def test_a_batch_that_no_memory_holds(batch: int, inside: Memplan, tmp_path: Path) -> None:
    onnx.save(a_step("N"), tmp_path / "step.onnx")
    done = inside("run", "step.onnx", "--init", "random", "--dim", f"N={batch}", "--steps", "1")
    assert done.returncode == EXIT_ENVIRONMENT
    assert "4 synthetic batches and their copy take" in done.stderr


def test_out_of_memory_is_no_bug(
    inside: Memplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 64.0 GiB for an array with shape (8,)")

    monkeypatch.setattr("memplan.api.analysis.open_step", greedy)
    onnx.save(a_step(), tmp_path / "step.onnx")
    done = inside("analyze", "step.onnx")
    assert done.returncode == EXIT_ENVIRONMENT
    assert done.stderr.startswith("error: out of memory: 64.0 GiB for an array with shape (8,)")


def test_data_that_no_memory_holds(
    inside: Memplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(a_step(), tmp_path / "step.onnx")
    np.savez_compressed(tmp_path / "data.npz", x=np.zeros((1 << 16, 4), np.float32))
    monkeypatch.setattr(room, "room_bytes", lambda: 1 << 19)
    done = inside("run", "step.onnx", "--init", "random", "--data", "data.npz")
    assert done.returncode == EXIT_ENVIRONMENT
    assert "the arrays in data.npz take 1.00 MiB, and there is 512 KiB of memory" in done.stderr


def test_random_parameters_are_drawn_without_a_copy_of_twice_their_size() -> None:
    step = read_step(a_step(weights=1 << 20))
    tracemalloc.start()
    try:
        values, _ = initial_state(step, {}, "random", 3)
        assert tracemalloc.get_traced_memory()[1] < 2 * values["w"].nbytes
    finally:
        tracemalloc.stop()
    assert values["w"].dtype == np.float32


def test_random_parameters_are_those_of_one_draw() -> None:
    step = read_step(a_step(weights=1 << 19))  # two pieces
    bound = np.sqrt(6 / ((1 << 19) + 4))
    drawn = np.random.default_rng([3, zlib.crc32(b"w")]).uniform(-bound, bound, (1 << 19, 4))
    values, _ = initial_state(step, {}, "random", 3)
    np.testing.assert_array_equal(values["w"], drawn.astype(np.float32))


def test_a_missing_runtime_is_told_with_what_to_install(
    inside: Memplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'onnxruntime'")

    monkeypatch.setattr(installed, "import_module", missing)
    onnx.save(a_step(), tmp_path / "step.onnx")
    done = inside("run", "step.onnx", "--init", "random")
    assert done.returncode == EXIT_ENVIRONMENT
    assert done.stderr.splitlines() == [
        "error: ONNX Runtime is not installed",
        "hint: pip install onnxruntime-gpu (or onnxruntime)",
    ]
    for call in (memplan.load, memplan.session_options):
        with pytest.raises(RuntimeUnavailableError, match="is not installed"):
            call(tmp_path / "step.onnx")


def test_a_runtime_that_does_not_load_in_a_child_has_a_hint() -> None:
    error = explain("ImportError: libcudart.so.13: cannot open", "running m.onnx", "cpu")
    assert error.message == "ONNX Runtime does not load: libcudart.so.13: cannot open"
    assert "pip install" in error.hint
