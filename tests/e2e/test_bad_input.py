"""Whatever is wrong with the input: one clear error, the right exit code, nothing written.

Every case checks the exit code, that stderr holds one ``error:`` line and at most one ``hint:``
line, that stdout is empty, and that no file in the folder changed. To be fast, most cases call
the program's ``main`` in this process; bad models are also given to the installed program.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from helpers import odd_models as odd
from helpers.models import SAMPLES
from helpers.odd_models import constant, info, saved
from helpers.running import Memplan, runner
from memplan.errors import EXIT_ENVIRONMENT, EXIT_INFEASIBLE, EXIT_MODEL, EXIT_USAGE

pytestmark = pytest.mark.e2e

MODEL = "model.onnx"
Done = subprocess.CompletedProcess[str]


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below ``folder`` and what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = stat.S_IFMT(path.lstat().st_mode)
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = f"{kind:o} {hashlib.sha256(content).hexdigest()}"
    return found


def assert_refused(done: Done, code: int, *words: str) -> None:
    """One error, told in at most two lines, and nothing else."""
    lines = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert 1 <= len(lines) <= 2, done.stderr
    assert lines[0].startswith("error: "), done.stderr
    assert all(line.startswith("hint: ") for line in lines[1:]), done.stderr
    for word in words:
        assert word in done.stderr


@pytest.fixture
def inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    """Like the ``memplan`` fixture, in this process."""
    return runner(tmp_path, monkeypatch, capfd)


def assert_harmless(run: Memplan, folder: Path, code: int, *rest: object) -> Done:
    """Run with the arguments behind the words; refused, and no file changed."""
    words, *arguments = rest
    before = snapshot(folder)
    done = run(*arguments)
    assert_refused(done, code, *words)  # type: ignore[misc]
    assert snapshot(folder) == before
    return done


@pytest.fixture
def refused(inside: Memplan, tmp_path: Path) -> Callable[..., Done]:
    """Checks that the program refuses: (exit code, words in the error, arguments)."""
    return partial(assert_harmless, inside, tmp_path)


Refused = Callable[..., Done]


# --- models that cannot be read ------------------------------------------------------------------


def empty(folder: Path) -> None:
    (folder / MODEL).write_bytes(b"")


def text(folder: Path) -> None:
    (folder / MODEL).write_text("# not a model\n" * 20)


def picture(folder: Path) -> None:
    (folder / MODEL).write_bytes(
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15"
    )


def a_folder(folder: Path) -> None:
    (folder / MODEL).mkdir()


def nothing(folder: Path) -> None:
    """No file at all."""


def a_broken_link(folder: Path) -> None:
    (folder / MODEL).symlink_to(folder / "gone.onnx")


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / MODEL)


def truncated(folder: Path) -> None:
    data = (SAMPLES / "mlp_adamw.onnx").read_bytes()
    (folder / MODEL).write_bytes(data[: len(data) // 2])


def cyclic(folder: Path) -> None:
    model = odd.training()
    model.graph.node[0].input[0] = "h_grad"
    saved(model, folder)


def unsorted(folder: Path) -> None:
    model = odd.training()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])
    saved(model, folder)


def doubled(folder: Path) -> None:
    model = odd.training()
    model.graph.node[2].output[0] = "h"
    saved(model, folder)


def undefined(folder: Path) -> None:
    model = odd.training()
    model.graph.node[5].input[0] = "nowhere"
    saved(model, folder)


def unbound(folder: Path) -> None:
    saved(odd.symbolic(), folder)


def old(folder: Path) -> None:
    saved(odd.training(8), folder)


def without_outputs(folder: Path) -> None:
    model = odd.training()
    del model.graph.output[:]
    saved(model, folder)


def stale_shapes(folder: Path) -> None:
    model = odd.training()
    model.graph.value_info.append(info("h", [64, 32]))
    saved(model, folder)


def unknown_shape(folder: Path) -> None:
    model = odd.unknown_operator()
    del model.graph.value_info[:]
    saved(model, folder)


def damaged_constant(folder: Path) -> None:
    model = odd.training()
    model.graph.initializer[0].raw_data = b"\0" * 12
    saved(model, folder)


def window_too_large(folder: Path) -> None:
    """ONNX's own inference would end the process here."""
    bounds = [constant(k, [v], np.int64) for k, v in (("from", 0), ("to", 2), ("axis", 2))]
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["c"]),
        helper.make_node("Slice", ["c", "from", "to", "axis"], ["s"]),
    ]
    given = [odd.weights("kernel", 4, 3, 5, 5), *bounds]
    saved(odd.model(nodes, [info("image", [1, 3, 2, 2])], [info("s", None)], given), folder)


def no_data(folder: Path) -> None:
    odd.external(folder)
    (folder / "weights.bin").unlink()


