"""``memplan lower`` and ``memplan.lower``: what they say, write and refuse."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import memplan
from helpers import ort_artifacts as made
from helpers.gradients import runtime
from helpers.refusals import assert_harmless, assert_refused
from helpers.running import Memplan
from memplan.errors import EXIT_ENVIRONMENT, EXIT_MODEL, EXIT_USAGE, UsageError
from memplan.proto.read import read_model

MODEL, OPTIMIZER = "training_model.onnx", "optimizer_model.onnx"


@pytest.fixture
def run(inside: Memplan, tmp_path: Path) -> Memplan:
    onnx.save(made.training_model(), tmp_path / MODEL)
    onnx.save(made.optimizer_model(clip=1.0), tmp_path / OPTIMIZER)
    return inside


def test_report(run: Memplan) -> None:
    done = run("lower", MODEL, "-o", "step.onnx")
    assert done.returncode == 0, done.stderr
    for line in (
        f"{MODEL}: loss 'onnx::loss::2', ",
        "2 nodes of onnxruntime-training replaced: SoftmaxCrossEntropyLossGrad (1), ReluGrad (1)",
        "4 trained parameters: fc1.weight, fc1.bias, fc2.weight, fc2.bias",
        "1 frozen parameter: fc1.gate",
        "inputs: x, labels",
        "gradients: 4 outputs, 'fc1.weight_grad' of 'fc1.weight' and so on",
        "wrote step.onnx",
    ):
        assert line in done.stdout


@pytest.mark.slow
def test_the_step_can_be_analyzed_rewritten_and_validated(run: Memplan) -> None:
    dim = ("--dim", "N=64")
    assert run("lower", MODEL, "-o", "step.onnx").returncode == 0
    analysis = json.loads(run("analyze", "step.onnx", *dim, "--format", "json").stdout)
    assert analysis["exact"]
    budget = str(analysis["peak_with_workspace_bytes"])
    rewrite = ("rewrite", "step.onnx", "-o", "fits.onnx", *dim, "--strategy", "greedy")
    assert run(*rewrite, "--budget", budget).returncode == 0
    proof = run("validate", "step.onnx", "fits.onnx", *dim, "--runs", "1", "--format", "json")
    found = json.loads(proof.stdout)
    assert found["proved"], found["findings"]
    peak = found["rewritten"]
    assert peak["predicted_peak_bytes"] == peak["measured_peak_bytes"]


def test_report_of_an_optimizer(run: Memplan) -> None:
    done = run("lower", MODEL, "-o", "step.onnx", "--optimizer-model", OPTIMIZER)
    assert done.returncode == 0, done.stderr
    assert "optimizer: adamw{clip_norm=1}" in done.stdout
    assert "inputs with defaults: clip_norm, lr, step, weight_decay" in done.stdout
    assert "for the next step: feed 13 outputs back, " in done.stdout
    assert "_grad" not in done.stdout.split("wrote")[0].split("\n", 2)[2]


def test_json(run: Memplan) -> None:
    done = run("lower", MODEL, "-o", "step.onnx", "--format", "json")
    found = json.loads(done.stdout)
    assert found["schema"] == "memplan.lower/1"
    assert found["loss"] == "onnx::loss::2"
    assert found["replaced"] == {"SoftmaxCrossEntropyLossGrad": 1, "ReluGrad": 1}
    assert found["gradients"]["fc1.bias_grad"] == "fc1.bias"
    assert found["roles"]["labels"] == "batch"
    assert found["nodes"]["backward"] > 8
    assert found["nodes"]["update"] == 0
    assert found["output"] == "step.onnx"


def test_stdout_and_quiet(run: Memplan) -> None:
    assert run("lower", MODEL, "-o", "step.onnx", "-q").stdout == "step.onnx\n"
    done = run("lower", MODEL, "-o", "-", "--format", "json")
    assert_refused(done, EXIT_USAGE, "cannot both go to stdout")


def test_python(run: Memplan, tmp_path: Path) -> None:
    result = memplan.lower(made.training_model())
    assert result.output is None
    assert result.loss == "onnx::loss::2"
    assert result.trained == made.TRAINED
    assert repr(result).startswith("<LoweredGraph of model.onnx>")
    options = memplan.LowerOptions(optimizer_model=OPTIMIZER)
    written = memplan.lower(MODEL, "step.onnx", options)
    assert written.output == Path("step.onnx")
    assert written.optimizer.startswith("adamw{")
    assert read_model(Path("step.onnx")) == written.model
    with pytest.raises(UsageError):
        memplan.lower(MODEL, None, memplan.LowerOptions(checkpoint=7))  # type: ignore[arg-type]


def test_module_graphs(run: Memplan, tmp_path: Path) -> None:
    onnx.save(made.module_graph(), tmp_path / "module.onnx")
    done = run("lower", "module.onnx", "-o", "step.onnx")
    assert "2 gradients of outputs to be fed ('output_grad_external')" in done.stdout
    assert "--loss NAME makes its gradient 1" in " ".join(done.stdout.split())
    done = run("lower", "module.onnx", "-o", "step.onnx", "--loss", "squares", "--force")
    assert "the gradient of 'squares' is 1: it is taken for the loss" in done.stdout


# -- refusals ----------------------------------------------------------------------------------


def test_other_commands_point_here(run: Memplan, tmp_path: Path) -> None:
    """Those that stock ONNX Runtime, or ONNX, would refuse the file in."""
    words = ("onnxruntime-training", "memplan lower")
    grad = ("grad", MODEL, "--loss", "onnx::loss::2", "-o", "step.onnx")
    assert_harmless(run, tmp_path, EXIT_MODEL, words, *grad)
    validate = ("validate", MODEL, MODEL, "--dim", "N=4", "--runs", "1")
    assert_harmless(run, tmp_path, EXIT_ENVIRONMENT, words, *validate)


@pytest.mark.parametrize(
    ("code", "word", "arguments"),
    [
        (EXIT_USAGE, "no scalar output of the forward part", (MODEL, "--loss", "output")),
        (EXIT_MODEL, "does not exist", ("nowhere.onnx",)),
        (EXIT_MODEL, "does not exist", (MODEL, "--optimizer-model", "nowhere.onnx")),
        (EXIT_MODEL, "no update is known for", (MODEL, "--optimizer-model", MODEL)),
        (EXIT_MODEL, "give the training model, and this one by --optimizer-model", (OPTIMIZER,)),
    ],
)
def test_refusals(
    run: Memplan, tmp_path: Path, code: int, word: str, arguments: tuple[str, ...]
) -> None:
    assert_harmless(run, tmp_path, code, (word,), "lower", *arguments, "-o", "step.onnx")


def test_the_optimizer_is_an_input_too(run: Memplan, tmp_path: Path) -> None:
    command = ("lower", MODEL, "--optimizer-model", OPTIMIZER, "-o", OPTIMIZER, "--force")
    assert_harmless(run, tmp_path, EXIT_USAGE, ("inputs are never overwritten",), *command)


# -- weights in other files --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["reference", "copy"])
def test_weights(run: Memplan, tmp_path: Path, mode: str) -> None:
    model, feeds = made.training_model(), made.feeds()
    kept = [v for v in model.graph.input if v.name not in made.SIZES]
    copies = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in kept]
    del model.graph.input[:]
    model.graph.input.extend(copies)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(feeds[name], name) for name in made.SIZES
    )
    onnx.save_model(
        model,
        tmp_path / "big.onnx",
        save_as_external_data=True,
        location="big.bin",
        size_threshold=0,
    )
    done = run("lower", "big.onnx", "-o", "step.onnx", "--weights", mode)
    assert done.returncode == 0, done.stderr
    written = onnx.load(tmp_path / "step.onnx")
    batch = {name: feeds[name] for name in ("x", "labels")}
    wanted = runtime(memplan.lower(made.training_model()).model, feeds)
    found = runtime(written, batch)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
