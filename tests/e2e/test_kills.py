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
from onnx import TensorProto, helper, numpy_helper

from helpers.moments import Moments
from memplan_cli.main import cli

KILLS = 5
STEP = "step.onnx"
GRAD = ("grad", "forward.onnx", "--loss", "loss", "--no-check", "--weights", "copy")


def make_forward(folder: Path, seed: int) -> None:
    """A network with weights beside it; another ``seed``, other weights."""
    random = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array(random.normal(0, 0.1, size).astype(np.float32), name)
        for name, size in {"w1": (32, 64), "w2": (64, 8)}.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 32])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "network", [x], [loss], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
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
