"""What is read of a torch.optim instance."""

from typing import Any

import pytest

from memplan.autodiff.optimizers.formulas import KINDS
from memplan.errors import UsageError

torch: Any = pytest.importorskip("torch")
from memplan.pytorch import torch_optimizer as under_test  # noqa: E402
from memplan.pytorch.torch_optimizer import read_optimizer  # noqa: E402


def parameters() -> tuple[Any, Any, dict[int, str]]:
    first, second = (torch.nn.Parameter(torch.randn(3, 2)) for _ in range(2))
    return first, second, {id(first): "a", id(second): "b"}


def stepped(optimizer: Any, *given: Any, steps: int = 1) -> Any:
    for _ in range(steps):
        for parameter in given:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return optimizer


class Lion(torch.optim.Optimizer):  # type: ignore[misc]
    """The options of lion_pytorch's, and some of timm's."""

    def __init__(self, given: Any, decoupled_wd: bool = False, **options: Any) -> None:
        self.decoupled_wd = decoupled_wd
        defaults = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0, "caution": False}
        super().__init__(given, {**defaults, "maximize": False, "foreach": None, **options})


def test_groups_have_factors_of_the_first_rate() -> None:
    first, second, names = parameters()
    groups = [{"params": [first], "lr": 0.2}, {"params": [second], "lr": 0.05, "weight_decay": 0.5}]
    found = read_optimizer(torch.optim.AdamW(groups), names)
    assert (found.lr, found.groups["a"].factor, found.groups["b"].factor) == (0.2, 1.0, 0.25)
    assert dict(found.groups["b"].options)["weight_decay"] == 0.5
    assert {group.kind for group in found.groups.values()} == {"adamw"}


STATES = [
    ("Adam", {}, ["exp_avg", "exp_avg_sq"]),
    ("AdamW", {"amsgrad": True}, ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
    ("NAdam", {}, ["exp_avg", "exp_avg_sq", "mu_product"]),
    ("RMSprop", {"centered": True, "momentum": 0.5}, ["grad_avg", "momentum", "square_avg"]),
    ("Rprop", {}, ["prev", "step_size"]),
    ("Adadelta", {}, ["acc_delta", "square_avg"]),
    ("ASGD", {}, ["ax", "eta", "mu"]),
]


@pytest.mark.parametrize(("kind", "options", "states"), STATES, ids=[k for k, *_ in STATES])
def test_state_and_step_of_an_optimizer_that_is_under_way(
    kind: str, options: dict[str, Any], states: list[str]
) -> None:
    first, _, names = parameters()
    optimizer = stepped(getattr(torch.optim, kind)([first], **options), first, steps=3)
    found = read_optimizer(optimizer, names)
    assert found.step == 4
    assert sorted(found.state) == [f"a.{state}" for state in states]


def test_a_momentum_that_is_dampened_has_taken_its_first_step() -> None:
    """SGD does not count; but only the first step is not dampened."""
    first, second, names = parameters()
    make = torch.optim.SGD([first, second], momentum=0.9, dampening=0.5)
    found = read_optimizer(stepped(make, first), names)
    assert (found.step, found.fresh) == (2, frozenset("b"))
    plain = torch.optim.SGD([first, second], momentum=0.9)
    first.grad = None
    found = read_optimizer(stepped(plain, second), names)
    assert (found.step, found.fresh) == (1, frozenset())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: torch.optim.LBFGS([p]), "LBFGS cannot be captured: it evaluates the loss"),
        (lambda p: torch.optim.SparseAdam([p]), "SparseAdam cannot be captured: it updates the"),
        (lambda p: type("AdamW", (torch.optim.AdamW,), {})([p]), "AdamW cannot be captured"),
        (lambda p: Lion([p], caution=True), "Lion with caution=True"),
        (lambda p: Lion([p], decoupled_wd=True), "Lion with decoupled_wd=True"),
        (lambda p: Lion([p], betas=0.9), "betas of Lion is float, not a number"),
        (lambda p: torch.optim.SGD([torch.nn.Parameter(p.detach())]), "not a parameter of the"),
        (lambda p: 0.1, "the object float cannot be captured"),
        (lambda p: [], "list of optimizers is empty"),
        (lambda p: [torch.optim.SGD([p]), torch.optim.Adam([p])], "'a' is updated by two of the"),
    ],
)
def test_what_cannot_be_captured_is_named(make: Any, said: str) -> None:
    first, _, names = parameters()
    with pytest.raises(UsageError, match=said):
        read_optimizer(make(first), names)


