"""A command that is killed while it writes: every output is old or new, and whole.

It ends by SIGKILL at moments spread over all that it does to files: in the middle of a write,
before and behind every fsync, link, rename and removal. Then the same command runs again, and
leaves nothing else in the folder.
"""

import hashlib
import json
import os
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from helpers.graphs import parse
from helpers.moments import Moments
from memplan_cli.main import cli

KILLS = 5
STEP = "step.onnx"
GRAD = ("grad", "forward.onnx", "--loss", "loss", "--no-check", "--weights", "copy")


def make_forward(folder: Path, seed: int) -> None:
    """A network with weights beside it; another ``seed``, other weights."""
    random = np.random.default_rng(seed)
    model = parse("""network (float[16,32] x) => (float loss) {
        a = MatMul (x, w1)  b = Tanh (a)  y = MatMul (b, w2)
        loss = ReduceMean <keepdims = 0> (y) }""")
    for name, size in {"w1": (32, 64), "w2": (64, 8)}.items():
        values = random.normal(0, 0.1, size).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    path, data = folder / "forward.onnx", "forward.onnx.weights"
    (folder / data).unlink(missing_ok=True)
    onnx.save_model(model, path, save_as_external_data=True, location=data, size_threshold=0)


def content(path: Path) -> str:
    """A digest of a model, weights in other files included; fails if it is not whole."""
    return hashlib.sha256(onnx.load(path).SerializeToString(deterministic=True)).hexdigest()


def ended(folder: Path, last: int | None = None) -> int:
    """How the command ended in a fork, which is killed at its ``last`` moment. What the moments
    were is written to a file if it is not."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    code = 70
    try:
        os.chdir(folder)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        moments = Moments(folder, last)
        moments.watch()
        call = [*GRAD, "-o", str(folder / STEP), "--force"]
        code = cli.main(call, prog_name="memplan", standalone_mode=False) or 0
        (folder.parent / "moments.json").write_text(json.dumps(moments.seen))
    finally:
        os._exit(code)


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False])
def test_a_command_that_is_killed_while_it_writes_damages_nothing(
    there: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    step = folder / STEP

    def prepare() -> str | None:
        for path in folder.iterdir():
            path.unlink()
        if there:
            make_forward(folder, 1)
            assert ended(folder) == 0
        make_forward(folder, 2)
        return content(step) if there else None

    old = prepare()
    assert ended(folder) == 0
    new, files = content(step), {path.name for path in folder.iterdir()}
    assert new != old
    moments = json.loads((tmp_path / "moments.json").read_text())
    assert len(moments) >= KILLS
    for kill in range(KILLS):
        prepare()
        status = ended(folder, 1 + kill * len(moments) // KILLS)
        assert os.WTERMSIG(status) == signal.SIGKILL
        assert (content(step) if step.exists() else None) in (old, new)
        assert ended(folder) == 0
        assert content(step) == new
        assert len(list(folder.iterdir())) == len(files)  # weights may have another name
