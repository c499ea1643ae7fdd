"""The optimizers, a function each: what a step makes of a parameter.

Of ``u`` they take the parameter, its gradient and the state that they name, and give the new value;
their other parameters are options (``adam{beta1=0.8}``; bools are 0 or 1). Arithmetic on ``u``'s
tensors makes nodes; scalars that come out the same for several parameters are made once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import onnx

from memplan.autodiff.emit.emitter import BFLOAT16
from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.optimizer import (
    FLOAT,
    Formula,
    Optimizer,
    UpdateBuilder,
    optimizer_class,
)
from memplan.errors import UsageError
from memplan.shapes.tensor_type import NARROW_FLOATS
from memplan.solver.strategies.spec import build, split_spec
from memplan.units import did_you_mean

KINDS: dict[str, type[Any]] = {}
"""The optimizers by name, each a subclass of
:class:`~memplan.autodiff.optimizers.optimizer.Optimizer`."""
_ENOUGH = 5.0
"""The length above which PyTorch rectifies RAdam; the paper has 4."""
_EPSILONS: Mapping[int, float] = {
    onnx.TensorProto.FLOAT: 2.0**-23,
    onnx.TensorProto.DOUBLE: 2.0**-52,
    onnx.TensorProto.FLOAT16: 2.0**-10,
    onnx.TensorProto.BFLOAT16: 2.0**-7,
}
"""Machine epsilons."""


def kind(**more: Any) -> Callable[[Formula], type[Any]]:
    """Offer a formula as an optimizer; see :func:`optimizer_class`."""

    def register(formula: Formula) -> type[Any]:
        KINDS[formula.__name__] = optimizer_class(formula, **more)
        return KINDS[formula.__name__]

    return register


@kind(by_element=True)
def sgd(u: UpdateBuilder) -> Value:
    """w - lr·(g + weight_decay·w)."""
    return u.weight - u.decayed() * u.rate()


def _check_lookahead(given: Any) -> None:
    if given.nesterov and (given.dampening or not given.momentum):
        raise UsageError(
            "--optimizer momentum{nesterov=1} needs a momentum and no dampening",
            "leave dampening out",
        )


@kind(by_element=True, check=_check_lookahead)
def momentum(
    u: UpdateBuilder, momentum: float = 0.9, dampening: float = 0.0, nesterov: bool = False
) -> Value:
    """v = momentum·v + (1 - dampening)·(g + weight_decay·w); w - lr·v, as ``torch.optim.SGD``.

    The first step is not dampened. ``nesterov`` (Sutskever et al. 2013) looks ahead:
    w - lr·(g + momentum·v).
    """
    g, v = u.decayed(), u.state("momentum")
    faded, new = v * momentum, g
    if dampening:
        usual = u.double(1 - dampening)
        new = g * u.cast(u.op("Where", u.first(), u.double(1.0), usual))
    v = u.renew(v, faded + new)
    return u.weight - (g + v * momentum if nesterov else v) * u.rate()


@kind(by_element=True)
def adam(
    u: UpdateBuilder,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    amsgrad: bool = False,
) -> Value:
    """Kingma and Ba 2015 (arXiv:1412.6980), algorithm 1; weight decay is added to the gradient.

    ``amsgrad`` (Reddi et al. 2018, arXiv:1904.09237) divides by the largest second moment so far.
    """
    return u.weight - _adam_change(u, u.decayed(), beta1, beta2, eps, amsgrad)


@kind(by_element=True, weight_decay=0.01)
def adamw(
    u: UpdateBuilder,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    amsgrad: bool = False,
) -> Value:
    """Loshchilov and Hutter 2019 (arXiv:1711.05101): as ``adam``, but the weight itself decays."""
    change = _adam_change(u, u.gradient, beta1, beta2, eps, amsgrad)
    return u.shrunk() - change


def _adam_change(
    u: UpdateBuilder, g: Value, beta1: float, beta2: float, eps: float, amsgrad: bool
) -> Value:
    """lr/(1 - β₁ᵗ)·m over √v/r + eps, where r = √(1 - β₂ᵗ).

    As r·lr/(1 - β₁ᵗ)·m over √v + eps·r that is a division less for every element; not in narrow
    types, in which eps·r may vanish.
    """
    m, v = adam_moments(u, g, beta1, beta2)
    if amsgrad:
        largest = u.state("max_exp_avg_sq")
        v = u.renew(largest, u.op("Max", largest, v))
    root = u.op("Sqrt", v)
    size, r = adam_corrections(u, beta1, beta2)
    if u.weight.dtype in NARROW_FLOATS:
        return m / (root / r + eps) * size
    return m / (root + r * eps) * (size * r)


def adam_moments(u: UpdateBuilder, g: Value, beta1: float, beta2: float) -> tuple[Value, Value]:
    """The moving averages of gradients and of their squares."""
    m, v = u.state("exp_avg"), u.state("exp_avg_sq")
    return u.average(m, g, beta1), u.renew(v, v * beta2 + g * g * (1 - beta2))


def adam_corrections(u: UpdateBuilder, beta1: float, beta2: float) -> tuple[Value, Value]:
    """lr / (1 - β₁ᵗ) and √(1 - β₂ᵗ)."""
    u.step()  # the first of the inputs
    return u.rate() / u.missing(beta1), u.op("Sqrt", u.missing(beta2))


@kind(by_element=True, lr=1e-4)
def lion(u: UpdateBuilder, beta1: float = 0.9, beta2: float = 0.99) -> Value:
    """Chen et al. 2023 (arXiv:2302.06675), algorithm 2: the sign of β₁·m + (1 - β₁)·g.

    m = β₂·m + (1 - β₂)·g, and the weight itself decays. The defaults are those of the authors'
    code; learning rates are three to ten times as small as AdamW's.
    """
    g, m = u.gradient, u.state("exp_avg")
    direction = u.op("Sign", m * beta1 + g * (1 - beta1))
    u.average(m, g, beta2)
    change = direction * u.rate()
    return u.shrunk() - change


@kind(lr=1e-2)
def adafactor(
    u: UpdateBuilder,
    decay_rate: float = 0.8,
    eps1: float = 0.0,
    eps2: float = 1e-3,
    d: float = 1.0,
) -> Value:
    """Shazeer and Stern 2018 (arXiv:1804.04235), algorithm 4, as ``torch.optim.Adafactor``.

    β₂ is 1 - t^-decay_rate, ``eps1`` bounds the second moment from below (0: the machine epsilon of
    the element type; its square is what is compared) and ``eps2`` the size of the weights, by which
    steps are scaled; ``d`` is the largest root mean square of a step before that. The learning rate
    is bounded by 1/√t. Tensors of two and more dimensions are factored along the last two: the
    second moment is the product of that of rows and that of columns, over the mean of the rows.
    """
    g, weight, operations = u.gradient, u.weight, u.operations

    def root_mean_square(value: Value) -> Value:
        square = u.op("ReduceSumSquare", value, keepdims=0)
        return u.op("Sqrt", square / operations.count(weight, range(weight.rank), weight.dtype))

    def averaged(state: Value, square: Value) -> Value:
        share = u.op("Pow", u.step(), u.double(-decay_rate))
        kept, new = u.cast(1 - share), u.cast(share)
        return u.renew(state, state * kept + square * new)

    def averaged_over(axis: int, name: str) -> Value:
        state = u.state(name, (*weight.shape[:axis], 1, *weight.shape[axis + 1 :]))
        square = operations.reduce("ReduceSumSquare", g, [axis])
        return averaged(state, square / operations.count(weight, [axis], weight.dtype))

    size = u.op("Max", root_mean_square(weight), eps2)
    bound = u.cast(1 / u.op("Sqrt", u.step()))
    rate = size * u.op("Min", u.rate(), bound)
    least = eps1 or _EPSILONS[weight.dtype]
    if weight.rank > 1:
        rows = averaged_over(weight.rank - 1, "row_var")
        columns = averaged_over(weight.rank - 2, "col_var")
        mean = operations.reduce("ReduceMean", rows, [weight.rank - 2])
        second = rows * columns / u.op("Max", mean, least)
    else:
        second = averaged(u.state("variance"), g * g)
    step = g / u.op("Sqrt", u.op("Max", second, least * least))
    norm = u.op("Max", root_mean_square(step) / d, 1.0)
    return u.shrunk() - step * (rate / norm)


@kind(by_element=True, lr=1e-2)
def rmsprop(
    u: UpdateBuilder,
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
) -> Value:
    """Tieleman and Hinton 2012 (lecture 6.5), as ``torch.optim.RMSprop``: the epsilon is added to
    the root, and ``momentum`` averages the steps.

    ``centered`` (Graves 2013, arXiv:1308.0850) divides by the deviation from the mean gradient
    instead.
    """
    g, v = u.decayed(), u.state("square_avg")
    v = u.renew(v, v * alpha + g * g * (1 - alpha))
    if centered:
        mean = u.average(u.state("grad_avg"), g, alpha)
        v = v - mean * mean
    change = g / (u.op("Sqrt", v) + eps)
    if momentum:
        steps = u.state("momentum")
        change = u.renew(steps, steps * momentum + change)
    return u.weight - change * u.rate()


@kind(lr=1e-2)
def adagrad(u: UpdateBuilder, lr_decay: float = 0.0, eps: float = 1e-10) -> Value:
    """Duchi et al. 2011 (JMLR 12): g / (√(Σ g²) + eps). The learning rate falls as
    1 / (1 + lr_decay·(t - 1))."""
    g, total = u.decayed(), u.state("sum")
    total = u.renew(total, total + g * g)
    change = g / (u.op("Sqrt", total) + eps)
    rate = u.rate()
    if lr_decay:
        rate = rate / u.cast((u.step() - 1) * lr_decay + 1)
    return u.weight - change * rate


@kind(lr=2e-3)
def nadam(
    u: UpdateBuilder,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decoupled_weight_decay: bool = False,
    momentum_decay: float = 4e-3,
) -> Value:
    """Dozat 2016 (ICLR workshop), as ``torch.optim.NAdam``: Adam with Nesterov's look ahead.

    The share of the first moment, μₜ = β₁·(1 - ½·0.96^(t·momentum_decay)), grows from half of β₁ to
    β₁, and ``mu_product`` is the product of all of them so far. With ``decoupled_weight_decay`` the
    weight itself decays.
    """

    def share(ahead: int) -> Value:
        faded = u.op("Pow", u.double(0.96), (u.step() + ahead) * momentum_decay)
        return (1 - faded * 0.5) * beta1

    before, g = (u.shrunk(), u.gradient) if decoupled_weight_decay else (u.weight, u.decayed())
    m, v = _moments(u, g, beta1, beta2)
    state = u.state("mu_product", (), FLOAT)
    product = u.op("Where", u.first(), u.emitter.const(1.0, FLOAT), state)
    now = share(0)
    product = u.renew(state, product * u.operations.cast(now, FLOAT))
    then = share(1)
    wide, rate = u.double(product), u.rate()
    own, ahead = (1 - now) / (1 - wide), then / (1 - wide * then)
    own, ahead = rate * u.cast(own), rate * u.cast(ahead)
    root = u.op("Sqrt", v / u.missing(beta2)) + eps
    return before - (g * own + m * ahead) / root


@kind()
def radam(
    u: UpdateBuilder,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decoupled_weight_decay: bool = False,
) -> Value:
    """Liu et al. 2020 (arXiv:1908.03265), algorithm 2: Adam once the second moment has seen enough
    gradients for its variance to be finite, and the first moment alone before.

    With ``decoupled_weight_decay`` the weight itself decays. ρ∞ is how many gradients the second
    moment averages in the end, ρₜ how many it averages now.
    """
    before, g = (u.shrunk(), u.gradient) if decoupled_weight_decay else (u.weight, u.decayed())
    m, v = _moments(u, g, beta1, beta2)
    size = u.rate() / u.missing(beta1)
    longest = 2 / (1 - beta2) - 1
    if longest <= _ENOUGH:
        return before - m * size
    step = u.step()
    left = u.op("Pow", u.double(beta2), step)
    length = longest - step * left * 2 / (1 - left)
    enough = u.op("Greater", length, _ENOUGH)
    bounded = u.op("Max", length, _ENOUGH)
    whole = longest / ((longest - 4) * (longest - 2))
    squared = (bounded - 4) * (bounded - 2) * whole / bounded
    factor = u.op("Sqrt", squared * (1 - left))
    size = size * u.cast(u.op("Where", enough, factor, 1.0))
    root = u.op("Where", enough, u.op("Sqrt", v) + eps, 1.0)
    return before - m / root * size


def _moments(u: UpdateBuilder, g: Value, beta1: float, beta2: float) -> tuple[Value, Value]:
    """As :func:`adam_moments`, in the order in which nodes of NAdam and RAdam are written."""
    m, v = u.state("exp_avg"), u.state("exp_avg_sq")
    return u.average(m, g, beta1), u.average(v, g * g, beta2)


@kind(lr=2e-3)
def adamax(u: UpdateBuilder, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Value:
    """Kingma and Ba 2015 (arXiv:1412.6980), algorithm 2: over the largest gradient that has not
    faded, max(β₂·u, \\|g\\| + eps)."""
    g, m, largest = u.decayed(), u.state("exp_avg"), u.state("exp_inf")
    m = u.average(m, g, beta1)
    now = u.op("Abs", g) + eps
    largest = u.renew(largest, u.op("Max", largest * beta2, now))
    size = u.rate() / u.missing(beta1)
    return u.weight - m / largest * size


@kind(lr=1.0)
def adadelta(u: UpdateBuilder, rho: float = 0.9, eps: float = 1e-6) -> Value:
    """Zeiler 2012 (arXiv:1212.5701): g·√(acc_delta + eps) / √(square_avg + eps), so that steps have
    the size of those before them."""
    g, v, steps = u.decayed(), u.state("square_avg"), u.state("acc_delta")
    v = u.average(v, g * g, rho)
    before = u.op("Sqrt", steps + eps)
    change = before / u.op("Sqrt", v + eps) * g
    u.average(steps, change * change, rho)
    return u.weight - change * u.rate()


@kind(
    weight_decay=0.1,
    otherwise=adamw,
    words={"adjust_lr_fn": ("original", "match_rms_adamw")},
)
def muon(
    u: UpdateBuilder,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_a: float = 3.4445,
    ns_b: float = 4.775,
    ns_c: float = 2.0315,
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr_fn: str = "original",
) -> Value:
    """Jordan 2024 (https://kellerjordan.github.io/posts/muon), as ``torch.optim.Muon``: the
    momentum of a matrix, made orthogonal.

    ``ns_steps`` iterations of Newton and Schulz, X ← ns_a·X + (ns_c·(XXᵀ)² - ns_b·XXᵀ)·X, bring all
    singular values of the momentum near 1. The product is taken over the longer side; XXᵀ is
    symmetric, so nothing is transposed. PyTorch computes them in bfloat16, for which ONNX
    Runtime's CPU provider has no products: they are float32's here, and rounded as PyTorch's are.
    (Without that, directions with small singular values, which most gradients have, come out
    otherwise: the iteration multiplies rounding errors in them by up to ns_a^ns_steps.)
    ``adjust_lr_fn`` says how steps depend on the shape: ``original`` √max(1, rows/columns),
    ``match_rms_adamw`` (arXiv:2502.16982) 0.2·√max(rows, columns). The weight itself decays.
    What is not a matrix is updated by AdamW, with the same learning rate and weight decay.
    """
    g, product = u.gradient, u.operations.gemm
    rows, columns = u.weight.type.sizes or ()

    def rounded(value: Value) -> Value:
        return u.op("Cast", u.op("Cast", value, to=BFLOAT16), to=FLOAT)

    speed = u.average(u.state("momentum"), g, momentum)
    x = rounded(g * (1 - momentum) + speed * momentum if nesterov else speed)
    norm = u.op("Sqrt", u.op("ReduceSumSquare", x, keepdims=0))
    x = rounded(x / rounded(u.op("Max", norm, eps)))
    for _ in range(ns_steps):
        tall = rows > columns
        gram = rounded(product(x, x, trans_a=1) if tall else product(x, x, trans_b=1))
        inner = rounded(u.op("Gemm", gram, gram, gram, alpha=ns_c, beta=-ns_b))
        x = rounded(u.op("Gemm", *((x, inner) if tall else (inner, x)), x, beta=ns_a))
    factor = math.sqrt(max(1, rows / columns))
    if adjust_lr_fn == "match_rms_adamw":
        factor = 0.2 * math.sqrt(max(rows, columns))
    size = u.rate() * factor
    return u.shrunk() - u.cast(x) * size


@kind(lr=1e-2)
def asgd(u: UpdateBuilder, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6) -> Value:
    """Polyak and Juditsky 1992 (SIAM J. Control Optim. 30), as ``torch.optim.ASGD``.

    Gradient descent whose rate ``eta`` falls as lr / (1 + lambd·lr·t)^alpha; that of a step was set
    by the one before it, and the first is lr. ``ax`` is the parameter itself, and from step ``t0``
    on the average of all it has been since.
    """
    g, average, eta = u.decayed(), u.state("ax"), u.state("eta", (), FLOAT)
    rate = u.double(u.rate())
    now = u.op("Where", u.first(), u.operations.cast(rate, FLOAT), eta)
    kept = u.cast(1 - u.double(now) * lambd)
    new = u.renewed(u.weight, u.weight * kept - g * u.cast(now))
    fallen = u.op("Pow", rate * u.step() * lambd + 1, alpha)
    u.renew(eta, u.own_cast(rate / fallen, FLOAT))  # equal for all, but written over each
    share = 1 / u.op("Max", u.step() - (1 + t0), 1.0)
    whole = u.op("Equal", share, 1.0)
    moved = average + (new - average) * u.cast(share)
    u.renew(average, u.op("Where", whole, new, moved))
    return new


@kind(lr=1e-2)
def rprop(
    u: UpdateBuilder,
    etaminus: float = 0.5,
    etaplus: float = 1.2,
    step_min: float = 1e-6,
    step_max: float = 50.0,
) -> Value:
    """Riedmiller and Braun 1993 (ICNN), as ``torch.optim.Rprop``: only signs of gradients count.

    Every element has a step size of its own, lr at first, times ``etaplus`` where the gradient
    keeps its sign and ``etaminus`` where it turns; there the element waits for a step.
    """
    g, before, state = u.decayed(), u.state("prev"), u.state("step_size")
    same = g * before
    turned = u.op("Less", same, 0.0)
    less, one = (u.emitter.const(n, u.weight.dtype) for n in (etaminus, 1.0))
    factor = u.op("Where", turned, less, one)
    factor = u.op("Where", u.op("Greater", same, 0.0), etaplus, factor)
    size = u.op("Where", u.first(), u.rate(), state) * factor
    size = u.renew(state, u.op("Clip", size, step_min, step_max))
    used = u.renew(before, u.op("Where", turned, 0.0, g))
    return u.weight - u.op("Sign", used) * size


def parse_optimizer(text: str) -> Optimizer | None:
    """The optimizer that ``adamw{weight_decay=0.1}`` names; None for ``none``.

    Raises:
        UsageError: there is no such optimizer or option, or a value is not a number.
    """
    spec = split_spec(text)
    if spec is not None and spec.name == "none" and not spec.options:
        return None
    if spec is None or spec.name not in KINDS:
        near = did_you_mean(spec.name, KINDS) if spec is not None else ""
        raise UsageError(
            f"unknown --optimizer {text}",
            f"{near}optimizers: none, {', '.join(KINDS)}; options as in adamw{{weight_decay=0.1}}",
        )
    kind: type[Optimizer] = KINDS[spec.name]
    return build(kind, spec, "optimizer", "--optimizer: ")
