"""Make the sample training graphs of this folder.

    python sample_models/make_models.py [NAME ...] [--out DIR] [--verify] [--inputs DIR]

Needs torch, onnxscript and memplan; ``--verify`` also onnxruntime.  README.md lists the tested
versions.  Two runs with the same versions write identical files.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import itertools
import logging
import statistics
import sys
import time
import unittest.mock
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import capture
import nets
import numpy as np
import onnx
import torch
from capture import AdamW, TrainStep
from torch import Tensor

from memplan.ir.contract import find_contract
from memplan.proto.metadata import set_metadata
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import opened

HERE = Path(__file__).parent
SEED = 20240
TOLERANCE = 1e-4
TIMED_RUNS = 3
SMALLER_BATCH = 5  # where the batch is dynamic, verified besides the example's size


def _classes(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape)


def mlp_adamw() -> TrainStep:
    batch = {"features": torch.randn(8192, 256), "labels": _classes(10, 8192)}
    return TrainStep(nets.Mlp(256, width=512, depth=6, classes=10), batch, AdamW())


def cnn_bn() -> TrainStep:
    batch = {"images": torch.randn(128, 3, 32, 32), "labels": _classes(10, 128)}
    return TrainStep(nets.ResNet(widths=(24, 48, 96), blocks=2, classes=10), batch)


def unet() -> TrainStep:
    batch = {"images": torch.randn(4, 3, 128, 128), "labels": _classes(4, 4, 128, 128)}
    return TrainStep(nets.UNet(width=32, depth=3, classes=4), batch)


def gpt_dropout() -> TrainStep:
    batch = {"tokens": _classes(512, 8, 256), "labels": _classes(512, 8, 256)}
    return TrainStep(nets.Gpt(512, 256, width=256, heads=4, depth=6, dropout=0.1), batch)


def gpt_dynamic() -> TrainStep:
    # The example batch size must differ from all other dimensions, or export would tie them.
    batch = {"tokens": _classes(512, 24, 128), "labels": _classes(512, 24, 128)}
    model = nets.Gpt(512, 128, width=96, heads=3, depth=4)
    return TrainStep(model, batch, dynamic_batch="N")


def lstm() -> TrainStep:
    batch = {"tokens": _classes(512, 24, 256), "labels": _classes(512, 24, 256)}
    return TrainStep(nets.LstmLm(512, width=512, layers=2), batch)


MODELS: dict[str, Callable[[], TrainStep]] = {
    maker.__name__: maker for maker in (mlp_adamw, cnn_bn, unet, gpt_dropout, gpt_dynamic, lstm)
}


def make(name: str) -> TrainStep:
    """The training step of a sample, with its initial weights and an example batch."""
    torch.manual_seed(SEED)
    return MODELS[name]()


# ------------------------------------------------------------------ one convention for names

# Endings as the capture makes them, and as ``memplan grad`` has them.
ENDINGS = {".m": ".exp_avg", ".v": ".exp_avg_sq", ".grad": "_grad"}


def named(name: str) -> str:
    """The name of a graph input or output in the convention of ``memplan grad``."""
    base = name.removesuffix(".new")
    for ending, wanted in ENDINGS.items():
        if base.endswith(ending):
            base = base.removesuffix(ending) + wanted
            break
    return base if name == base or not name.endswith(".new") else f"{base}_new"


def follow_convention(model: onnx.ModelProto, dims: dict[str, int]) -> None:
    """Rename inputs and outputs, and state in the metadata what each of them is."""
    graph = model.graph
    renamed = {value.name: named(value.name) for value in (*graph.input, *graph.output)}
    assert len(set(renamed.values())) == len(renamed), "two names become one"
    for value in (*graph.input, *graph.output):
        value.name = renamed[value.name]
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    found = opened(prepare(model, Path("model.onnx"), dims))
    contract = find_contract(found.graph, found.phases, {})
    assert not contract.notes, contract.notes
    set_metadata(model, contract.as_metadata())
    onnx.checker.check_model(model, full_check=True)


# ------------------------------------------------------------------ verification against PyTorch


def verify(step: TrainStep, model: onnx.ModelProto) -> tuple[float, float]:
    """Largest relative error against eager PyTorch, and the seconds per step in ONNX Runtime.

    An error is relative to the largest magnitude in its tensor.  What Dropout drew and which side
    of zero Relu saw are read back from ONNX Runtime and replayed in the eager step: so dropout is
    checked as it is, and an activation that rounding moves across zero does not count as an error.
    """
    import onnxruntime

    replayed = {
        kind: [node.output[index] for node in model.graph.node if node.op_type == kind]
        for kind, index in (("Dropout", 1), ("Relu", 0))
    }
    watched = copy.deepcopy(model)
    for name in itertools.chain(*replayed.values()):
        watched.graph.output.add(name=name)
    outputs = [output.name for output in watched.graph.output]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    feed = {named(name): value.numpy() for name, value in step.inputs().items()}
    seconds, errors = [], []
    for eager_step in _eager_steps(step):
        started = time.perf_counter()
        actual = dict(zip(outputs, session.run(outputs, feed), strict=True))
        seconds.append(time.perf_counter() - started)
        masks = {kind: [actual.pop(n) != 0 for n in names] for kind, names in replayed.items()}
        expected = {named(name): value for name, value in eager_step(masks).items()}
        assert expected.keys() == actual.keys()
        for name, value in expected.items():
            assert actual[name].shape == value.shape, name
            scale = max(float(np.abs(value).max()), 1e-30)
            errors.append(float(np.abs(actual[name] - value).max()) / scale)
        # The next step continues from here where the graph updates weights, else it repeats.
        feed.update({n.removesuffix("_new"): v for n, v in actual.items() if n.endswith("_new")})
    return float(np.max(errors)), statistics.median(seconds)  # np.max passes NaN on


Arrays = dict[str, np.ndarray]
Masks = dict[str, list[np.ndarray]]


def _eager_steps(step: TrainStep) -> Iterator[Callable[[Masks], Arrays]]:
    """For each step: a function from the masks to replay to the expected graph outputs."""
    model = copy.deepcopy(step.model)
    optimizer = None
    if step.optimizer:
        config = step.optimizer
        optimizer = torch.optim.AdamW(
            model.parameters(), config.lr, config.betas, config.eps, config.weight_decay
        )
        state = step.optimizer_state
        for name, p in model.named_parameters():
            optimizer.state[p] = {
                "step": state["step"].clone(),
                "exp_avg": state[f"{name}.m"].clone(),
                "exp_avg_sq": state[f"{name}.v"].clone(),
            }

    def run(masks: Masks) -> Arrays:
        model.zero_grad()
        with _replaying(masks):
            loss = model(*step.batch.values())
        loss.backward()
        out = {"loss": loss.detach()}
        if optimizer is None:
            out.update({f"{n}.grad": p.grad for n, p in model.named_parameters()})
        else:
            optimizer.step()
            out.update(_optimizer_outputs(model, optimizer))
        out.update({f"{n}.new": b for n, b in model.named_buffers()})
        return {name: value.detach().numpy().copy() for name, value in out.items()}

    for _ in range(TIMED_RUNS):
        yield run


def _optimizer_outputs(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    params = dict(model.named_parameters())
    state = {name: optimizer.state[p] for name, p in params.items()}
    return {
        **{f"{name}.new": p for name, p in params.items()},
        **{f"{name}.m.new": s["exp_avg"] for name, s in state.items()},
        **{f"{name}.v.new": s["exp_avg_sq"] for name, s in state.items()},
        "step.new": next(iter(state.values()))["step"],
    }


@contextlib.contextmanager
def _replaying(masks: Masks) -> Iterator[None]:
    """Make dropout and relu keep what the given masks, one per call, say."""
    dropout_masks, relu_masks = iter(masks["Dropout"]), iter(masks["Relu"])

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x if p == 0 else x * torch.from_numpy(next(dropout_masks)) / (1 - p)

    def relu(x: Tensor, inplace: bool = False) -> Tensor:
        return x * torch.from_numpy(next(relu_masks))

    with unittest.mock.patch.multiple(torch.nn.functional, dropout=dropout, relu=relu):
        yield
    unused = [*dropout_masks, *relu_masks]
    assert not unused, "more Dropout or Relu nodes than the model has"


# ------------------------------------------------------------------ command line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the .onnx files")
    parser.add_argument("--verify", action="store_true", help="compare with eager PyTorch")
    parser.add_argument("--inputs", type=Path, help="also write example inputs (.npz) here")
    args = parser.parse_args()
    unknown = set(args.names) - set(MODELS)
    if unknown:
        parser.error(f"unknown model: {', '.join(sorted(unknown))}")

    # The exporter warns that torchvision, which no sample needs, is not installed.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    errors = [0.0]
    for name in args.names or MODELS:
        step = make(name)
        model = capture.capture(step)
        size = {step.dynamic_batch: len(next(iter(step.batch.values())))}
        follow_convention(model, size if step.dynamic_batch else {})
        data = model.SerializeToString(deterministic=True)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}.onnx").write_bytes(data)
        kinds = Counter(node.op_type for node in model.graph.node)
        line = f"{name}: {len(model.graph.node)} nodes of {len(kinds)} types, {len(data):,} B"
        if args.inputs:
            args.inputs.mkdir(parents=True, exist_ok=True)
            arrays: dict[str, Any] = {
                named(key): value.numpy() for key, value in step.inputs().items()
            }
            np.savez(args.inputs / f"{name}.npz", **arrays)
        if args.verify:
            error, seconds = verify(step, model)
            if step.dynamic_batch:
                fewer = {key: value[:SMALLER_BATCH] for key, value in step.batch.items()}
                errors.append(verify(dataclasses.replace(step, batch=fewer), model)[0])
            errors.append(error)
            line += f", error {error:.1e}, {seconds:.2f} s per step"
        print(line, flush=True)
    worst = float(np.max(errors))
    if not worst <= TOLERANCE:
        print(f"error: relative error {worst:.1e} exceeds {TOLERANCE:.0e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
