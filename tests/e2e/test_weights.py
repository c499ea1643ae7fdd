"""Models whose weights lie in other files, as exporters write them, wherever the output goes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from helpers import odd_models as odd
from helpers.graphs import parse
from helpers.refusals import assert_harmless
from helpers.running import Memplan
from memplan.errors import EXIT_USAGE
from memplan.proto.external import external_entry, external_tensors
from memplan.proto.read import read_model

MODEL = "deep/model.onnx"
NIGHTLY = pytest.mark.nightly
MODES = ("reference", "copy")


def place_for(mode: str, folder: Path) -> str:
    """Where the output goes: to a folder from which the weights can(not) be referred to."""
    (folder / "aside").mkdir(exist_ok=True)
    return "out.onnx" if mode == "reference" else "aside/out.onnx"


@pytest.mark.parametrize("session", ["tuned", pytest.param("default", marks=NIGHTLY)])
def test_the_output_may_lie_anywhere_and_is_fused_and_proved(
    inside: Memplan, tmp_path: Path, session: str
) -> None:
    odd.external(tmp_path, MODEL)
    onnx.save(odd.training(), tmp_path / "whole.onnx")
    # Later runs of a plain session hold a block beside.
    budget = "100%" if session == "tuned" else "150%"
    options = ("--budget", budget, "--session", session, "--format", "json")

    def answer(*arguments: str) -> dict[str, object]:
        done = inside("rewrite", *arguments, *options)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    def proof(model: str, out: str) -> dict[str, Any]:
        done = inside("validate", model, out, "--runs", "1", "--draws", "1", "--format", "json")
        assert done.returncode == 0, done.stdout
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    whole = answer("whole.onnx", "-o", "whole.out.onnx")
    expected = proof("whole.onnx", "whole.out.onnx")
    assert whole["optimize"] == "extended"
    assert whole["weights"] is None
    for mode in MODES:
        out = place_for(mode, tmp_path)
        found = answer(MODEL, "-o", out, "--weights", mode, "--force")
        assert found["weights"] == mode
        # Nothing is lost by weights being elsewhere: neither fusions nor the look at what a plain
        # session makes of the file.
        for key in ("optimize", "predicted_peak_bytes", "recomputed_nodes", "assumptions"):
            assert found[key] == whole[key], (mode, key)
        shown = proof(MODEL, out)
        assert shown["equality"] == expected["equality"]
        assert session == "default" or shown["equality"] == "bitwise"
        for run in ("original", "rewritten"):
            for peak in ("predicted_peak_bytes", "measured_peak_bytes"):
                assert shown[run][peak] == expected[run][peak]
        assert shown["notes"] == expected["notes"]


def values(path: Path) -> dict[str, np.ndarray]:
    model = onnx.load(path)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("mode", MODES)
def test_a_training_graph_takes_its_weights_along(
    inside: Memplan, tmp_path: Path, mode: str
) -> None:
    odd.external(tmp_path, MODEL)
    out = place_for(mode, tmp_path)
    done = inside("grad", MODEL, "-o", out, "--loss", "loss", "--weights", mode, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["weights"] == mode
    read_model(tmp_path / out)
    before, after = values(tmp_path / MODEL), values(tmp_path / out)
    for name in ("w1", "w2"):
        assert np.array_equal(before[name], after[name])
    tensors = list(external_tensors(onnx.load(tmp_path / out, load_external_data=False)))
    places = [int(external_entry(tensor, "offset") or 0) for tensor in tensors]
    assert len(places) > 1
    # Where the runtime can map the pages of the file.
    assert mode == "reference" or not any(place % 4096 for place in places)
    assert (tmp_path / "aside/out.onnx.data").exists() == (mode == "copy")


def test_where_nobody_says_the_weights_are_referred_to_or_a_line_says_what_became_of_them(
    inside: Memplan, tmp_path: Path
) -> None:
    odd.external(tmp_path, MODEL)
    command = ("grad", MODEL, "--loss", "loss", "-o")
    assert "weights, which" not in inside(*command, place_for("reference", tmp_path)).stdout
    done = inside(*command, place_for("copy", tmp_path))
    words = "weights, which aside/out.onnx cannot refer to, are copied to"
    assert words in done.stdout.replace("\n", " ")
    assert (tmp_path / "aside/out.onnx.data").exists()


def test_a_copy_of_weights_is_written_over_nothing(inside: Memplan, tmp_path: Path) -> None:
    odd.external(tmp_path, MODEL)
    out = place_for("copy", tmp_path)
    data = tmp_path / "aside/out.onnx.data"
    command = ("grad", MODEL, "--loss", "loss", "--weights", "copy", "-o", out)
    data.write_text("mine")
    assert_harmless(inside, tmp_path, EXIT_USAGE, ("out.onnx.data exists",), *command)
    data.unlink()
    os.link(tmp_path / "deep/weights.bin", data)
    words = ("inputs are never overwritten",)
    assert_harmless(inside, tmp_path, EXIT_USAGE, words, *command, "--force")
    data.unlink()
    outputs = ("--optimizer", "sgd", "--update-output", str(data))
    words = ("another output of this command",)
    assert_harmless(inside, tmp_path, EXIT_USAGE, words, *command, *outputs)
    words = ("nothing lies beside stdout",)
    assert_harmless(inside, tmp_path, EXIT_USAGE, words, *command[:-1], "-")


def _external(name: str, dims: list[int], offset: int = 0) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    nbytes = 4 * int(np.prod(dims))
    for key, value in (("location", "w.bin"), ("offset", offset), ("length", nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


MEASURED = """
import re, resource, sys
from pathlib import Path
from memplan_cli.main import main
code = main(sys.argv[1:])
own = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
print(own[1], resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
"""Prints the most KiB that the program held, and the process that it started. ``ru_maxrss`` of
itself begins with what its parent, the tests, had held."""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
def test_gigabytes_of_weights_are_neither_read_nor_copied(inside: Memplan, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    rows, columns = 16384, 40960  # 2.5 GiB
    with (tmp_path / "deep/w.bin").open("wb") as stream:
        stream.truncate(4 * rows * columns)
    model = parse(f"""large (float[4,{rows}] x) => (float loss)
        {{ [product] a = MatMul (x, w)  [mean] loss = ReduceMean <keepdims = 0> (a) }}""")
    model.graph.initializer.append(_external("w", [rows, columns]))
    onnx.save(model, tmp_path / MODEL)
    command = ("rewrite", MODEL, "--budget", "100%", "-o", "out.onnx", "--format", "json")
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["optimize"], found["weights"]) == ("extended", "reference")
    kib = 4 * rows * columns // 1024
    held = [int(each) for each in done.stderr.split()[-2:]]
    assert all(0 < each < kib // 2 for each in held), held


def everywhere() -> onnx.ModelProto:
    """External tensors in an attribute, a body, a function and a sparse constant."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18, "f" : 1]>
        g (float[4] x) => (float loss) <int64 n = {3}, bool yes = {1}> {
            k = Constant <value: tensor = float[4] {1, 1, 1, 1}> ()
            h = Add (x, k)
            m = f.plus (h)
            y = Loop (n, yes, m) <body = b (int64 i, bool c, float[4] v)
                => (bool d, float[4] w) <float[4] inner = {1, 1, 1, 1}> {
                    w = Add (v, inner)
                    d = Identity (c)
            }>
            loss = ReduceMean <keepdims: int = 0> (y)
        }
        <domain: "f", opset_import: ["" : 18]>
        plus (a) => (r) {
            one = Constant <value: tensor = float[4] {1, 1, 1, 1}> ()
            r = Add (a, one)
        }"""
    )
    attribute = model.graph.node[0].attribute[0]
    attribute.t.CopyFrom(_external("", [4]))
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    body.initializer[0].CopyFrom(_external("inner", [4], 16))
    model.functions[0].node[0].attribute[0].t.CopyFrom(_external("", [4], 32))
    return model


def _saved_everywhere(folder: Path) -> Path:
    (folder / "deep").mkdir(exist_ok=True)
    (folder / "deep/w.bin").write_bytes(np.arange(12, dtype=np.float32).tobytes())
    onnx.save(everywhere(), folder / MODEL)
    return folder / MODEL


@pytest.mark.parametrize("place", range(3))
def test_constants_wherever_they_stand_are_looked_for_near_the_model(
    inside: Memplan, tmp_path: Path, place: int
) -> None:
    path = _saved_everywhere(tmp_path)
    model = everywhere()
    tensors = list(external_tensors(model))
    assert len(tensors) == 3
    tensors[place].external_data[0].value = "../secret.bin"
    onnx.save(model, path)
    (tmp_path / "secret.bin").write_bytes(bytes(100))
    assert_harmless(inside, tmp_path, 3, ("outside the model's folder",), "analyze", MODEL)


@pytest.mark.parametrize("mode", MODES)
def test_constants_wherever_they_stand_go_along(inside: Memplan, tmp_path: Path, mode: str) -> None:
    path = _saved_everywhere(tmp_path)
    assert inside("analyze", MODEL).returncode == 0
    out = place_for(mode, tmp_path)
    command = ("rewrite", MODEL, "--budget", "100%", "-o", out, "--weights", mode)
    done = inside(*command)
    assert done.returncode == 0, done.stderr
    written = onnx.load(tmp_path / out)  # with the data, which must be found
    found = sorted(
        float(numpy_helper.to_array(tensor)[0])
        for tensor in _constants(written.graph)
        if list(tensor.dims) == [4]
    )
    assert found == [0.0, 4.0, 8.0]
    assert onnx.load(path, load_external_data=False) == everywhere()


def _constants(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    found = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                found.append(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                found += _constants(attribute.g)
    return found


def test_a_store_of_links_as_model_hubs_make_it_is_fused_and_proved(
    inside: Memplan, tmp_path: Path
) -> None:
    stored = odd.external(tmp_path, "store/abc", "def")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot/model.onnx").symlink_to(stored)
    (tmp_path / "snapshot/def").symlink_to(tmp_path / "store/def")
    model, out = "snapshot/model.onnx", "snapshot/out.onnx"
    done = inside("rewrite", model, "--budget", "100%", "-o", out, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["optimize"] == "extended"
    assert inside("validate", model, out, "--runs", "1").returncode == 0
    assert inside("profile", model, "-o", "costs.json", "--runs", "1").returncode == 0


def test_new_weights_are_never_written_over_those_of_the_model_that_is_there(
    inside: Memplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rename changes a model and its weights at once, so a kill between two would mix them."""
    odd.external(tmp_path, MODEL)
    out = place_for("copy", tmp_path)
    command = ("grad", MODEL, "--loss", "loss", "--weights", "copy", "-o", out)

    def beside() -> list[str]:
        return sorted(path.name for path in (tmp_path / "aside").iterdir())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as failing:
        failing.setattr("memplan.proto.weights.write_model", interrupted)
        assert inside(*command).returncode == 130
    assert beside() == []
    for _ in range(2):  # the same weights stay where they are
        assert inside(*command, "--force").returncode == 0
        assert beside() == ["out.onnx", "out.onnx.data"]
    before = values(tmp_path / out)
    weights = tmp_path / "deep/weights.bin"
    weights.write_bytes(bytes(reversed(weights.read_bytes())))
    with monkeypatch.context() as failing:
        failing.setattr("memplan.proto.weights.write_model", interrupted)
        assert inside(*command, "--force").returncode == 130
    assert beside() == ["out.onnx", "out.onnx.data"]
    assert all(np.array_equal(before[name], now) for name, now in values(tmp_path / out).items())
    for names in (["out.onnx", "out.onnx.1.data"], ["out.onnx", "out.onnx.data"]):
        assert inside(*command, "--force").returncode == 0
        assert beside() == names
        after = values(tmp_path / out)
        for name, value in values(tmp_path / MODEL).items():
            assert np.array_equal(value, after[name])
        weights.write_bytes(bytes(reversed(weights.read_bytes())))