def short_data(folder: Path) -> None:
    odd.external(folder)
    data = folder / "weights.bin"
    data.write_bytes(data.read_bytes()[:-4])


def _relocated(folder: Path, location: str) -> None:
    path = odd.external(folder)
    model = onnx.load(path, load_external_data=False)
    for item in model.graph.initializer[0].external_data:
        if item.key == "location":
            item.value = location
    path.write_bytes(model.SerializeToString())


def absolute_data(folder: Path) -> None:
    _relocated(folder, str(folder / "weights.bin"))


def escaping_data(folder: Path) -> None:
    _relocated(folder, f"../{folder.name}/weights.bin")


def linked_data(folder: Path) -> None:
    odd.external(folder)
    elsewhere = folder.parent / f"{folder.name}-elsewhere"
    elsewhere.mkdir()
    (folder / "weights.bin").rename(elsewhere / "weights.bin")
    (folder / "weights.bin").symlink_to(elsewhere / "weights.bin")


BAD_MODELS: tuple[tuple[Callable[[Path], None], tuple[str, ...]], ...] = (
    (empty, ("no ONNX graph",)),
    (text, ("not an ONNX model",)),
    (picture, ("not an ONNX model",)),
    (a_folder, ("is not a file",)),
    (nothing, ("does not exist",)),
    (a_broken_link, ("does not exist",)),
    (a_pipe, ("is not a file",)),
    (truncated, ("truncated",)),
    (cyclic, ("cycle",)),
    (unsorted, ("not sorted",)),
    (doubled, ("'h' is defined twice",)),
    (undefined, ("'nowhere'", "nothing defines")),
    (unbound, ("'N'", "--dim N=")),
    (old, ("opset 8", "9 and newer")),
    (without_outputs, ("no outputs",)),
    (stale_shapes, ("states float[64, 32]", "value_info")),
    (unknown_shape, ("shape of tensor 'a'", "not known")),
    (damaged_constant, ("needs 2,048 bytes and has 12",)),
    (window_too_large, ("window is larger than its image",)),
    (no_data, ("'weights.bin'", "is missing")),
    (short_data, ("has only",)),
    (absolute_data, ("outside the model's folder",)),
    (escaping_data, ("outside the model's folder",)),
    (linked_data, ("through a link",)),
)


@pytest.mark.parametrize(("make", "words"), BAD_MODELS, ids=[m.__name__ for m, _ in BAD_MODELS])
@pytest.mark.parametrize("command", ["analyze", "rewrite", "validate"])
def test_bad_models(
    make: Callable[[Path], None],
    words: tuple[str, ...],
    command: str,
    refused: Refused,
    tmp_path: Path,
) -> None:
    make(tmp_path)
    further = {"analyze": [], "rewrite": ["--budget", "80%"], "validate": [MODEL]}[command]
    refused(EXIT_MODEL, words, command, MODEL, *further)


@pytest.mark.parametrize(("make", "words"), BAD_MODELS, ids=[m.__name__ for m, _ in BAD_MODELS])
def test_bad_models_and_the_installed_program(
    make: Callable[[Path], None], words: tuple[str, ...], memplan: Memplan, tmp_path: Path
) -> None:
    make(tmp_path)
    assert_harmless(memplan, tmp_path, EXIT_MODEL, words, "analyze", MODEL)


