"""What ``memplan capture`` says of its own step, and whether that is so.

    python -m benchmarks.capture.check pieces --json benchmarks/results/capture_check.json
    python -m benchmarks.capture.check networks --limit 40 --json ...
    python -m benchmarks.capture.check pieces --against benchmarks/results/capture_check.json

``pieces``: the training code of ``benchmarks/nets/code.py``. ``networks``: those of
torchvision, timm and transformers in ``benchmarks/nets/libraries.py``, as far as they are
installed. Of each, what the check of ``capture`` found, or with which words the step was refused;
beside it, and independent of it, loss, gradients and what the model holds after two updates against
PyTorch in float64, whose own error in float32 is given, too; *rounding* is what is off by more, and
by as much in PyTorch when its weights are a millionth off.
A step that the check refuses is captured without it for that, which tells a false alarm. Steps that
draw are held against PyTorch by the check alone, which feeds the draws. Rows of earlier runs stay
unless they are made anew; what was not reached is listed as not run.
With ``--against`` another record, as of another version of PyTorch, what differs from it is said,
and the exit code is 1 if anything does.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import memplan
from benchmarks.record import write_record
from memplan.ir.roles import Role

FIGURES = (
    "loss_error",
    "gradient_error",
    "worst",
    "own_error",
    "buffer_error",
    "update_error",
    "gradients",
    "steps",
    "draws",
    "not_checked",
)
"""Of ``Capture.check``."""
RANDOM = {"Dropout", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "RandomUniform"}
UPDATES = 2
RATE = 0.05
NOISE = 1e-3
"""Of the largest entry of all: what is smaller is compared with that."""
TIMES, FLOOR = 30, 2e-5
"""An error of this many times PyTorch's own in float32 is rounding in another order."""
COMPARISON_LIMIT = 20
"""Seconds for the comparison beside the check."""
KINDS = ("loss_error", "gradient_error", "state_error")
SHAKES = 3
Row = dict[str, Any]
Make = Callable[[], memplan.TorchStep]
Values = dict[str, np.ndarray[Any, Any]]


def pieces() -> dict[str, Make]:
    """Training code that is easy to get wrong."""
    import benchmarks.nets.tricks  # noqa: F401  (enters its pieces)
    from benchmarks.nets.code import PIECES

    return PIECES


def networks() -> dict[str, Make]:
    """Networks of libraries, with SGD."""
    from benchmarks.nets.libraries import LIBRARY_NETS

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
    for name, value in held_by(step.model).items():
        if value.is_floating_point():
            found[f"state {name}"] = value.detach().double().numpy().copy()
    return found


