"""Arguments, outputs, budgets and files that cannot work: one clear error, nothing written."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from helpers import odd_models as odd
from helpers.odd_models import saved
from helpers.refusals import Done, assert_harmless
from helpers.running import Memplan
from memplan.errors import EXIT_ENVIRONMENT, EXIT_INFEASIBLE, EXIT_USAGE

MODEL = "model.onnx"


@pytest.fixture
def refused(inside: Memplan, tmp_path: Path) -> Callable[..., Done]:
    """Checks that the program refuses: (exit code, words in the error, arguments)."""
    return partial(assert_harmless, inside, tmp_path)


Refused = Callable[..., Done]


ANALYZE = ("analyze", MODEL)


REWRITE = ("rewrite", MODEL, "--optimize", "none", "--budget")


FULL = (*REWRITE, "100%")


BAD_ARGUMENTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("nonsense",), ("nonsense",)),
    (("analyze",), ("MODEL", "memplan analyze --help")),
    (("analyze", MODEL, "extra"), ("extra",)),
    ((*ANALYZE, "--nonsense"), ("--nonsense",)),
    ((*ANALYZE, "--provider", "rocm"), ("rocm", "cuda")),
    ((*ANALYZE, "--top", "-1"), ("--top",)),
    ((*ANALYZE, "--loss", "nonsense"), ("--loss nonsense", "outputs: loss")),
    ((*FULL, "--time-limit", "inf"), ("--time-limit", "not a finite number")),
    ((*FULL, "--time-limit", "nan"), ("--time-limit",)),
    ((*ANALYZE, "--dim", "N"), ("--dim N", "NAME=SIZE")),
    ((*ANALYZE, "--dim", "N="), ("NAME=SIZE",)),
    ((*ANALYZE, "--dim", "=3"), ("NAME=SIZE",)),
    ((*ANALYZE, "--dim", "N=0"), ("NAME=SIZE",)),
    ((*ANALYZE, "--dim", "N=-3"), ("NAME=SIZE",)),
    ((*ANALYZE, "--dim", "N=1.5"), ("NAME=SIZE",)),
    ((*ANALYZE, "--dim", "N=\N{SUPERSCRIPT TWO}"), ("NAME=SIZE",)),
    ((*ANALYZE, "--dim", "N=" + "9" * 30), ("NAME=SIZE",)),
    ((*ANALYZE, "--dim", "N=3"), ("--dim N", "no input has")),
    ((*ANALYZE, "--dim", "N=3", "--dim", "N=4"), ("given twice",)),
    (("rewrite", MODEL), ("--budget",)),
    ((*REWRITE, "-4GB"), ("not a size",)),
    ((*REWRITE, "4G"), ("ambiguous", "4GB", "4GiB")),
    ((*REWRITE, "0.001%"), ("leaves nothing",)),
    ((*REWRITE, "9" * 22 + "GB"), ("more than any machine has",)),
    ((*FULL, "--reserve", "4G"), ("ambiguous",)),
    ((*FULL, "--reserve", "100%"), ("leaves nothing",)),
    ((*FULL, "--strategy", "nonsense"), ("unknown strategy 'nonsense'", "auto")),
    ((*FULL, "--strategy", "none{x=1}"), ("no option 'x'",)),
    ((*FULL, "--strategy", "none{"), ("expected a strategy",)),
    ((*FULL, "--strategy", ""), ("expected a strategy",)),
    ((*FULL, "--time-limit", "0"), ("--time-limit",)),
    ((*FULL, "--device", "abacus"), ("abacus", "h200")),
    ((*FULL, "--keep", "nonsense*"), ("--keep nonsense*", "no tensor or node")),
    ((*FULL, "--recompute", "nonsense*"), ("--recompute nonsense*", "no tensor or node")),
    ((*FULL, "--keep", "x"), ("--keep x", "no tensor or node")),
    ((*FULL, "--costs", "none.json"), ("none.json",)),
    ((*FULL, "-o", "-", "--format", "json"), ("stdout",)),
    (("validate", MODEL), ("REWRITTEN",)),
    (("validate", MODEL, MODEL, "--runs", "0"), ("--runs",)),
    (("validate", MODEL, MODEL, "--draws", "0"), ("--draws",)),
    (("validate", MODEL, MODEL, "--time-limit", "0"), ("--time-limit",)),
    (("validate", MODEL, MODEL, "--time-limit", "inf"), ("--time-limit", "not a finite number")),
    (("validate", MODEL, MODEL, "--time-limit", "nan"), ("--time-limit",)),
    (("profile", MODEL), ("-o",)),
    (("profile", MODEL, "-o", "c.json", "--time-limit", "inf"), ("not a finite number",)),
    (("validate", MODEL, MODEL, "--dim", "N"), ("NAME=SIZE",)),
    (("validate", MODEL, MODEL, "--inputs", "none.npz"), ("none.npz",)),
)


@pytest.mark.parametrize(
    ("arguments", "words"), BAD_ARGUMENTS, ids=[" ".join(a[-2:])[:30] for a, _ in BAD_ARGUMENTS]
)
def test_bad_arguments(
    arguments: tuple[str, ...], words: tuple[str, ...], refused: Refused, tmp_path: Path
) -> None:
    saved(odd.training(), tmp_path)
    refused(EXIT_USAGE, words, *arguments)


def test_no_arguments_show_the_commands(memplan: Memplan) -> None:
    done = memplan()
    assert done.returncode == EXIT_USAGE
    assert "analyze" in done.stdout
    assert "Traceback" not in done.stderr


TO = {
    "analyze": ("analyze", MODEL, "--format", "json"),
    "profile": ("profile", MODEL),
    "rewrite": FULL,
    "validate": ("validate", MODEL, MODEL, "--format", "json"),
}


@pytest.mark.parametrize("command", TO)
def test_outputs_that_cannot_be_written(command: str, refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "there").write_text("mine")
    refused(EXIT_USAGE, ("there exists", "--force"), *TO[command], "-o", "there")
    refused(EXIT_USAGE, ("folder missing does not exist",), *TO[command], "-o", "missing/out")


def test_the_default_output_is_not_replaced_either(refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "model.memplan.onnx").write_text("mine")
    refused(EXIT_USAGE, ("model.memplan.onnx exists",), *FULL)


def test_a_folder_from_which_the_weights_cannot_be_reached(
    refused: Refused, tmp_path: Path
) -> None:
    odd.external(tmp_path / "model", MODEL)
    (tmp_path / "out").mkdir()
    command = ("rewrite", f"model/{MODEL}", "--budget", "100%", "--weights", "reference", "-o")
    words = ("cannot be referenced", "model", "--weights copy takes")
    refused(EXIT_USAGE, words, *command, "out/model.onnx")


@pytest.mark.parametrize("optimize", ["none", "extended"])
def test_a_budget_below_the_floor(
    optimize: str, inside: Memplan, refused: Refused, tmp_path: Path
) -> None:
    saved(odd.training(), tmp_path)
    done = refused(
        EXIT_INFEASIBLE,
        ("below the floor", "resident"),
        "rewrite",
        MODEL,
        "--budget",
        "3000",
        "--optimize",
        optimize,
    )
    if optimize == "none":
        told = json.loads(inside("analyze", MODEL, "--format", "json").stdout)
        assert f"{told['floor_with_workspace_bytes']:,} B" in done.stderr


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "[1",
        '{"seconds": 3}',
        '{"seconds": {"fc1": "slow"}}',
        "\xff\xfe",
        '{"seconds": {"fc1": -1}}',
        '{"seconds": {"fc1": NaN}}',
    ],
)
def test_costs_that_cannot_be_read(content: str, refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "costs.json").write_bytes(content.encode("latin-1"))
    refused(EXIT_USAGE, ("costs.json",), *FULL, "--costs", "costs.json", "--dry-run")


def test_two_unrelated_models(refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    saved(odd.scalars(), tmp_path, "other.onnx")
    refused(EXIT_USAGE, ("different graph inputs",), "validate", MODEL, "other.onnx")
    saved(odd.output_and_stash(), tmp_path, "third.onnx")
    refused(EXIT_USAGE, ("different graph outputs",), "validate", MODEL, "third.onnx")


def _without_gpu() -> bool:
    return shutil.which("nvidia-smi") is None and not Path("/dev/nvidia0").exists()


@pytest.mark.skipif(not _without_gpu(), reason="this machine has a GPU")
def test_cuda_without_a_gpu(refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    refused(
        EXIT_ENVIRONMENT,
        ("CUDA", "onnxruntime-gpu", "--provider cpu"),
        "validate",
        MODEL,
        MODEL,
        "--provider",
        "cuda",
    )


def test_an_operator_that_the_runtime_does_not_know(refused: Refused, tmp_path: Path) -> None:
    saved(odd.unknown_operator(), tmp_path)
    refused(EXIT_ENVIRONMENT, ("Swoosh",), "validate", MODEL, MODEL)


def test_inputs_that_do_not_fit(refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    given = ("validate", MODEL, MODEL, "--inputs", "inputs.npz")
    (tmp_path / "inputs.npz").write_bytes(b"just text")
    refused(EXIT_USAGE, ("inputs.npz",), *given)
    np.savez(tmp_path / "inputs.npz", x=np.zeros((8, 15), np.float32))
    refused(EXIT_USAGE, ("float32[8, 15]", "[8, 16]"), *given)


@pytest.mark.parametrize(
    "content", ["[tool.memplan]\ntop = 3", "[ tool.memplan . analyze ]\ntop = 3"]
)
def test_a_table_of_defaults_is_refused(content: str, refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "x"\n{content}\n')
    refused(EXIT_USAGE, ("[tool.memplan] is no longer read",), *ANALYZE)


def test_a_pyproject_of_others_changes_nothing(memplan: Memplan, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "pyproject.toml").write_bytes(b'[tool.memplanner]\ntop = "z"\n\xff[')
    assert memplan(*ANALYZE).returncode == 0