def test_a_model_below_a_file(refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    refused(EXIT_MODEL, ("cannot be read",), "analyze", f"{MODEL}/inner.onnx")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_model_that_may_not_be_read(memplan: Memplan, tmp_path: Path) -> None:
    path = saved(odd.training(), tmp_path)
    path.chmod(0)
    assert_refused(memplan("analyze", MODEL), EXIT_MODEL, "Permission denied")


def test_a_name_over_two_lines_is_told_on_one(refused: Refused) -> None:
    refused(EXIT_MODEL, ("no such does not exist",), "analyze", "no\nsuch")


def test_a_name_that_is_no_text_is_told(refused: Refused) -> None:
    refused(EXIT_MODEL, ("does not exist",), "analyze", os.fsdecode(b"n\xff.onnx"))


# --- arguments -----------------------------------------------------------------------------------

ANALYZE = ("analyze", MODEL)
REWRITE = ("rewrite", MODEL, "--optimize", "none", "--budget")
FULL = (*REWRITE, "100%")
BAD_ARGUMENTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("nonsense",), ("nonsense",)),
    (("analyze",), ("MODEL", "memplan analyze --help")),
    (("analyze", MODEL, "extra"), ("extra",)),
    ((*ANALYZE, "--nonsense"), ("--nonsense",)),
    ((*ANALYZE, "--session", "nonsense"), ("nonsense", "tuned")),
    ((*ANALYZE, "--provider", "rocm"), ("rocm", "cuda")),
    ((*ANALYZE, "--format", "xml"), ("xml", "json")),
    ((*ANALYZE, "--top", "-1"), ("--top",)),
    ((*ANALYZE, "--top", "many"), ("many",)),
    ((*ANALYZE, "--loss", "nonsense"), ("--loss nonsense", "outputs: loss")),
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
    ((*REWRITE, "0"), ("leaves nothing",)),
    ((*REWRITE, "-5"), ("not a size",)),
    ((*REWRITE, "-4GB"), ("not a size",)),
    ((*REWRITE, "4G"), ("ambiguous", "4GB", "4GiB")),
    ((*REWRITE, "4X"), ("unknown unit 'X'",)),
    ((*REWRITE, "abc"), ("not a size",)),
    ((*REWRITE, ""), ("not a size",)),
    ((*REWRITE, "0%"), ("leaves nothing",)),
    ((*REWRITE, "0.001%"), ("leaves nothing",)),
    ((*REWRITE, "9" * 22 + "GB"), ("more than any machine has",)),
    ((*FULL, "--reserve", "4G"), ("ambiguous",)),
    ((*FULL, "--reserve", "100%"), ("leaves nothing",)),
    ((*FULL, "--strategy", "nonsense"), ("no strategy 'nonsense'", "auto")),
    ((*FULL, "--strategy", "none{x=1}"), ("no option 'x'",)),
    ((*FULL, "--strategy", "none{"), ("is not a strategy",)),
    ((*FULL, "--strategy", ""), ("is not a strategy",)),
    ((*FULL, "--optimize", "most"), ("most",)),
    ((*FULL, "--time-limit", "0"), ("--time-limit",)),
    ((*FULL, "--time-limit", "soon"), ("soon",)),
    ((*FULL, "--device", "abacus"), ("abacus", "h200")),
    ((*FULL, "--keep", "nonsense*"), ("--keep nonsense*", "no tensor or node")),
    ((*FULL, "--recompute", "nonsense*"), ("--recompute nonsense*", "no tensor or node")),
    ((*FULL, "--keep", "x"), ("--keep x", "no tensor or node")),
    ((*FULL, "--costs", "none.json"), ("none.json",)),
    ((*FULL, "-o", "-", "--format", "json"), ("stdout",)),
    (("validate", MODEL), ("REWRITTEN",)),
    (("validate", MODEL, MODEL, "--runs", "0"), ("--runs",)),
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


# --- outputs -------------------------------------------------------------------------------------

TO = {
    "analyze": ("analyze", MODEL, "--format", "json"),
    "rewrite": FULL,
    "validate": ("validate", MODEL, MODEL, "--format", "json"),
}


@pytest.mark.parametrize("command", TO)
@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("there", ("there exists", "--force")),
        (MODEL, ("model.onnx",)),
        ("missing/out", ("folder missing does not exist",)),
        ("there/out", ("folder there does not exist",)),
        (".", ("is a folder",)),
        (os.devnull, ("not a regular file",)),
        ("a" * 300, ("name too long",)),
    ],
)
def test_outputs_that_cannot_be_written(
    command: str, output: str, words: tuple[str, ...], refused: Refused, tmp_path: Path
) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "there").write_text("mine")
    refused(EXIT_USAGE, words, *TO[command], "-o", output)


@pytest.mark.parametrize("command", TO)
def test_inputs_are_never_overwritten_not_even_with_force(
    command: str, refused: Refused, tmp_path: Path
) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "link.onnx").symlink_to(MODEL)
    for output in (MODEL, f"./{MODEL}", "link.onnx"):
        refused(EXIT_USAGE, ("never overwritten",), *TO[command], "-o", output, "--force")


def test_the_default_output_is_not_replaced_either(refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "model.memplan.onnx").write_text("mine")
    refused(EXIT_USAGE, ("model.memplan.onnx exists",), *FULL)


def test_a_folder_from_which_the_weights_cannot_be_reached(
    refused: Refused, tmp_path: Path
) -> None:
    odd.external(tmp_path / "model", MODEL)
    (tmp_path / "out").mkdir()
    command = ("rewrite", f"model/{MODEL}", "--budget", "100%", "-o")
    refused(EXIT_USAGE, ("cannot be referenced", "model"), *command, "out/model.onnx")


# --- budgets that no plan keeps ------------------------------------------------------------------


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


# --- costs ---------------------------------------------------------------------------------------


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


# --- validate ------------------------------------------------------------------------------------