def test_an_option_that_a_later_torch_adds_is_refused_where_it_is_on() -> None:
    first, _, names = parameters()
    optimizer = torch.optim.Adam([first])
    optimizer.defaults["warp"] = optimizer.param_groups[0]["warp"] = False
    read_optimizer(optimizer, names)
    optimizer.param_groups[0]["warp"] = True
    with pytest.raises(UsageError, match="Adam with warp=True"):
        read_optimizer(optimizer, names)


KINDS_READ: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("SGD", {}, "sgd", {"maximize": 0}),
    ("SGD", {"momentum": 0.9, "nesterov": True}, "momentum", {"momentum": 0.9, "nesterov": 1}),
    ("Adam", {"maximize": True, "amsgrad": True}, "adam", {"maximize": 1, "amsgrad": 1}),
    ("Adam", {"decoupled_weight_decay": True}, "adamw", {"beta1": 0.9, "beta2": 0.999}),
    ("RMSprop", {"centered": True}, "rmsprop", {"centered": 1, "alpha": 0.99}),
    ("Adagrad", {"initial_accumulator_value": 0.5}, "adagrad", {"lr_decay": 0.0}),
    ("Adafactor", {}, "adafactor", {"decay_rate": 0.8, "eps2": 1e-3, "d": 1.0}),
    ("NAdam", {"momentum_decay": 0.5}, "nadam", {"momentum_decay": 0.5}),
    ("RAdam", {"decoupled_weight_decay": True}, "radam", {"decoupled_weight_decay": 1}),
    ("Adamax", {"betas": (0.5, 0.75)}, "adamax", {"beta1": 0.5, "beta2": 0.75}),
    ("Adadelta", {}, "adadelta", {"rho": 0.9, "eps": 1e-6}),
    ("ASGD", {"t0": 5}, "asgd", {"t0": 5, "lambd": 1e-4, "alpha": 0.75}),
    ("Rprop", {}, "rprop", {"etaminus": 0.5, "etaplus": 1.2, "step_min": 1e-6, "step_max": 50}),
    ("Muon", {}, "muon", {"ns_b": 4.775, "ns_steps": 5, "nesterov": 1, "eps": 1e-7}),
    ("Muon", {"adjust_lr_fn": "match_rms_adamw"}, "muon", {"adjust_lr_fn": "match_rms_adamw"}),
    ("Lion", {"betas": (0.5, 0.75)}, "lion", {"beta1": 0.5, "beta2": 0.75}),
]


@pytest.mark.parametrize(("made", "given", "kind", "wanted"), KINDS_READ)
def test_kinds(made: str, given: dict[str, Any], kind: str, wanted: dict[str, Any]) -> None:
    first, _, names = parameters()
    group = read_optimizer(getattr(torch.optim, made, Lion)([first], **given), names).groups["a"]
    options = dict(group.options)
    assert group.kind == kind
    assert {name: options[name] for name in wanted} == wanted
    KINDS[kind](**options)


def test_every_row_is_a_kind_and_every_class_of_torch_is_read_or_refused() -> None:
    rows = under_test._ROWS
    assert {row.kind for row in rows.values()} | {"momentum"} == set(KINDS)
    torchs = {
        name
        for name, each in vars(torch.optim).items()
        if isinstance(each, type) and issubclass(each, torch.optim.Optimizer)
    }
    assert torchs - {"Optimizer"} <= {*rows, *under_test._WHY}


def test_how_torch_computes_an_update_changes_nothing() -> None:
    first, second, names = parameters()
    plain = read_optimizer(torch.optim.Adam([first, second], lr=0.5), names)
    for flag in ("foreach", "fused", "differentiable", "capturable"):
        given: Any = torch.optim.Adam([first, second], lr=0.5, **{flag: True})
        assert read_optimizer(given, names) == plain
    tensor = torch.optim.Adam([first, second], lr=torch.tensor(0.5))
    assert read_optimizer(tensor, names) == plain


def test_several_optimizers_are_one_with_all_their_groups() -> None:
    first, second, names = parameters()
    muon = stepped(torch.optim.Muon([first], lr=0.5), first)
    adam = stepped(torch.optim.AdamW([second], lr=0.25), second, steps=2)
    found = read_optimizer([muon, adam], names)
    assert (found.name, found.lr, found.step) == ("Muon + AdamW", 0.5, 3)
    assert [found.groups[name].kind for name in "ab"] == ["muon", "adamw"]
    assert found.groups["b"].factor == 0.5
    assert sorted(found.state) == ["a.momentum", "b.exp_avg", "b.exp_avg_sq"]
    begun = read_optimizer((stepped(muon, first), torch.optim.AdamW([second])), names)
    assert (begun.step, begun.fresh) == (1, frozenset("b"))
