"""Updates against torch.optim, over several steps: float64 by ONNX's evaluator, float32 by ONNX
Runtime; inside the training graph, and as a graph of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.gradients import Array, Run, draw, in_float32, reference, runtime
from helpers.graphs import parse
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.ort

SHAPES = {"w1": (3, 5), "b1": (5,), "w2": (2, 5, 4), "scale": ()}
FORWARD = """
    g (double[6,3] x, double[2,6,4] t, double[3,5] w1, double[5] b1, double[2,5,4] w2, double scale)
      => (double loss)
    { a = MatMul(x, w1)  b = Add(a, b1)  c = Tanh(b)  d = MatMul(c, w2)  e = Mul(d, scale)
      f = Sub(e, t)  g = Mul(f, f)  loss = ReduceMean <keepdims = 0> (g) }"""
STEPS = 6
RATE = 0.03125  # exact in float32, as all that is fed
Make = Callable[..., Any]


def forward() -> onnx.ModelProto:
    model = parse(FORWARD)
    kept = [value for value in model.graph.input if value.name not in SHAPES]
    del model.graph.input[len(kept) :]
    for k, (name, shape) in enumerate(SHAPES.items()):
        model.graph.initializer.append(onnx.numpy_helper.from_array(draw(shape, k), name))
    return model


def batch(t: int, dtype: type) -> dict[str, Array]:
    """Of step ``t``; the second one has large gradients, so that clipping bites."""
    size = 8.0 if t == 2 else 1.0
    return {
        "x": (size * draw((6, 3), 10 + t)).astype(dtype),
        "t": draw((2, 6, 4), 20 + t).astype(dtype),
    }


class Network:
    """The same network in PyTorch."""

    def __init__(self, dtype: type) -> None:
        self.parameters = {
            name: torch.tensor(draw(shape, k).astype(dtype), requires_grad=True)
            for k, (name, shape) in enumerate(SHAPES.items())
        }

    def backward(self, given: Mapping[str, Array]) -> None:
        """Add the gradients of a batch."""
        x, t = (torch.tensor(given[name]) for name in ("x", "t"))
        p = self.parameters
        found = (torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]) * p["scale"]
        ((found - t) ** 2).mean().backward()


def pick(kind: str, **options: Any) -> Make:
    return partial(getattr(torch.optim, kind), **options)


def lion(parameters: Any, lr: float, **options: Any) -> Any:
    return Lion(parameters, lr, **options)


class Lion:
    """Algorithm 2 of arXiv:2302.06675, line by line."""

    def __init__(
        self, parameters: Any, lr: float, beta1: float = 0.9, beta2: float = 0.99, decay: float = 0
    ) -> None:
        self.parameters = list(parameters)
        self.lr, self.beta1, self.beta2, self.decay = lr, beta1, beta2, decay
        self.m = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        with torch.no_grad():
            for p, m in zip(self.parameters, self.m, strict=True):
                c = self.beta1 * m + (1 - self.beta1) * p.grad
                p -= self.lr * (torch.sign(c) + self.decay * p)
                m.copy_(self.beta2 * m + (1 - self.beta2) * p.grad)


class Muon:
    """torch.optim.Muon of matrices, and AdamW of what is none."""

    def __init__(self, parameters: Any, lr: float, **options: Any) -> None:
        given = list(parameters)
        matrices, others = ([p for p in given if (p.dim() == 2) is flat] for flat in (True, False))
        self.parts = [
            torch.optim.Muon(matrices, lr=lr, **options),
            torch.optim.AdamW(others, lr=lr, weight_decay=options.get("weight_decay", 0.1)),
        ]

    def zero_grad(self) -> None:
        for each in self.parts:
            each.zero_grad()

    def step(self) -> None:
        for each in self.parts:
            each.step()


CASES: list[tuple[str, Make]] = [
    ("muon", Muon),
    (
        "muon{adjust_lr_fn=match_rms_adamw,nesterov=0,momentum=0.5,weight_decay=0.25}",
        partial(
            Muon,
            adjust_lr_fn="match_rms_adamw",
            nesterov=False,
            momentum=0.5,
            weight_decay=0.25,
        ),
    ),
    ("sgd", pick("SGD")),
    ("sgd{weight_decay=0.25}", pick("SGD", weight_decay=0.25)),
    ("momentum", pick("SGD", momentum=0.9)),
    (
        "momentum{dampening=0.25,weight_decay=0.25}",
        pick("SGD", momentum=0.9, dampening=0.25, weight_decay=0.25),
    ),
    ("momentum{momentum=0.8,nesterov=1}", pick("SGD", momentum=0.8, nesterov=True)),
    ("adam", pick("Adam")),
    (
        "adam{beta1=0.8,beta2=0.95,weight_decay=0.25}",
        pick("Adam", betas=(0.8, 0.95), weight_decay=0.25),
    ),
    ("adamw{weight_decay=0.25}", pick("AdamW", weight_decay=0.25)),
    ("rmsprop", pick("RMSprop")),
    ("rmsprop{momentum=0.5,weight_decay=0.25}", pick("RMSprop", momentum=0.5, weight_decay=0.25)),
    ("adagrad{lr_decay=0.125}", pick("Adagrad", lr_decay=0.125)),
    ("adagrad{weight_decay=0.25}", pick("Adagrad", weight_decay=0.25)),
    ("adafactor", pick("Adafactor")),
    (
        "adafactor{weight_decay=0.25,d=1.5,decay_rate=0.5}",
        pick("Adafactor", weight_decay=0.25, d=1.5, beta2_decay=-0.5),
    ),
    ("lion{weight_decay=0.25}", partial(lion, decay=0.25)),
    ("adam{amsgrad=1,beta2=0.5}", pick("Adam", amsgrad=True, betas=(0.9, 0.5))),
    ("adamw{amsgrad=1,weight_decay=0.25}", pick("AdamW", amsgrad=True, weight_decay=0.25)),
    ("rmsprop{centered=1}", pick("RMSprop", centered=True)),
    (
        "rmsprop{centered=1,momentum=0.5,weight_decay=0.25}",
        pick("RMSprop", centered=True, momentum=0.5, weight_decay=0.25),
    ),
    ("nadam", pick("NAdam")),
    (
        "nadam{beta1=0.8,beta2=0.95,momentum_decay=0.125,weight_decay=0.25}",
        pick("NAdam", betas=(0.8, 0.95), momentum_decay=0.125, weight_decay=0.25),
    ),
    (
        "nadam{decoupled_weight_decay=1,weight_decay=0.25}",
        pick("NAdam", decoupled_weight_decay=True, weight_decay=0.25),
    ),
    ("radam", pick("RAdam")),
    ("radam{beta2=0.5,weight_decay=0.25}", pick("RAdam", betas=(0.9, 0.5), weight_decay=0.25)),
    (
        "radam{beta2=0.875,decoupled_weight_decay=1,weight_decay=0.25}",
        pick("RAdam", betas=(0.9, 0.875), decoupled_weight_decay=True, weight_decay=0.25),
    ),
    ("adamax", pick("Adamax")),
    (
        "adamax{beta1=0.8,beta2=0.5,weight_decay=0.25}",
        pick("Adamax", betas=(0.8, 0.5), weight_decay=0.25),
    ),
    ("adadelta", pick("Adadelta")),
    ("adadelta{rho=0.5,weight_decay=0.25}", pick("Adadelta", rho=0.5, weight_decay=0.25)),
    ("asgd", pick("ASGD")),
    (
        "asgd{lambd=0.25,alpha=0.5,t0=2,weight_decay=0.25}",
        pick("ASGD", lambd=0.25, alpha=0.5, t0=2, weight_decay=0.25),
    ),
    ("rprop", pick("Rprop")),
    (
        "rprop{etaminus=0.25,etaplus=1.5,step_min=0.0078125,step_max=0.0625}",
        pick("Rprop", etas=(0.25, 1.5), step_sizes=(0.0078125, 0.0625)),
    ),
]
# Those of torch that can climb, each once.
CLIMBING = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adafactor", "NAdam", "RAdam", "Adamax")
CASES += [
    (f"{kind.lower()}{{maximize=1}}", pick(kind, maximize=True))
    for kind in (*CLIMBING, "Adadelta", "ASGD")
]
# Steps that grow push the network up to where tanh is flat, and rounding decides on signs.
CASES.append(
    (
        "rprop{maximize=1,step_max=0.0078125}",
        pick("Rprop", maximize=True, step_sizes=(1e-6, 0.0078125)),
    )
)
KINDS: dict[str, tuple[type, Run, float]] = {
    "float64": (np.float64, reference, 1e-13),
    "float32": (np.float32, runtime, 2e-5),
}


class Trained:
    """A training graph, or one that gives gradients and one of updates, run step by step."""

    def __init__(self, optimizer: str, kind: str, *, apart: bool = False) -> None:
        self.dtype, self.run, self.tolerance = KINDS[kind]
        model = forward() if kind == "float64" else in_float32(forward())
        options = GradOptions("loss", wrt=tuple(SHAPES), optimizer=optimizer, own_update=apart)
        self.made = grad(model, options)
        self.state: dict[str, Array] = {}
        contract = self.made.contract if self.made.update is None else self.made.update.contract
        self.new_values = contract.new_values
        last = self.made.model if self.made.update is None else self.made.update.model
        weights = {t.name: onnx.numpy_helper.to_array(t) for t in self.made.model.graph.initializer}
        stored = {tensor.name for tensor in last.graph.initializer}
        for value in last.graph.input:
            if value.name in contract.new_values.values() and value.name not in stored:
                given = value.type.tensor_type
                shape = [dim.dim_value for dim in given.shape.dim]
                dtype = onnx.helper.tensor_dtype_to_np_dtype(given.elem_type)
                self.state[value.name] = weights.get(value.name, np.zeros(shape, dtype))

    def step(self, *batches: Mapping[str, Array], **fed: float) -> None:
        """Gradients of all batches, and one update; what is not fed has its default."""
        given = {name: np.asarray(value, np.float32) for name, value in fed.items()}
        if self.made.update is None:
            (only,) = batches
            found = self.run(self.made.model, {**only, **self.state, **given})
        else:
            weights = {name: v for name, v in self.state.items() if name in SHAPES}
            each = [self.run(self.made.model, {**one, **weights}) for one in batches]
            names = self.made.update.contract.gradients
            sums = {name: np.asarray(sum(one[name] for one in each)) for name in names}
            found = self.run(self.made.update.model, {**sums, **self.state, **given})
        self.state = {old: found[new] for new, old in self.new_values.items()}

    def check(self, network: Network) -> None:
        """Its parameters are those of PyTorch."""
        for name, wanted in network.parameters.items():
            error = np.abs(self.state[name] - wanted.detach().numpy()).max()
            assert self.state[name].dtype == self.dtype
            assert error <= self.tolerance, (name, error)


both = pytest.mark.parametrize("kind", KINDS)


@both
@pytest.mark.parametrize(("optimizer", "make"), CASES, ids=[name for name, _ in CASES])
def test_every_optimizer_takes_the_steps_of_pytorchs(optimizer: str, make: Make, kind: str) -> None:
    trained = Trained(optimizer, kind)
    network = Network(trained.dtype)
    judge = make(network.parameters.values(), lr=RATE)
    for t in range(1, STEPS + 1):
        given = batch(t, trained.dtype)
        judge.zero_grad()
        network.backward(given)
        judge.step()
        trained.step(given, lr=RATE)
        trained.check(network)


def by_norm(parameters: Any) -> Any:
    return torch.nn.utils.clip_grad_norm_(list(parameters), 3.0)


def by_value(parameters: Any) -> Any:
    return torch.nn.utils.clip_grad_value_(list(parameters), 0.125)


@both
@pytest.mark.parametrize(
    ("optimizer", "clip", "make"),
    [
        ("sgd{clip_norm=3}", by_norm, pick("SGD")),
        ("adamw{clip_norm=3,weight_decay=0.25}", by_norm, pick("AdamW", weight_decay=0.25)),
        ("sgd{clip_value=0.125}", by_value, pick("SGD")),
    ],
)
def test_gradients_are_clipped_as_pytorch_does(
    optimizer: str, clip: Callable[[Any], Any], make: Make, kind: str
) -> None:
    trained = Trained(optimizer, kind)
    network = Network(trained.dtype)
    judge = make(network.parameters.values(), lr=RATE)
    norms = []
    for t in range(1, STEPS + 1):
        given = batch(t, trained.dtype)
        judge.zero_grad()
        network.backward(given)
        norms.append(clip(network.parameters.values()))
        judge.step()
        trained.step(given, lr=RATE)
        trained.check(network)
    if clip is by_norm:
        assert min(norms) < 3 < max(norms)


@both
def test_parameters_of_some_names_do_not_decay(kind: str) -> None:
    trained = Trained("adamw{weight_decay=0.25,no_decay=b*+scale}", kind)
    network = Network(trained.dtype)
    free = [p for name, p in network.parameters.items() if name in ("b1", "scale")]
    others = [p for name, p in network.parameters.items() if name not in ("b1", "scale")]
    groups = [{"params": others}, {"params": free, "weight_decay": 0.0}]
    judge = torch.optim.AdamW(groups, lr=RATE, weight_decay=0.25)
    for t in range(1, STEPS + 1):
        given = batch(t, trained.dtype)
        judge.zero_grad()
        network.backward(given)
        judge.step()
        trained.step(given, lr=RATE)
        trained.check(network)


@both
@pytest.mark.parametrize("clipped", [False, True], ids=["plain", "clipped"])
def test_a_graph_of_updates_takes_sums_over_batches(clipped: bool, kind: str) -> None:
    optimizer = "adamw{weight_decay=0.25,clip_norm=3}" if clipped else "adamw{weight_decay=0.25}"
    trained = Trained(optimizer, kind, apart=True)
    network = Network(trained.dtype)
    judge = torch.optim.AdamW(network.parameters.values(), lr=RATE, weight_decay=0.25)
    for t in range(1, STEPS + 1):
        batches = [batch(t, trained.dtype), batch(t + 30, trained.dtype)]
        judge.zero_grad()
        for given in batches:
            network.backward(given)
        for parameter in network.parameters.values():
            parameter.grad /= 2
        if clipped:
            by_norm(network.parameters.values())
        judge.step()
        trained.step(*batches, lr=RATE, gradient_scale=0.5)
        trained.check(network)


def test_what_is_fed_takes_the_place_of_the_option() -> None:
    """Weight decay, the clipping norm and the learning rate change from step to step."""
    trained = Trained("adamw{clip_norm=5}", "float32")
    network = Network(np.float32)
    judge = torch.optim.AdamW(network.parameters.values(), lr=RATE)
    for t in range(1, STEPS + 1):
        given, rate, decay, norm = batch(t, np.float32), RATE / t, 0.25 * t, 0.5 * t
        for group in judge.param_groups:
            group.update(lr=rate, weight_decay=decay)
        judge.zero_grad()
        network.backward(given)
        torch.nn.utils.clip_grad_norm_(network.parameters.values(), norm)
        judge.step()
        trained.step(given, lr=rate, weight_decay=decay, clip_norm=norm)
        trained.check(network)