def test_two_unrelated_models(refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    saved(odd.scalars(), tmp_path, "other.onnx")
    refused(EXIT_USAGE, ("different graph inputs",), "validate", MODEL, "other.onnx")
    saved(odd.output_and_stash(), tmp_path, "third.onnx")
    refused(EXIT_USAGE, ("different graph outputs",), "validate", MODEL, "third.onnx")


def _without_gpu() -> bool:
    return shutil.which("nvidia-smi") is None and not Path("/dev/nvidia0").exists()


@pytest.mark.ort
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


@pytest.mark.ort
def test_an_operator_that_the_runtime_does_not_know(refused: Refused, tmp_path: Path) -> None:
    saved(odd.unknown_operator(), tmp_path)
    refused(EXIT_ENVIRONMENT, ("Swoosh",), "validate", MODEL, MODEL)


def _archive(folder: Path, **arrays: np.ndarray) -> bytes:
    np.savez(folder / "made.npz", **arrays)
    data = (folder / "made.npz").read_bytes()
    (folder / "made.npz").unlink()
    return data


GOOD = {"x": np.zeros((8, 16), np.float32)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: b"just text", ("inputs.npz",)),
        (lambda folder: _archive(folder, y=GOOD["x"]), ("no array 'x'",)),
        (lambda folder: _archive(folder, x=GOOD["x"][:, :15]), ("float32[8, 15]", "[8, 16]")),
        (lambda folder: _archive(folder, x=GOOD["x"].astype(np.float64)), ("float64", "float32")),
        (lambda folder: _archive(folder, x=np.array([{}], object)), ("inputs.npz",)),
        pytest.param(lambda folder: b"", ("inputs.npz",)),
        pytest.param(lambda folder: _archive(folder, **GOOD)[:200], ("inputs.npz",)),
        pytest.param(lambda folder: _flipped(_archive(folder, **GOOD)), ("inputs.npz",)),
        pytest.param(lambda folder: _array_file(folder), ("inputs.npz",)),
    ],
    ids=["text", "missing", "shape", "type", "objects", "empty", "cut", "flipped", "npy"],
)
def test_inputs_that_do_not_fit(
    make: Callable[[Path], bytes], words: tuple[str, ...], refused: Refused, tmp_path: Path
) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "inputs.npz").write_bytes(make(tmp_path))
    refused(EXIT_USAGE, words, "validate", MODEL, MODEL, "--inputs", "inputs.npz")


def _flipped(data: bytes) -> bytes:
    return data[:100] + bytes([data[100] ^ 255]) + data[101:]


def _array_file(folder: Path) -> bytes:
    np.save(folder / "made.npy", GOOD["x"])
    data = (folder / "made.npy").read_bytes()
    (folder / "made.npy").unlink()
    return data


# --- pyproject.toml ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[tool.memplan", ("pyproject.toml", "TOML")),
        ("\xff", ("pyproject.toml",)),
        ("[tool]\nmemplan = 3", ("tool.memplan is not a table",)),
        ("[tool.memplan]\nanalyze = 3", ("tool.memplan.analyze is not a table",)),
        ("[tool.memplan]\nsesion = 'tuned'", ("tool.memplan.sesion is not an option",)),
        ("[tool.memplan.analyze]\nbudget = '1GB'", ("tool.memplan.budget is not an option",)),
        ("[tool.memplan.analise]\ntop = 3", ("no command 'analise'",)),
        ("[tool.memplan]\ntop = 'three'", ("tool.memplan.top = 'three'", "whole number")),
        ("[tool.memplan]\ntop = true", ("tool.memplan.top = True", "whole number")),
        ("[tool.memplan]\ntop = 2.5", ("tool.memplan.top = 2.5", "whole number")),
        ("[tool.memplan]\nquiet = 'yes'", ("tool.memplan.quiet = 'yes'", "true or false")),
        ("[tool.memplan]\nquiet = 1", ("tool.memplan.quiet = 1", "true or false")),
        ("[tool.memplan]\nsession = ['tuned']", ("tool.memplan.session", "a string")),
        ("[tool.memplan]\ndim = [1.5]", ("tool.memplan.dim = 1.5", "a string")),
        ("[tool.memplan]\nsession = 'none'", ("'none' is not one of", "pyproject.toml")),
        ("[tool.memplan]\ntop = -1", ("-1", "pyproject.toml")),
    ],
)
def test_a_broken_configuration(
    content: str, words: tuple[str, ...], refused: Refused, tmp_path: Path
) -> None:
    saved(odd.training(), tmp_path)
    (tmp_path / "pyproject.toml").write_bytes(content.encode("latin-1"))
    refused(EXIT_USAGE, words, *ANALYZE)


def test_help_works_beside_a_broken_configuration(memplan: Memplan, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.memplan")
    done = memplan("analyze", "--help")
    assert done.returncode == 0
    assert "--budget" not in done.stdout
    assert "--dim" in done.stdout
