"""Models that cannot be read: one clear error, the right exit code, nothing written."""

from __future__ import annotations

import os
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
from helpers.refusals import Done, assert_harmless, assert_refused
from helpers.running import Memplan
from memplan.errors import EXIT_MODEL

pytestmark = pytest.mark.e2e


MODEL = "model.onnx"


@pytest.fixture
def refused(inside: Memplan, tmp_path: Path) -> Callable[..., Done]:
    """Checks that the program refuses: (exit code, words in the error, arguments)."""
    return partial(assert_harmless, inside, tmp_path)


Refused = Callable[..., Done]


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
    saved(odd.training(6), folder)


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
    (cyclic, ("topologically sorted", "'h_grad'")),
    (unsorted, ("topologically sorted",)),
    (doubled, ("'h' has been used as output names multiple times",)),
    (undefined, ("'nowhere'", "is not output of any previous nodes")),
    (unbound, ("'N'", "--dim N=")),
    (old, ("opset 6", "7 and newer")),
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
def test_bad_models(
    make: Callable[[Path], None], words: tuple[str, ...], refused: Refused, tmp_path: Path
) -> None:
    make(tmp_path)
    refused(EXIT_MODEL, words, "analyze", MODEL)


@pytest.mark.parametrize("make", [text, cyclic, unbound, stale_shapes, no_data])
@pytest.mark.parametrize(
    "further", [("rewrite", MODEL, "--budget", "80%"), ("validate", MODEL, MODEL)]
)
def test_bad_models_of_other_commands(
    make: Callable[[Path], None], further: tuple[str, ...], refused: Refused, tmp_path: Path
) -> None:
    make(tmp_path)
    refused(EXIT_MODEL, dict(BAD_MODELS)[make], *further)


@pytest.mark.parametrize("make", [picture, window_too_large])
def test_bad_models_and_the_installed_program(
    make: Callable[[Path], None], memplan: Memplan, tmp_path: Path
) -> None:
    make(tmp_path)
    assert_harmless(memplan, tmp_path, EXIT_MODEL, dict(BAD_MODELS)[make], "analyze", MODEL)


def test_a_model_below_a_file(refused: Refused, tmp_path: Path) -> None:
    saved(odd.training(), tmp_path)
    refused(EXIT_MODEL, ("cannot be read",), "analyze", f"{MODEL}/inner.onnx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_model_that_may_not_be_read(memplan: Memplan, tmp_path: Path) -> None:
    path = saved(odd.training(), tmp_path)
    path.chmod(0)
    assert_refused(memplan("analyze", MODEL), EXIT_MODEL, "Permission denied")


def test_a_name_over_two_lines_is_told_on_one(refused: Refused) -> None:
    refused(EXIT_MODEL, ("no such does not exist",), "analyze", "no\nsuch")


def test_a_name_that_is_no_text_is_told(refused: Refused) -> None:
    refused(EXIT_MODEL, ("does not exist",), "analyze", os.fsdecode(b"n\xff.onnx"))
