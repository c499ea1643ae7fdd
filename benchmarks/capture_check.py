"""What ``memplan capture`` says of its own step, and whether that is so.

    python -m benchmarks.capture_check pieces --json benchmarks/results/capture_check.json
    python -m benchmarks.capture_check networks --json benchmarks/results/capture_check.json

``pieces``: the training code of ``benchmarks/training_code.py``. ``networks``: those of
torchvision, timm and transformers in ``benchmarks/capture_libraries.py``, as far as they are
installed. Each by ``grad``, ``joint`` and ``auto``: what the check of ``capture`` found, or with
which words the step was refused; beside it, and independent of it, loss, gradients and what the
model holds after two updates against PyTorch in float64, whose own error in float32 is given, too.
Steps that draw are held against PyTorch by the check alone, which feeds the draws. Rows of earlier
runs stay unless they are made anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import memplan
from benchmarks.capture import kept, run
from benchmarks.record import write_record
from memplan.ir.contract import Role

ROADS = ("grad", "joint", "auto")
FIGURES = ("loss_error", "gradient_error", "state_error", "tolerance", "draws", "seconds")
"""Of ``Capture.check``, where this version of memplan has one."""
RANDOM = {"Dropout", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "RandomUniform"}
UPDATES = 2
RATE = 0.05
NOISE = 1e-3
"""Of the largest entry of all: what is smaller is compared with that."""
TIMES, FLOOR = 30, 2e-5
"""An error of this many times PyTorch's own in float32 is rounding in another order."""
Row = dict[str, object]
Make = Callable[[], memplan.TorchStep]
Values = dict[str, np.ndarray[Any, Any]]


def pieces() -> dict[str, Make]:
    """Training code that is easy to get wrong."""
    import benchmarks.training_tricks  # noqa: F401  (enters its pieces)
    from benchmarks.training_code import PIECES

    return PIECES


def networks() -> dict[str, Make]:
    """Networks of libraries, with SGD."""
    from benchmarks.capture_libraries import LIBRARY_NETS

    def with_optimizer(make: Make) -> Make:
        def made() -> memplan.TorchStep:
            given = make()
            optimizer = torch.optim.SGD(given.model.parameters(), RATE, momentum=0.9)
            return memplan.TorchStep(given.model, given.loss, given.batch, optimizer)

        return made

    return {name: with_optimizer(make) for name, make in LIBRARY_NETS.items()}


PARTS: dict[str, Callable[[], dict[str, Make]]] = {"pieces": pieces, "networks": networks}


def loss_of(step: memplan.TorchStep) -> Tensor:
    """The loss of a step in PyTorch."""
    batch = step.batch
    if step.loss is None:
        found: Tensor = step.model(**batch).loss
    elif isinstance(batch, Mapping):
        found = step.loss(step.model, **batch)
    else:
        found = step.loss(step.model, *batch)
    return found


def eager(step: memplan.TorchStep) -> Values:
    """Two updates in PyTorch: losses, the first gradients, what the model holds in the end."""
    found: Values = {}
    for k in range(UPDATES):
        step.optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        found[f"loss {k}"] = loss.detach().double().numpy()
        if k == 0:
            for name, parameter in step.model.named_parameters():
                if parameter.grad is not None:
                    found[f"gradient {name}"] = parameter.grad.double().numpy().copy()
        step.optimizer.step()
    for name, value in step.model.state_dict().items():
        if value.is_floating_point():
            found[f"state {name}"] = value.detach().double().numpy().copy()
    return found


def widened(step: memplan.TorchStep) -> memplan.TorchStep:
    """The same in float64, made of copies."""

    def wide(value: Any) -> Any:
        return value.double() if value.is_floating_point() else value

    batch = step.batch
    given = (
        {n: wide(t) for n, t in batch.items()}
        if isinstance(batch, Mapping)
        else tuple(wide(t) for t in batch)
    )
    model = step.model.double()
    trained = [p for p in model.parameters() if p.requires_grad]
    return memplan.TorchStep(model, step.loss, given, torch.optim.SGD(trained, RATE, momentum=0.9))