def held_by(model: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, shared ones once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


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
    """The same two updates by ONNX Runtime. Gradients are what the first momentum is."""
    import onnxruntime

    batch = (
        step.batch
        if isinstance(step.batch, Mapping)
        else dict(zip(capture.batch, step.batch, strict=True))
    )
    feeds: dict[str, Any] = {name: batch[name].numpy() for name in capture.batch}
    held = {item.name: item for item in capture.model.graph.input}
    first = {n: value.detach().numpy().copy() for n, value in held_by(step.model).items()}
    state: dict[str, Any] = {}
    for name in capture.contract.named(Role.OPTIMIZER_STATE):
        shape = [d.dim_value for d in held[name].type.tensor_type.shape.dim]
        state[name] = np.zeros(shape, np.float32)
    names = [value.name for value in capture.model.graph.output]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        capture.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: Values = {}
    for k in range(UPDATES):
        outputs = dict(zip(names, session.run(names, {**feeds, **state}), strict=True))
        found[f"loss {k}"] = outputs["loss"]
        state = {old: outputs[new] for new, old in capture.contract.new_values.items()}
        if k == 0:
            for key in gradients:
                momentum = f"{key.removeprefix('gradient ')}.momentum"
                if momentum in state:
                    found[key] = state[momentum].astype(np.float64)
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


class TooLongError(BaseException):
    """A step took longer than it may; no handler of ``Exception`` is to catch this."""


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Stop what is done within after so many seconds of the clock."""

    def stop(*_: object) -> None:
        raise TooLongError

    if seconds is None:
        yield
        return
    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def rows(part: str, options: argparse.Namespace, known: Collection[object]) -> Iterator[Row]:
    """Every step; ``known`` are those that ``--missing`` leaves as they are."""
    for name, make in sorted(PARTS[part]().items(), key=_slow):
        if not (options.only and name not in options.only) and (part, name) not in known:
            yield {"part": part, "name": name, **row_of(make, options.limit)}


def _slow(item: tuple[str, Make]) -> bool:
    """Networks of images take longer than those of transformers; these come first."""
    return not item[0].startswith("transformers")


def _made(make: Make) -> memplan.TorchStep:
    torch.manual_seed(0)
    return make()


def row_of(make: Make, limit: float | None) -> Row:
    """One step: what the check says, and what is so."""
    try:
        step = _made(make)
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        return {"verdict": "not run", "words": str(error).splitlines()[0]}
    begin = time.perf_counter()
    try:
        with limited(limit):
            capture, row = checked(step)
    except TooLongError:
        taken = time.perf_counter() - begin
        return {"verdict": "not run", "words": f"stopped after {taken:.0f} s"}
    if row["verdict"] == "refused":
        return row
    try:
        with limited(COMPARISON_LIMIT if limit is not None else None):
            return row | {"independent": independent(make, capture)}
    except TooLongError:
        return row | {"independent": {"verdict": "not run"}}


def checked(step: memplan.TorchStep) -> tuple[memplan.Capture | None, Row]:
    """A capture with its check: right, refused or different, with the words."""
    begin = time.perf_counter()
    capture = None
    try:
        capture = memplan.capture(step, weights="embed")
    except memplan.CaptureDiffersError as error:
        check = error.check
        row: Row = {"verdict": "differs", "words": error.message, "hint": error.hint}
    except memplan.MemplanError as error:
        seconds = time.perf_counter() - begin
        return None, {
            "verdict": "refused",
            "words": error.message,
            "hint": error.hint,
            "capture_seconds": round(seconds, 2),
        }
    else:
        if capture.check is None:
            raise AssertionError("it was asked for")
        check = capture.check
        verdict = {"equal": "right"}.get(check.verdict, str(check.verdict))
        row = {"verdict": verdict, "words": check.reason}
    row["capture_seconds"] = round(time.perf_counter() - begin, 2)
    row["check_seconds"] = round(check.seconds, 2)
    row |= {key: _plain(getattr(check, key)) for key in FIGURES}
    return capture, row


def independent(make: Make, capture: memplan.Capture | None) -> Row:
    """Two updates against PyTorch in float64; ``capture``: None if the check refused it."""
    if capture is None:
        try:
            capture = memplan.capture(_made(make), weights="embed", check=False)
        except memplan.MemplanError as error:
            return {"verdict": "refused", "words": error.message}
    if any(node.op_type in RANDOM for node in capture.model.graph.node):
        return {"verdict": "draws"}
    steps = {kind: _made(make) for kind in ("narrow", "wide")}
    torch.manual_seed(1)
    narrow = eager(steps["narrow"])
    torch.manual_seed(1)
    try:
        wide = eager(widened(steps["wide"]))
    except RuntimeError as error:
        return {"verdict": "not run", "words": f"in float64: {str(error).splitlines()[0]}"}
    row = {f"eager_{key}": value for key, value in errors(narrow, wide).items()}
    gradients = {key: value for key, value in wide.items() if key.startswith("gradient")}
    row |= errors(captured(_made(make), capture, gradients), wide)
    row["verdict"] = verdict(row, "eager")
    if row["verdict"] == "wrong":
        row |= shaken(make, wide)
        row["verdict"] = "rounding" if verdict(row, "shaken") == "right" else "wrong"
    return row


def shaken(make: Make, wide: Values) -> Row:
    """What weights that are a millionth off change in float64: how well the step is conditioned."""
    found: Row = {}
    for seed in range(SHAKES):
        step = widened(_made(make))
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in step.model.parameters():
                parameter.mul_(1 + 2**-20 * torch.randn_like(parameter))
        torch.manual_seed(1)
        row = errors(eager(step), wide)
        for kind in KINDS:
            found[f"shaken_{kind}"] = max(row[kind], found.get(f"shaken_{kind}", 0.0))
    return found


def _plain(value: Any) -> object:
    if isinstance(value, tuple):
        return list(value)
    if value is None or isinstance(value, str):
        return value
    return value if abs(value) < float("inf") else "inf"


def verdict(row: Mapping[str, Any], other: str) -> str:
    """Right where every error is of the size of others, as PyTorch's own in float32, or wrong."""
    right = all(row[k] <= FLOOR + TIMES * row[f"{other}_{k}"] for k in KINDS)
    return "right" if right else "wrong"


def unreached(found: Mapping[tuple[object, ...], Row]) -> Iterator[Row]:
    """Rows of what no run has come to."""
    for part, steps in PARTS.items():
        for name in steps():
            if (part, name) not in found:
                yield {"part": part, "name": name, "verdict": "not run"}


def kept(path: Path | None) -> dict[tuple[object, ...], Row]:
    """Rows of an earlier record by what they are of."""
    if path is None or not path.exists():
        return {}
    rows = json.loads(path.read_text())["results"]
    return {(row["part"], row["name"]): row for row in rows}


def changes(found: Mapping[tuple[object, ...], Row], record: Path) -> list[str]:
    """What was run and has another verdict than in ``record``, by the check or beside it."""

    def outcome(row: Row) -> str:
        beside = row.get("independent", {}).get("verdict", "")
        return ", ".join(filter(None, (row["verdict"], beside)))

    before = kept(record)
    pairs = [
        (key, before.get(key), row) for key, row in found.items() if row["verdict"] != "not run"
    ]
    return [
        f"{' '.join(map(str, key))}: {outcome(old) if old else 'not there'} -> {outcome(new)} "
        f"{new['words']}"
        for key, old, new in pairs
        if old is None or outcome(old) != outcome(new)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print every row, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture.check")
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS))
    parser.add_argument("--only", action="append", default=[], help="a name, repeatable")
    parser.add_argument("--limit", type=float, help="seconds for one capture")
    parser.add_argument("--missing", action="store_true", help="leave earlier rows as they are")
    parser.add_argument("--json", type=Path, help="the record")
    parser.add_argument("--against", type=Path, help="a record to compare with")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    found = {k: row for k, row in kept(options.json).items() if row["verdict"] != "not run"}
    for part in options.parts:
        for row in rows(part, options, set(found) if options.missing else ()):
            print(json.dumps(row), flush=True)
            found[row["part"], row["name"]] = row
            if options.json is not None:
                command = "python -m benchmarks.capture.check pieces networks"
                write_record(options.json, command, [*found.values(), *unreached(found)])
    changed = changes(found, options.against) if options.against is not None else []
    for each in changed:
        print(f"changed: {each}", file=sys.stderr)
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
