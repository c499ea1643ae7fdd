"""What ``memplan capture`` says of its own step, and whether that is so.

    python -m benchmarks.capture.check --json benchmarks/results/capture_check.json

For the networks of torchvision, timm and transformers in ``libraries.txt``, as far as they are
installed. Of each, what the check of ``capture`` found, or with which words the step was refused;
beside it, and independent of it, loss, gradients and what the model holds after two
updates against PyTorch in float64, whose own error in float32 is given, too; *rounding* is what is
off by more, and by as much in PyTorch when its weights are a millionth off. A step that the check
refuses is captured without it for that, which tells a false alarm. Steps that draw are held against
PyTorch by the check alone, which feeds the draws. Rows of earlier runs stay unless they are made
anew.
"""

import argparse
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import memplan
from benchmarks.capture.libraries import LIBRARY_NETS, Make
from benchmarks.record import Row, arguments, run
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
KINDS = ("loss_error", "gradient_error", "state_error")
SHAKES = 3
Values = dict[str, np.ndarray[Any, Any]]


def _made(make: Make) -> memplan.TorchStep:
    """The step, the same every time, with SGD: its updates show a wrong gradient as it is."""
    torch.manual_seed(0)
    step = make()
    optimizer = torch.optim.SGD(step.model.parameters(), RATE, momentum=0.9)
    return memplan.TorchStep(step.model, step.loss, step.batch, optimizer)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Every network: what the check says, and what is so."""
    warnings.simplefilter("ignore")
    for name, make in LIBRARY_NETS.items():
        if not options.only or name in options.only:
            yield {"name": name, **row_of(make)}


def row_of(make: Make) -> Row:
    """One network."""
    try:
        step = _made(make)
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        return {"verdict": "not run", "words": str(error).splitlines()[0]}
    capture, row = checked(step)
    if row["verdict"] == "refused":
        return row
    return row | {"independent": independent(make, capture)}


def checked(step: memplan.TorchStep) -> tuple[memplan.Capture | None, Row]:
    """A capture with its check: right, refused or different, with the words."""
    begin = time.perf_counter()
    capture, said = None, dict[str, Any]()
    try:
        capture = memplan.capture(step, weights="embed")
        check = capture.check
    except memplan.MemplanError as error:
        check, said = getattr(error, "check", None), {"words": error.message, "hint": error.hint}
    row: Row = {**said, "capture_seconds": round(time.perf_counter() - begin, 2)}
    if check is None:
        return None, {"verdict": "refused", **row}
    if capture is None:
        row = {"verdict": "differs", **row}
    else:
        verdict = {"equal": "right"}.get(check.verdict, str(check.verdict))
        row = {"verdict": verdict, "words": check.reason, **row}
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


def loss_of(step: memplan.TorchStep) -> Tensor:
    """The loss of a step in PyTorch."""
    if step.loss is None:
        return step.model(**step.batch).loss
    return step.loss(step.model, **step.batch)


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

    given = {name: wide(tensor) for name, tensor in step.batch.items()}
    model = step.model.double()
    trained = [p for p in model.parameters() if p.requires_grad]
    return memplan.TorchStep(model, step.loss, given, torch.optim.SGD(trained, RATE, momentum=0.9))


def captured(step: memplan.TorchStep, capture: memplan.Capture, gradients: Values) -> Values:
    """The same two updates by ONNX Runtime. Gradients are what the first momentum is."""
    import onnxruntime

    feeds: dict[str, Any] = {name: step.batch[name].numpy() for name in capture.batch}
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


if __name__ == "__main__":
    parser = arguments("capture.check", __doc__)
    parser.add_argument("--only", action="append", default=[], help="a name, repeatable")
    run(parser, rows, of=("name",))
