"""Make the sample training graphs of this folder.

    python sample_models/make_models.py [NAME ...] [--out DIR] [--verify] [--inputs DIR]

Needs torch and onnxscript; ``--verify`` also onnxruntime.  README.md lists the tested versions.
Two runs with the same versions write identical files.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import sys
import time
import unittest.mock
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import capture
import nets
import numpy as np
import onnx
import torch
from capture import AdamW, TrainStep
from torch import Tensor

HERE = Path(__file__).parent
SEED = 20240
TOLERANCE = 1e-4
TIMED_RUNS = 3


def _classes(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape)


def mlp_adamw() -> TrainStep:
    batch = {"features": torch.randn(8192, 256), "labels": _classes(10, 8192)}
    return TrainStep(nets.Mlp(256, width=512, depth=6, classes=10), batch, AdamW())


def cnn_bn() -> TrainStep:
    batch = {"images": torch.randn(128, 3, 32, 32), "labels": _classes(10, 128)}
    return TrainStep(nets.ResNet(widths=(16, 32, 64), blocks=2, classes=10), batch)


def unet() -> TrainStep:
    batch = {"images": torch.randn(4, 3, 128, 128), "labels": _classes(4, 4, 128, 128)}
    return TrainStep(nets.UNet(width=16, depth=3, classes=4), batch)


def gpt_dropout() -> TrainStep:
    batch = {"tokens": _classes(512, 8, 256), "labels": _classes(512, 8, 256)}
    return TrainStep(nets.Gpt(512, 256, width=128, heads=4, depth=6, dropout=0.1), batch)


def gpt_dynamic() -> TrainStep:
    # The example batch size must differ from all other dimensions, or export would tie them.
    batch = {"tokens": _classes(512, 7, 128), "labels": _classes(512, 7, 128)}
    model = nets.Gpt(512, 128, width=96, heads=3, depth=4)
    return TrainStep(model, batch, dynamic_batch="N")


def lstm() -> TrainStep:
    batch = {"tokens": _classes(512, 24, 256), "labels": _classes(512, 24, 256)}
    return TrainStep(nets.LstmLm(512, width=256, layers=2), batch)


MODELS: dict[str, Callable[[], TrainStep]] = {
    maker.__name__: maker for maker in (mlp_adamw, cnn_bn, unet, gpt_dropout, gpt_dynamic, lstm)
}


def make(name: str) -> TrainStep:
    """The training step of a sample, with its initial weights and an example batch."""
    torch.manual_seed(SEED)
    return MODELS[name]()


# ------------------------------------------------------------------ verification against PyTorch


def verify(step: TrainStep, model: onnx.ModelProto) -> tuple[float, float]:
    """Largest relative error against eager PyTorch, and the seconds per step in ONNX Runtime.

    An error is relative to the largest magnitude in its tensor.  The masks which ONNX Runtime's
    Dropout nodes draw are read back and used by the eager step, so dropout is checked as it is.
    """
    import onnxruntime

    masks = [node.output[1] for node in model.graph.node if node.op_type == "Dropout"]
    watched = copy.deepcopy(model)
    for name in masks:
        watched.graph.output.add(name=name)
    outputs = [output.name for output in model.graph.output]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    feed = {name: value.numpy() for name, value in step.inputs().items()}
    seconds, error = [], 0.0
    for reference in _eager_steps(step):
        started = time.perf_counter()
        values = session.run(outputs + masks, feed)
        seconds.append(time.perf_counter() - started)
        expected = reference(values[len(outputs) :])
        actual = dict(zip(outputs, values))
        assert expected.keys() == actual.keys()
        for name, value in expected.items():
            scale = max(float(np.abs(value).max()), 1e-30)
            error = max(error, float(np.abs(actual[name] - value).max()) / scale)
        # The next step continues from here where the graph updates weights, else it repeats.
        feed.update({n.removesuffix(".new"): v for n, v in actual.items() if n.endswith(".new")})
    return error, statistics.median(seconds)


def _eager_steps(step: TrainStep) -> Iterator[Callable[[list[np.ndarray]], dict[str, np.ndarray]]]:
    """For each step: a function from dropout masks to the expected graph outputs."""
    model = copy.deepcopy(step.model)
    optimizer = None
    if step.optimizer:
        config = step.optimizer
        optimizer = torch.optim.AdamW(
            model.parameters(), config.lr, config.betas, config.eps, config.weight_decay
        )

    def run(masks: list[np.ndarray]) -> dict[str, np.ndarray]:
        model.zero_grad()
        with _replayed_dropout(masks):
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
def _replayed_dropout(masks: list[np.ndarray]) -> Iterator[None]:
    """``F.dropout`` keeps what the given masks, one per call, say."""
    remaining = iter(masks)

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x if p == 0 else x * torch.from_numpy(next(remaining)) / (1 - p)

    with unittest.mock.patch.object(torch.nn.functional, "dropout", dropout):
        yield
    assert next(remaining, None) is None, "a Dropout node that the model does not have"


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

    worst = 0.0
    for name in args.names or MODELS:
        step = make(name)
        model = capture.capture(step)
        data = model.SerializeToString(deterministic=True)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}.onnx").write_bytes(data)
        kinds = Counter(node.op_type for node in model.graph.node)
        line = f"{name}: {len(model.graph.node)} nodes of {len(kinds)} types, {len(data):,} B"
        if args.inputs:
            args.inputs.mkdir(parents=True, exist_ok=True)
            np.savez(args.inputs / f"{name}.npz", **{k: v.numpy() for k, v in step.inputs().items()})
        if args.verify:
            error, seconds = verify(step, model)
            worst = max(worst, error)
            line += f", error {error:.1e}, {seconds:.2f} s per step"
        print(line, flush=True)
    if worst > TOLERANCE:
        print(f"error: relative error {worst:.1e} exceeds {TOLERANCE:.0e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
