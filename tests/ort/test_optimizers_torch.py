"""Updates against torch.optim, over several steps: float64 by ONNX's evaluator, float32 by ONNX
Runtime; inside the training graph, and as a graph of their own."""

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.gradients import Array, Run, draw, in_float32, reference, runtime
from helpers.graphs import parse
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions

torch: Any = pytest.importorskip("torch")

SHAPES = {"w1": (3, 5), "b1": (5,), "w2": (2, 5, 4), "scale": ()}
FORWARD = """
    g (double[6,3] x, double[2,6,4] t, double[3,5] w1, double[5] b1, double[2,5,4] w2, double scale)
      => (double loss)
    { a = MatMul(x, w1)  b = Add(a, b1)  c = Tanh(b)  d = MatMul(c, w2)  e = Mul(d, scale)
      f = Sub(e, t)  g = Mul(f, f)  loss = ReduceMean <keepdims = 0> (g) }"""
STEPS = 6
RATE = 0.03125  # exact in float32, as all that is fed


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


class Lion:
    """Algorithm 2 of arXiv:2302.06675, line by line."""

    def __init__(
        self,
        parameters: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
    ) -> None:
        self.parameters = list(parameters)
        self.lr, (self.beta1, self.beta2), self.decay = lr, betas, weight_decay
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


CLIMBING = "sgd adam adamw rmsprop adagrad adafactor nadam radam adamax adadelta asgd"
CASES = [
    "muon",
    "muon{adjust_lr_fn=match_rms_adamw,nesterov=0,momentum=0.5,weight_decay=0.25}",
    "sgd",
    "sgd{weight_decay=0.25}",
    "sgd{clip_norm=3}",
    "sgd{clip_value=0.125}",
    "momentum",
    "momentum{dampening=0.25,weight_decay=0.25}",
    "momentum{momentum=0.8,nesterov=1}",
    "adam",
    "adam{beta1=0.8,beta2=0.95,weight_decay=0.25}",
    "adam{amsgrad=1,beta2=0.5}",
    "adamw{weight_decay=0.25}",
    "adamw{amsgrad=1,weight_decay=0.25}",
    "adamw{clip_norm=3,weight_decay=0.25}",
    "adamw{weight_decay=0.25,no_decay=b*+scale}",
    "rmsprop",
    "rmsprop{momentum=0.5,weight_decay=0.25}",
    "rmsprop{centered=1}",
    "rmsprop{centered=1,momentum=0.5,weight_decay=0.25}",
    "adagrad{lr_decay=0.125}",
    "adagrad{weight_decay=0.25}",
    "adafactor",
    "adafactor{weight_decay=0.25,d=1.5,decay_rate=0.5}",
    "lion{weight_decay=0.25}",
    "nadam",
    "nadam{beta1=0.8,beta2=0.95,momentum_decay=0.125,weight_decay=0.25}",
    "nadam{decoupled_weight_decay=1,weight_decay=0.25}",
    "radam",
    "radam{beta2=0.5,weight_decay=0.25}",
    "radam{beta2=0.875,decoupled_weight_decay=1,weight_decay=0.25}",
    "adamax",
    "adamax{beta1=0.8,beta2=0.5,weight_decay=0.25}",
    "adadelta",
    "adadelta{rho=0.5,weight_decay=0.25}",
    "asgd",
    "asgd{lambd=0.25,alpha=0.5,t0=2,weight_decay=0.25}",
    "rprop",
    "rprop{etaminus=0.25,etaplus=1.5,step_min=0.0078125,step_max=0.0625}",
    # Those of torch that can climb, each once. Steps that grow push the network up to where tanh is
    # flat, and rounding decides on signs: Rprop's are small.
    *(f"{name}{{maximize=1}}" for name in CLIMBING.split()),
    "rprop{maximize=1,step_max=0.0078125}",
]
TOGETHER = {
    "betas": {"beta1": 0.9, "beta2": 0.999},
    "etas": {"etaminus": 0.5, "etaplus": 1.2},
    "step_sizes": {"step_min": 1e-6, "step_max": 50.0},
}
"""What PyTorch takes as a pair, and its default."""
CLASSES = {name.lower(): name for name in vars(torch.optim) if name[0].isupper()} | {
    "momentum": "SGD"
}


def options_of(optimizer: str) -> tuple[str, dict[str, Any]]:
    """The name, and the options by name."""
    name, _, text = optimizer.removesuffix("}").partition("{")
    found: dict[str, Any] = {"momentum": 0.9} if name == "momentum" else {}
    for key, value in (each.split("=") for each in text.split(",") if each):
        number = value.replace(".", "").isdigit()
        flag = {"0": False, "1": True}
        found[key] = flag.get(value, float(value)) if number else value
    return name, found


def judge_of(optimizer: str, network: Network) -> Any:
    """PyTorch's optimizer with the options of that text."""
    name, options = options_of(optimizer)
    for key in ("clip_norm", "clip_value"):
        options.pop(key, None)
    for key, parts in TOGETHER.items():
        if parts.keys() & options.keys():
            options[key] = tuple(options.pop(part, usual) for part, usual in parts.items())
    if "decay_rate" in options:
        options["beta2_decay"] = -options.pop("decay_rate")
    kept = options.pop("no_decay", "").split("+")
    free = [p for n, p in network.parameters.items() if any(fnmatch(n, each) for each in kept)]
    given: Any = [p for p in network.parameters.values() if not any(p is other for other in free)]
    if free:
        given = [{"params": given}, {"params": free, "weight_decay": 0.0}]
    kind = {"muon": Muon, "lion": Lion}.get(name) or getattr(
        torch.optim, CLASSES[{"momentum": "sgd"}.get(name, name)]
    )
    return kind(given, lr=RATE, **options)


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


def follow(optimizer: str, kind: str, *, apart: bool = False) -> None:
    """Step by step the parameters are PyTorch's; ``apart``: each step over two batches, by a graph
    of updates."""
    trained = Trained(optimizer, kind, apart=apart)
    network, (_, options) = Network(trained.dtype), options_of(optimizer)
    judge, norms = judge_of(optimizer, network), []
    for t in range(1, STEPS + 1):
        batches = [batch(k, trained.dtype) for k in ((t, t + 30) if apart else (t,))]
        judge.zero_grad()
        for given in batches:
            network.backward(given)
        parameters = list(network.parameters.values())
        for parameter in parameters:
            parameter.grad /= len(batches)
        if norm := options.get("clip_norm"):
            norms.append(torch.nn.utils.clip_grad_norm_(parameters, norm))
        if value := options.get("clip_value"):
            torch.nn.utils.clip_grad_value_(parameters, value)
        judge.step()
        trained.step(*batches, lr=RATE, **({"gradient_scale": 0.5} if apart else {}))
        trained.check(network)
    if norms and not apart:
        assert min(norms) < options["clip_norm"] < max(norms)


@both
@pytest.mark.parametrize("optimizer", CASES)
def test_every_optimizer_takes_the_steps_of_pytorchs(optimizer: str, kind: str) -> None:
    follow(optimizer, kind)


@both
@pytest.mark.parametrize(
    "optimizer", ["adamw{weight_decay=0.25}", "adamw{weight_decay=0.25,clip_norm=3}"]
)
def test_a_graph_of_updates_takes_sums_over_batches(optimizer: str, kind: str) -> None:
    follow(optimizer, kind, apart=True)


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