def captured(step: memplan.TorchStep, capture: memplan.Capture, gradients: Values) -> Values:
    """The same two updates by ONNX Runtime. Gradients are what the first update took away."""
    batch = (
        step.batch
        if isinstance(step.batch, Mapping)
        else dict(zip(capture.batch, step.batch, strict=True))
    )
    feeds: dict[str, Any] = {name: batch[name].numpy() for name in capture.batch}
    held = {item.name: item for item in capture.model.graph.input}
    first = {name: value.detach().numpy().copy() for name, value in step.model.state_dict().items()}
    state: dict[str, Any] = {}
    for name in capture.contract.named(Role.OPTIMIZER_STATE):
        shape = [d.dim_value for d in held[name].type.tensor_type.shape.dim]
        state[name] = np.zeros(shape, np.float32)
    found: Values = {}
    for k in range(UPDATES):
        outputs = run(capture.model, {**feeds, **state})
        found[f"loss {k}"] = outputs["loss"]
        state = {old: outputs[new] for new, old in capture.contract.new_values.items()}
        if k == 0:
            for key in gradients:
                name = key.removeprefix("gradient ")
                if name in state:
                    found[key] = (first[name].astype(np.float64) - state[name]) / RATE
    for name, value in first.items():
        if value.dtype.kind == "f":
            found[f"state {name}"] = state.get(name, value)
    return found


def errors(found: Values, wanted: Values) -> Row:
    """The worst of each kind, relative to the largest entry of each tensor, and where it is."""
    row: Row = {}
    for kind in ("loss", "gradient", "state"):
        named = {key: value for key, value in wanted.items() if key.startswith(kind)}
        largest = max((float(np.abs(v).max()) for v in named.values() if v.size), default=0.0)
        worst, where = 0.0, ""
        for key, value in named.items():
            if not value.size:
                continue
            own = max(float(np.abs(value).max()), NOISE * largest, 1e-12)
            mine = found.get(key, np.zeros_like(value))  # a gradient that is not there is 0
            apart = float(np.abs(mine - value).max()) / own
            if not apart <= worst:
                worst, where = apart, key.partition(" ")[2]
        row[f"{kind}_error"] = worst
        if kind != "loss":
            row[f"worst_{kind}"] = where
    return row


def rows(part: str, only: Sequence[str]) -> Iterator[Row]:
    """Every step by every road."""
    for name, make in PARTS[part]().items():
        if only and name not in only:
            continue
        try:
            steps = {kind: _made(make) for kind in ("narrow", "wide")}
        except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
            yield {"part": part, "name": name, "road": "-", "failure": str(error).splitlines()[0]}
            continue
        torch.manual_seed(1)
        narrow = eager(steps["narrow"])
        torch.manual_seed(1)
        wide = eager(widened(steps["wide"]))
        own = {f"eager_{key}": value for key, value in errors(narrow, wide).items()}
        for road in ROADS:
            yield {"part": part, "name": name, "road": road, **own, **row_of(make, road, wide, own)}


def _made(make: Make) -> memplan.TorchStep:
    torch.manual_seed(0)
    return make()


def row_of(make: Make, road: str, wanted: Values, own: Row) -> Row:
    """One road: what the check says, and what is so; ``own`` are PyTorch's errors."""
    step = _made(make)
    begin = time.perf_counter()
    try:
        capture = memplan.capture(step, via=road, weights="embed")
    except memplan.MemplanError as error:
        return {"verdict": "refused", "failure": error.message, "hint": error.hint}
    row: Row = {"capture_seconds": round(time.perf_counter() - begin, 2), "via": capture.via}
    check = getattr(capture, "check", None)
    row["check"] = {key: _plain(getattr(check, key)) for key in FIGURES if hasattr(check, key)}
    if any(node.op_type in RANDOM for node in capture.model.graph.node):
        return row | {"verdict": "draws"}
    gradients = {key: value for key, value in wanted.items() if key.startswith("gradient")}
    row |= errors(captured(_made(make), capture, gradients), wanted)
    return row | {"verdict": verdict({**own, **row})}


def _plain(value: Any) -> object:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def verdict(row: Mapping[str, Any]) -> str:
    """Right where every error is of the size of PyTorch's own in float32, or wrong."""
    kinds = ("loss_error", "gradient_error", "state_error")
    return "right" if all(row[k] <= FLOOR + TIMES * row[f"eager_{k}"] for k in kinds) else "wrong"


def main(argv: Sequence[str] | None = None) -> int:
    """Print every row, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture_check")
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS))
    parser.add_argument("--only", action="append", default=[], help="a name, repeatable")
    parser.add_argument("--json", type=Path, help="the record")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    found = kept(options.json)
    for part in options.parts:
        for row in rows(part, options.only):
            print(json.dumps(row), flush=True)
            found[row["part"], row["name"], row["road"]] = row
            if options.json is not None:
                command = f"python -m benchmarks.capture_check {part}"
                write_record(options.json, command, list(found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
