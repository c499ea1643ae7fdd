"""Training code whose later steps are not as its first: right over six steps, or refused by name.

A row each. What is captured is held against a loop of PyTorch that is the test's own, on six
batches, from a model that is made anew.
"""

import collections
import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import memplan
from helpers.torch_steps import trained
from helpers.with_torch import F, nn, torch

checkpoint = torch.utils.checkpoint.checkpoint
RATE = 0.1
Make = Callable[[], tuple[Any, Any]]
REFUSED: dict[str, tuple[Make, str]] = {}
"""What makes a model and a loss; what the refusal must name."""
SAID: dict[str, tuple[Make, str]] = {}
"""The same where the change does not matter: what the report must name, if anything."""


class Net(nn.Module):
    """Two layers, of which ``step`` makes a loss; ``begin`` is what it keeps."""

    def __init__(self, step: Callable[..., Any], **kept: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.step = step
        for name, value in kept.items():
            setattr(self, name, value)

    def forward(self, x: Any) -> Any:
        return self.step(self, x)


def loss_of(model: Any, x: Any) -> Any:
    return model.b(model.a(x).tanh()).square().mean()


def refused(name: str, **kept: Callable[[], Any]) -> Any:
    """A row: a step of a model that keeps something; ``kept`` are functions that make it."""
    return _row(REFUSED, name, kept)


def said(name: str, **kept: Callable[[], Any]) -> Any:
    """A row that is captured."""
    return _row(SAID, name, kept)


def _row(rows: dict[str, Any], name: str, kept: Any) -> Any:
    def note(step: Any) -> Any:
        def make() -> tuple[Any, Any]:
            torch.manual_seed(0)
            return Net(step, **{key: made() for key, made in kept.items()}), None

        rows[step.__name__] = (make, name)
        return step

    return note


def made(rows: dict[str, Any], name: str) -> Any:
    """A row whose model and loss a function makes."""

    def note(make: Make) -> Make:
        def seeded() -> tuple[Any, Any]:
            torch.manual_seed(0)
            return make()

        rows[make.__name__] = (seeded, name)
        return make

    return note


@dataclass
class Config:
    scale: float = 1.0
    seen: list[int] = field(default_factory=list)


class Box:
    def __init__(self) -> None:
        self.n = 0


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


# --- What a walk over the model finds -------------------------------------------------------------


def _warming() -> Iterator[float]:
    yield from (k / 10 for k in range(1, 1_000))


# What a model keeps, how a step changes it and reads it, and what must be named.
KEPT: list[tuple[Callable[[], Any], str, str, str]] = [
    (lambda: 0, "m.kept += 1", "m.kept", "'model.kept'"),
    (lambda: 1.0, "m.kept *= 0.9", "m.kept", "'model.kept'"),
    (list, "m.kept.append(1)", "len(m.kept)", "'model.kept'"),
    (lambda: {"steps": 0}, "m.kept['steps'] += 1", "m.kept['steps']", "model.kept['steps']"),
    (collections.Counter, "m.kept['x'] += 1", "m.kept['x']", "'model.kept'"),
    (lambda: collections.deque([1.0], 3), "m.kept.append(2.0)", "sum(m.kept)", "'model.kept'"),
    (set, "m.kept.add(len(m.kept))", "len(m.kept)", "'model.kept'"),
    (Box, "m.kept.n += 1", "m.kept.n", "'model.kept.n'"),
    (Slotted, "m.kept.n += 1", "m.kept.n", "'model.kept.n'"),
    (Config, "m.kept.scale /= 2", "m.kept.scale", "'model.kept.scale'"),
    (lambda: np.ones(1, np.float32), "m.kept += 1", "float(m.kept[0])", "'model.kept'"),
    (lambda: torch.zeros(4), "m.kept = m.kept + x.mean(0)", "m.kept.sum()", "'model.kept'"),
    (lambda: [torch.zeros(4)], "m.kept[0].copy_(x[0])", "m.kept[0].sum()", "'model.kept[0]'"),
    (lambda: None, "m.kept = m.a(x).mean(0)", "1", "'model.kept'"),
    (nn.Tanh, "m.kept = nn.ReLU()", "1", "model.kept"),
    (lambda: None, "m.norm.eval()", "m.norm(x).sum()", "'model.norm.training'"),
    (lambda: None, "m.norm.eps *= 100", "m.norm(x).sum()", "'model.norm.eps'"),
    (lambda: itertools.count(1), "", "next(m.kept)", "'model.kept'"),
    (lambda: iter([1.0, 1.0, 2.0, 2.0]), "", "next(m.kept)", "'model.kept'"),
    (_warming, "", "next(m.kept)", "model.kept"),
    (lambda: random.Random(0), "", "m.kept.random()", "'model.kept'"),
    (lambda: np.random.default_rng(0), "", "m.kept.random()", "'model.kept'"),
]


def stepping(change: str, factor: str) -> Any:
    """A step that changes what is kept, and whose loss has a factor that reads it."""
    scope: dict[str, Any] = {}
    lines = (change or "pass", f"return loss_of(m, x) * {factor}")
    exec("\n    ".join(("def step(m, x):", *lines)), globals(), scope)
    return scope["step"]


def changed(make: Make) -> str:
    """What three steps have changed, as a refusal names it."""
    from memplan.api.capture.reference import quoted
    from memplan.pytorch.hidden_state import HiddenState
    from memplan.pytorch.prepared_step import prepare

    step = step_of(make, batches()[0])
    before = HiddenState(prepare(step))
    for x in batches()[:3]:
        _loss_of_step(step, x).backward()
    return quoted(before.changed(before.again()))


@pytest.mark.parametrize(("kept", "change", "factor", "path"), KEPT)
def test_what_a_step_changes_is_found_by_name(
    kept: Callable[[], Any], change: str, factor: str, path: str
) -> None:
    assert path in changed(lambda: (Net(stepping(change, factor), kept=kept()), None))


# --- Attributes -----------------------------------------------------------------------------------


# --- When a step is another -----------------------------------------------------------------------


@refused("'model.calls'", calls=lambda: 0)
def every_third_step(m: Any, x: Any) -> Any:
    m.calls += 1
    return loss_of(m, x) if m.calls % 3 else m.a(x).abs().mean()


@refused("'model.calls'", calls=lambda: 0)
def unfrozen_late(m: Any, x: Any) -> Any:
    m.calls += 1
    m.b.requires_grad_(m.calls > 5_000)
    return loss_of(m, x)


@refused("'model.b.weight'", calls=lambda: 0)
def frozen_behind_the_third_step(m: Any, x: Any) -> Any:
    m.calls += 1
    if m.calls == 3:
        m.b.requires_grad_(False)
    return loss_of(m, x)


@refused("hook 'counting' of model.a")
def a_hook_that_is_added(m: Any, x: Any) -> Any:
    def counting(_module: Any, _given: Any, found: Any) -> Any:
        return found * 2

    loss = loss_of(m, x)
    m.a.register_forward_hook(counting)
    return loss


# --- Beside the model -----------------------------------------------------------------------------


STEPS = 0
TABLE = {"steps": 0}


@refused("global 'STEPS' of test_later_steps.py")
def a_global(m: Any, x: Any) -> Any:
    global STEPS
    STEPS += 1
    return loss_of(m, x) * STEPS


def _another() -> int:
    TABLE["steps"] += 1
    return TABLE["steps"]


@refused("global 'TABLE['steps']' of test_later_steps.py")
def a_global_of_a_function(m: Any, x: Any) -> Any:
    return loss_of(m, x) * _another()


class Counted(Net):
    count = 0

    def forward(self, x: Any) -> Any:
        type(self).count += 1
        return loss_of(self, x) * type(self).count


@made(REFUSED, "class attribute Counted.count")
def a_class_attribute() -> Any:
    return Counted(loss_of), None


@made(REFUSED, "loss function's closure 'calls'")
def a_closure() -> Any:
    calls = 0

    def loss(model: Any, x: Any) -> Any:
        nonlocal calls
        calls += 1
        return loss_of(model, x) * calls

    return Net(loss_of), loss


@made(REFUSED, "loss function's default 'seen'")
def a_default() -> Any:
    def loss(model: Any, x: Any, seen: Any = []) -> Any:  # noqa: B006
        seen.append(1)
        return loss_of(model, x) * len(seen)

    return Net(loss_of), loss


@made(REFUSED, "attribute 'calls'")
def an_attribute_of_a_function() -> Any:
    def loss(model: Any, x: Any) -> Any:
        loss.calls += 1  # type: ignore[attr-defined]
        return loss_of(model, x) * loss.calls  # type: ignore[attr-defined]

    loss.calls = 0  # type: ignore[attr-defined]
    return Net(loss_of), loss


class Smoothed:
    def __init__(self) -> None:
        self.mean = torch.ones(())

    def __call__(self, model: Any, x: Any) -> Any:
        loss = loss_of(model, x)
        self.mean = 0.5 * self.mean + 0.5 * loss.detach()
        return loss / self.mean


@made(REFUSED, "'loss.mean'")
def a_loss_with_state() -> Any:
    return Net(loss_of), Smoothed()


@made(REFUSED, "'n'")
def a_partial() -> Any:
    def loss(state: Any, model: Any, x: Any) -> Any:
        state["n"] += 1
        return loss_of(model, x) * state["n"]

    return Net(loss_of), functools.partial(loss, {"n": 0})


@refused("model.outside[0].weight", outside=lambda: [nn.Linear(4, 4)])
def a_teacher_outside(m: Any, x: Any) -> Any:
    teacher = m.outside[0]
    with torch.no_grad():
        wanted = teacher(x)
        for own, new in zip(teacher.parameters(), m.a.parameters(), strict=True):
            own.data = 0.9 * own.data + 0.1 * new.data
    return F.mse_loss(m.a(x), wanted)


@made(REFUSED, "hook 'hook' of model.a's closure 'n'")
def a_hook_that_counts() -> Any:
    model, n = Net(loss_of), 0

    def hook(_module: Any, _given: Any, found: Any) -> Any:
        nonlocal n
        n += 1
        return found * n

    model.a.register_forward_hook(hook)
    return model, None


# --- What does not matter -------------------------------------------------------------------------


@said("'model.calls'", calls=lambda: 0)
def counted_to_be_logged(m: Any, x: Any) -> Any:
    m.calls += 1
    if m.calls % 100 == 0:
        m.calls += 0
    return loss_of(m, x)


@said("'model.last'", last=lambda: None)
def a_map_that_is_kept(m: Any, x: Any) -> Any:
    h = m.a(x)
    m.last = h.detach().softmax(1)
    return m.b(h).square().mean()


@said("'model.places'", places=lambda: None)
def a_table_that_is_made_once(m: Any, x: Any) -> Any:
    if m.places is None:
        m.places = torch.arange(4.0)
    return loss_of(m, x + m.places)


@said("model.extra", extra=lambda: None)
def a_parameter_made_late(m: Any, x: Any) -> Any:
    if m.extra is None:
        m.extra = nn.Parameter(torch.ones(4))
    return (m.a(x) * m.extra).square().mean()


@made(SAID, "")
def a_buffer_that_counts() -> Any:
    def step(model: Any, x: Any) -> Any:
        model.calls += 1
        return loss_of(model, x) * model.calls

    model = Net(step)
    model.register_buffer("calls", torch.zeros(()))
    return model, None


def batches() -> list[Any]:
    torch.manual_seed(7)
    return [torch.randn(6, 4) for _ in range(6)]


def step_of(make: Make, x: Any) -> memplan.TorchStep:
    model, loss = make()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    return memplan.TorchStep(model, loss, {"x": x}, optimizer)


def _loss_of_step(step: memplan.TorchStep, x: Any) -> Any:
    return step.model(x) if step.loss is None else step.loss(step.model, x)


def losses_of(make: Make) -> list[float]:
    """Those of PyTorch."""
    step, found = step_of(make, None), []
    for x in batches():
        step.optimizer.zero_grad()
        loss = _loss_of_step(step, x)
        loss.backward()
        step.optimizer.step()
        found.append(float(loss.detach()))
    return found


# Each is found by a walk; of those that a walk finds alike, one is captured.
ALIKE = {
    "a_global_of_a_function",
    "a_class_attribute",
    "a_closure",
    "a_default",
    "an_attribute_of_a_function",
    "a_partial",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_is_another_later_is_refused_by_name(name: str) -> None:
    make, path = REFUSED[name]
    assert path in changed(make)
    if name in ALIKE:
        return
    with pytest.raises(memplan.MemplanError) as caught:
        memplan.capture(step_of(make, batches()[0]))
    assert path in f"{caught.value.message} {caught.value.hint}"
    assert "register_buffer" in caught.value.hint


@pytest.mark.parametrize("name", SAID)
def test_what_does_not_matter_is_captured_and_said_by_name(name: str) -> None:
    make, path = SAID[name]
    capture = memplan.capture(step_of(make, batches()[0]))
    assert path in " ".join(capture.check.not_checked)
    assert bool(path) == bool(capture.check.not_checked)
    assert capture.check.steps == (6 if path else 2)
    found, _ = trained(capture, [(x,) for x in batches()])
    np.testing.assert_allclose(found, losses_of(make), rtol=1e-4)


# --- PyTorch's own step, and the model afterwards -------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_reentrant_checkpoint_trains_what_it_does_in_pytorch(reentrant: bool) -> None:
    def loss(model: Any, x: Any) -> Any:
        return model.b(checkpoint(model.a, x, use_reentrant=reentrant)).square().mean()

    model = Net(loss_of)
    x = batches()[0]
    trained_ones = set(memplan.capture(memplan.TorchStep(model, loss, {"x": x})).trained)
    loss(model, x).backward()
    held = dict(model.named_parameters())
    assert trained_ones == {name for name, p in held.items() if p.grad is not None}
    assert ("a.weight" in trained_ones) is not reentrant


def test_statistics_in_a_checkpoint_are_said_to_be_renewed_once() -> None:
    def loss(model: Any, x: Any) -> Any:
        inner = checkpoint(lambda x: model.norm(model.a(x)), x, use_reentrant=False)
        return model.b(F.dropout(inner, 0.3)).square().mean()

    check = memplan.capture(memplan.TorchStep(Net(loss_of), loss, {"x": batches()[0]})).check
    (said,) = check.not_checked
    assert "as 'norm.running_mean': PyTorch runs that again" in said


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_is_afterwards_as_it_was(fails: bool) -> None:
    class Changed(Net):
        def forward(self, x: Any) -> Any:
            self.norm.eval()
            self.box.n += 1
            self.log.append(self.box.n)
            self.extra = self.box.n
            self.b.weight.requires_grad_(False)
            self.mean = self.mean + x.mean(0)
            self.a.register_forward_hook(lambda *_: None)
            if not torch.compiler.is_exporting() and fails:
                raise ValueError
            return loss_of(self, self.norm(x))

    model = Changed(loss_of, box=Box(), log=[])
    model.register_buffer("mean", torch.zeros(4))
    before = dict(vars(model))
    with contextlib.suppress(memplan.MemplanError):
        memplan.capture(memplan.TorchStep(model, None, {"x": batches()[0]}))
    assert model.norm.training
    assert (model.box.n, model.log) == (0, [])
    assert vars(model) == before
    assert model.b.weight.requires_grad
    assert not model.mean.any()
    assert not model.a._forward_hooks


def test_what_changes_where_nobody_can_see_it_is_refused(tmp_path: Any) -> None:
    file = tmp_path / "calls"
    file.write_text("")

    def loss(model: Any, x: Any) -> Any:
        with file.open("a") as log:
            log.write("1")
        return loss_of(model, x) * file.stat().st_size

    with pytest.raises(memplan.MemplanError, match="another each time that the same step is run"):
        memplan.capture(memplan.TorchStep(Net(loss_of), loss, {"x": batches()[0]}))


def test_a_lazy_module_is_refused_by_name() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))
    with pytest.raises(memplan.MemplanError, match=r"'0\.weight' has no shape yet"):
        memplan.capture(memplan.TorchStep(model, F.mse_loss, batches()[:2]))
