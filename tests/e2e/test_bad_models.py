"""Models that cannot be read: one clear error, the right exit code, nothing written.

What is wrong with a file in which words, tests/unit/proto and tests/unit/shapes tell.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import odd_models as odd
from helpers.graphs import parse
from helpers.odd_models import info, saved
from helpers.refusals import assert_harmless, assert_refused
from helpers.running import Memplan
from memplan.errors import EXIT_MODEL

MODEL = "model.onnx"


def picture(folder: Path) -> None:
    (folder / MODEL).write_bytes(
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15"
    )


def undefined(folder: Path) -> None:
    saved(odd.training(reads="nowhere"), folder)


def unbound(folder: Path) -> None:
    saved(odd.symbolic(), folder)


def stale_shapes(folder: Path) -> None:
    model = odd.training()
    model.graph.value_info.append(info("h", [64, 32]))
    saved(model, folder)


def window_too_large(folder: Path) -> None:
    """ONNX's own inference would end the process here."""
    head = "<int64[1] from = {0}, int64[1] to = {2}, int64[1] axis = {2}>"
    model = parse(
        f"g (float[1, 3, 2, 2] image, float[4, 3, 5, 5] kernel) => (float[] s) {head} "
        "{ c = Conv (image, kernel)  s = Slice (c, from, to, axis) }"
    )
    saved(model, folder)


def no_data(folder: Path) -> None:
    odd.external(folder)
    (folder / "weights.bin").unlink()


BAD_MODELS: dict[Callable[[Path], None], tuple[str, ...]] = {
    picture: ("not an ONNX model",),
    undefined: ("'nowhere'", "is not output of any previous nodes"),
    unbound: ("'N'", "--dim N="),
    stale_shapes: ("states float[64, 32]", "value_info"),
    window_too_large: ("window is larger than its image",),
    no_data: ("'weights.bin'", "is missing"),
}


@pytest.mark.parametrize("make", BAD_MODELS)
@pytest.mark.parametrize(
    "command",
    [("analyze", MODEL), ("rewrite", MODEL, "--budget", "80%"), ("validate", MODEL, MODEL)],
)
def test_bad_models(
    make: Callable[[Path], None], command: tuple[str, ...], inside: Memplan, tmp_path: Path
) -> None:
    make(tmp_path)
    assert_harmless(inside, tmp_path, EXIT_MODEL, BAD_MODELS[make], *command)


def test_a_bad_model_and_the_installed_program(memplan: Memplan, tmp_path: Path) -> None:
    window_too_large(tmp_path)
    words = BAD_MODELS[window_too_large]
    assert_harmless(memplan, tmp_path, EXIT_MODEL, words, "analyze", MODEL)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("nothing.onnx", "does not exist"),
        (f"{MODEL}/inner.onnx", "cannot be read"),
        ("no\nsuch", "no such does not exist"),
        (os.fsdecode(b"n\xff.onnx"), "does not exist"),
    ],
    ids=["missing", "below a file", "two lines", "no text"],
)
def test_names_of_no_model(name: str, word: str, inside: Memplan, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    assert_harmless(inside, tmp_path, EXIT_MODEL, (word,), "analyze", name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_model_that_may_not_be_read(inside: Memplan, tmp_path: Path) -> None:
    path = saved(odd.training(), tmp_path)
    path.chmod(0)
    assert_refused(inside("analyze", MODEL), EXIT_MODEL, "Permission denied")
