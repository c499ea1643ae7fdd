"""A captured step is held against PyTorch: what is right passes, what is wrong does not."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import memplan
from helpers.with_torch import F, nn, torch
from memplan.api.capture.capture_check import CaptureDiffersError, Skip, Verdict
from memplan.errors import ModelError
from memplan.ops.float_types import NO_SESSION
from memplan.report.tell.capture import tell_capture


class Net(nn.Module):  # type: ignore[name-defined,misc]
    """A little of everything: a normalization, two kinds of randomness, an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 4)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.4)
        self.spare = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        y = self.drop(self.norm(self.first(x)).relu())
        return self.last(y + 0.1 * torch.randn_like(y))


def step(optimizer: Any = None, loss: Any = F.cross_entropy, **settings: Any) -> Any:
    torch.manual_seed(0)
    model = Net()
    batch = (torch.randn(12, 6), torch.randint(0, 4, (12,)))
    chosen = None if optimizer is None else optimizer(model.parameters())
    return memplan.TorchStep(model, loss, batch, chosen, **settings)


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1)


def test_a_right_step_is_equal_within_rounding() -> None:
    check = memplan.capture(step(adamw)).check
    assert check is not None
    assert check.verdict is Verdict.EQUAL
    assert (check.steps, check.draws, check.gradients) == (2, 2, 6)
    assert check.loss_error < 1e-6
    assert check.gradient_error < 1e-5
    assert check.update_error < 1e-5
    assert 0 < check.own_error < 1e-5
    assert check.not_checked == ()
    assert check.causes == ()
    assert check.eager_peak_bytes > 3 * 4 * (6 * 16 + 16 * 4)
    assert check.eager_seconds > 0
    assert check.captured_seconds > 0
    assert json.loads(json.dumps(check.as_json()))["verdict"] == "equal"


@pytest.mark.parametrize(
    ("optimizer", "treatment"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), {"clip_norm": 0.1}),
        (lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5), {}),
        (lambda p: torch.optim.Adafactor(p, lr=0.1), {"scaler": "dynamic"}),
    ],
)
def test_updates_are_those_of_the_optimizer(optimizer: Any, treatment: Any) -> None:
    check = memplan.capture(step(optimizer, **treatment)).check
    assert check is not None
    assert check.verdict is Verdict.EQUAL
    assert check.steps == (4 if "scaler" in treatment else 2)
    assert check.update_error < 1e-5


def test_a_user_s_optimizer_and_model_are_as_they_were() -> None:
    given = step(adamw)
    scheduler = torch.optim.lr_scheduler.StepLR(given.optimizer, 1)
    before = {n: t.clone() for n, t in given.model.state_dict().items()}
    memplan.capture(given)
    assert all(torch.equal(t, before[n]) for n, t in given.model.state_dict().items())
    assert not given.optimizer.state
    assert scheduler.last_epoch == 0


class Attentive(nn.Module):  # type: ignore[name-defined,misc]
    """Attention in one kernel, which may drop some of what it attends to."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout, self.qkv, self.last = dropout, nn.Linear(6, 18), nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        q, k, v = (each[:, None] for each in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return self.last(y.mean((1, 2)))


@pytest.mark.parametrize(("dropout", "draws"), [(0.0, 0), (0.3, 1)])
def test_attention_is_compared_with_dropout_and_without(dropout: float, draws: int) -> None:
    torch.manual_seed(0)
    batch = (torch.randn(3, 5, 6), torch.randint(0, 4, (3,)))
    given = memplan.TorchStep(Attentive(dropout), F.cross_entropy, batch)
    check = memplan.capture(given).check
    assert check is not None
    assert (check.verdict, check.draws) == (Verdict.EQUAL, draws)


# --- What is wrong ------------------------------------------------------------------------------


def planted(monkeypatch: pytest.MonkeyPatch, edit: Any) -> None:
    """Let the training graph be edited behind capture's back."""
    from memplan.api.capture import step_gradients

    real = step_gradients.differentiated

    def wrong(*args: Any, **options: Any) -> Any:
        trained = real(*args, **options)
        edit(trained.model)
        return trained

    monkeypatch.setattr(step_gradients, "differentiated", wrong)


def scaled(model: Any, output: str, factor: float) -> None:
    """Multiply a tensor of a graph, wherever it is made."""
    from onnx import helper, numpy_helper

    graph = model.graph
    places = [k for k, node in enumerate(graph.node) if output in node.output]
    node = graph.node[places[0]]
    node.output[list(node.output).index(output)] = f"{output}/right"
    graph.initializer.append(numpy_helper.from_array(np.float32(factor), f"{output}/factor"))
    made = helper.make_node("Mul", [f"{output}/right", f"{output}/factor"], [output], "planted")
    nodes = [type(n).FromString(n.SerializeToString()) for n in graph.node]
    nodes.insert(places[0] + 1, made)
    del graph.node[:]
    graph.node.extend(nodes)


class Edge(nn.Module):  # type: ignore[name-defined,misc]
    """A unit beside a kink, nearer than float32 rounds a sum of such terms."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.b = nn.Parameter(torch.tensor([2.0**-24 - 1, 0.5, -0.5]))

    def forward(self, x: Any) -> Any:
        return (3 * (self.w * x + self.b).relu()).sum()


def across(model: Any) -> None:
    """Let that unit fall to the other side, as a sum in another order would."""
    graph = model.graph
    relu = next(node for node in graph.node if node.op_type == "Relu")
    scaled(model, relu.input[0], 2.0**-23)
    added = next(node for node in graph.node if node.name == "planted")
    added.op_type = "Sub"


def test_a_unit_beside_a_kink_is_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    given = memplan.TorchStep(Edge(), None, {"x": torch.ones(3)})
    assert memplan.capture(given).check.granted == 0
    planted(monkeypatch, across)
    check = memplan.capture(given).check
    assert check is not None
    assert (check.verdict, check.granted) == (Verdict.EQUAL, 2)
    assert "2 tensors off by more than usual rounding, most" in check.not_checked[0]


def test_a_wrong_rule_is_none_that_changes_with_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However much the gradient itself does: it is off by the same."""
    from memplan.api.capture import doubts

    monkeypatch.setattr(doubts, "SHAKEN", 2.0**17)
    planted(monkeypatch, lambda model: scaled(model, "first.weight_grad", 1.003))
    with pytest.raises(CaptureDiffersError, match=r"first\.weight"):
        memplan.capture(step())


class Tied(nn.Module):  # type: ignore[name-defined,misc]
    """A function of products that are equal to one another."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.w, self.function = nn.Parameter(torch.ones(6)), function

    def forward(self, x: Any) -> Any:
        return self.function(x * self.w)


def tied(function: Any) -> Any:
    draws = torch.Generator().manual_seed(5)
    return memplan.TorchStep(
        Tied(function), None, {"x": torch.randint(-2, 3, (4, 6), generator=draws).float()}
    )


def pooled(y: Any) -> Any:
    weights = torch.tensor([1.0, -2.0])
    return (F.adaptive_max_pool2d(y.view(-1, 1, 2, 3), (1, 2)) * weights).sum()


def test_another_rule_at_a_tie_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from memplan.pytorch import pool_forms

    assert memplan.capture(tied(pooled)).check.verdict is Verdict.EQUAL
    # The even share of each of equals, which the maximum of a tensor has.
    monkeypatch.setattr(pool_forms, "backward_through", lambda value, _: value)
    with pytest.raises(CaptureDiffersError, match="1 gradient off") as caught:
        memplan.capture(tied(pooled))
    assert "at a kink, where the graph has another rule than PyTorch" in caught.value.hint


def test_what_pytorch_does_not_specify_is_said() -> None:
    weights = torch.tensor([1.0, -2.0, 0.5])
    check = memplan.capture(tied(lambda y: (y.topk(3, 1).values * weights).sum())).check
    assert check.verdict is Verdict.EQUAL
    assert "which of equal elements topk takes: PyTorch does not specify it" in check.not_checked[0]


class Roots(nn.Module):  # type: ignore[name-defined,misc]
    """One entry of a gradient is not a number in float32, and is in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.last = nn.Parameter(torch.ones(8)), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        root = (self.w[:1] * 1e-30).pow(2).sqrt().sum()
        return self.last(torch.tanh(x * self.w)).pow(2).mean() + root


class Counting(nn.Module):  # type: ignore[name-defined,misc]
    """Buffers of whole numbers and truth values, of which one decides what is added."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("odd", torch.tensor(True))

    def forward(self, x: Any) -> Any:
        y = (x * self.w).pow(2).mean() * torch.where(self.odd, 1.0, 2.0)
        self.count += 1
        self.odd.logical_not_()
        return y


def replaced(model: Any, output: str, op: str, *more: Any) -> None:
    """Put another operator in the place of the one that makes an output."""
    from onnx import numpy_helper

    scaled(model, output, 1.0)
    node = next(node for node in model.graph.node if node.name == "planted")
    node.op_type = op
    del node.input[1:]
    model.graph.initializer.pop()
    for k, value in enumerate(more):
        model.graph.initializer.append(numpy_helper.from_array(value, f"{output}/{k}"))
        node.input.append(f"{output}/{k}")


# --- Differences that remain ----------------------------------------------------------------------


@pytest.mark.parametrize("fails_from", [2, 3], ids=["shaken weights", "no optimizations"])
def test_a_difference_survives_the_failure_of_its_explanation(
    fails_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memplan.api.capture.trial import Trial

    real, runs = Trial.run, [0]

    def failing(self: Any, values: Any, draws: Any, optimized: bool = True) -> Any:
        runs[0] += 1
        if runs[0] >= fails_from or not optimized:
            raise MemoryError("bad allocation")
        return real(self, values, draws, optimized)

    planted(monkeypatch, lambda model: scaled(model, "loss", 1.01))
    monkeypatch.setattr(Trial, "run", failing)
    with pytest.raises(CaptureDiffersError, match=r"the loss is off by 0\.01") as caught:
        memplan.capture(step())
    assert caught.value.check.causes == ()


def failing_runs(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    from memplan.runtime import sessions

    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(sessions, "run_step", fails)


def test_a_graph_that_cannot_run_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing_runs(
        monkeypatch,
        RuntimeError(
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while "
            "running Add node. Name:'x' Status Message: 6 by 7 cannot be broadcast"
        ),
    )
    with pytest.raises(CaptureDiffersError, match=r"6 by 7") as caught:
        memplan.capture(step(), tmp_path / "step.onnx")
    assert caught.value.exit_code == 1
    assert [each.kind for each in caught.value.check.differences] == ["run"]
    assert not list(tmp_path.iterdir())


class Followed(nn.Module):  # type: ignore[name-defined,misc]
    """A frozen weight that the step writes, and reads in the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3)
        self.teacher.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        loss = (self.student(x) - self.teacher(x)).square().mean()
        with torch.no_grad():
            self.teacher.weight.mul_(0.9).add_(self.student.weight, alpha=0.1)
        return loss


# --- A loss that is scaled ------------------------------------------------------------------------


class Two(nn.Module):  # type: ignore[name-defined,misc]
    """Parameters of two optimizers, of which one has much larger gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        return (self.p * x).sum() + (self.q * x).pow(2).sum() * 1e10


def optimizers(model: Any) -> list[Any]:
    return [torch.optim.Adam([model.p], 0.1), torch.optim.Adam([model.q], 0.1)]


def grad_scaler(**settings: Any) -> Any:
    return torch.amp.GradScaler("cpu", 2.0**100, backoff_factor=2.0**-4, **settings)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_each_optimizer_skips_for_its_own_gradients(clip: float | None, tmp_path: Path) -> None:
    """With a counter of its own: Adam's correction depends on how many steps it has taken."""
    torch.manual_seed(0)
    model, x = Two(), torch.full((2, 3), 0.25)
    given = memplan.TorchStep(
        model, None, {"x": x}, optimizers(model), scaler=grad_scaler(), clip_norm=clip
    )
    capture = memplan.capture(given, tmp_path / "step.onnx")
    assert (capture.check.verdict, capture.check.steps) == (Verdict.EQUAL, 5)
    trainer = memplan.Trainer(tmp_path / "step.onnx")
    several, scaler = optimizers(model), grad_scaler(growth_interval=2000)
    for number in range(5):
        for each in several:
            each.zero_grad()
        scaler.scale(model(x)).backward()
        for each in several:
            scaler.unscale_(each)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        for each in several:
            scaler.step(each)
        scaler.update()
        trainer.step({"x": x.numpy()})
        state = trainer.state_dict()
        assert trainer.skipped == (number < 2)
        assert state["loss_scale"] == scaler.get_scale()
        for name, parameter in model.named_parameters():
            assert torch.allclose(torch.from_numpy(state[name]), parameter, rtol=1e-5), name
    assert (state["step"], state["step.1"]) == (6, 4)


def one_skips_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.api.capture import step_gradients

    real = step_gradients.Member
    monkeypatch.setattr(step_gradients, "Member", lambda *given, owner: real(*given))


def nothing_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.autodiff.optimizers.optimizer import UpdateBuilder

    monkeypatch.setattr(UpdateBuilder, "renewed", lambda self, old, new: new)


def no_counter_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.autodiff.optimizers.optimizer import UpdateBuilder

    real = UpdateBuilder.renewed

    def wrong(self: Any, old: Any, new: Any) -> Any:
        return new if old.name.startswith("step") else real(self, old, new)

    monkeypatch.setattr(UpdateBuilder, "renewed", wrong)


def gradients_begin_at_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.autodiff.backward import GradientSink
    from memplan.autodiff.optimizers.updates import Updates

    monkeypatch.setattr(Updates, "seed", GradientSink.seed)


SCALED_WRONGLY = {
    "p": one_skips_all,
    "parameter": nothing_skips,
    "'step": no_counter_is_skipped,
    "gradient": gradients_begin_at_one,
}


def scaled_loss() -> Any:
    model, x = Two(), torch.full((2, 3), 0.25)
    return memplan.TorchStep(model, None, {"x": x}, optimizers(model), scaler=grad_scaler())


@pytest.mark.parametrize("wrong", SCALED_WRONGLY)
def test_what_a_scale_does_is_compared(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SCALED_WRONGLY[wrong](monkeypatch)
    with pytest.raises(CaptureDiffersError, match=wrong):
        memplan.capture(scaled_loss())


@pytest.mark.parametrize("scale", ["dynamic", 1024.0])
def test_a_step_that_overflows_is_compared_for_every_kind_of_scale(scale: Any) -> None:
    check = memplan.capture(step(adamw, scaler=scale, clip_norm=0.1)).check
    assert (check.verdict, check.steps) == (Verdict.EQUAL, 4)


def test_lost_randomness_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen(model: Any) -> None:
        node = next(n for n in model.graph.node if n.op_type == "RandomNormalLike")
        node.op_type = "Identity"
        del node.attribute[:]

    planted(monkeypatch, frozen)
    with pytest.raises(CaptureDiffersError, match=r"random numbers 2 times .* the graph 1 time"):
        memplan.capture(step())


def test_random_numbers_from_outside_of_pytorch_are_a_finding() -> None:
    import random

    def loss(model: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x), y) * (1.0 + random.random())

    with pytest.raises(CaptureDiffersError, match="Python's or NumPy's"):
        memplan.capture(step(loss=loss))


class Pair(nn.Module):  # type: ignore[name-defined,misc]
    """A student, and a teacher that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(5, 3), nn.Linear(5, 3).requires_grad_(False)


def distilled(model: Any, x: Any) -> Any:
    found, wanted = model.student(x), model.teacher(x)
    return (found - wanted).pow(2).mean(), {"agree": (found > 0).eq(wanted > 0).float().mean()}


def pair(ema: Any) -> Any:
    torch.manual_seed(0)
    model = Pair()
    optimizer = torch.optim.SGD(model.student.parameters(), 0.5)
    return memplan.TorchStep(model, distilled, {"x": torch.randn(9, 5)}, optimizer, ema=ema)


def followed() -> Any:
    torch.manual_seed(0)
    return memplan.TorchStep(Followed(), None, {"x": torch.randn(5, 4)})


def roots() -> Any:
    torch.manual_seed(0)
    return memplan.TorchStep(Roots(), None, {"x": torch.randn(4, 8)})


def counting(optimizer: bool) -> Any:
    model = Counting()
    chosen = torch.optim.SGD(model.parameters(), 0.1) if optimizer else None
    return memplan.TorchStep(model, None, {"x": torch.arange(4.0)}, chosen)


STEPS: dict[str, Callable[[], Any]] = {
    "plain": step,
    "adamw": lambda: step(adamw),
    "followed": followed,
    "roots": roots,
    "counting": lambda: counting(False),
    "counting with an optimizer": lambda: counting(True),
    "averages": lambda: pair(0.9),
    "teacher": lambda: pair(memplan.Ema(0.9, {"teacher": "student"})),
    "scaled": scaled_loss,
}
LINE = r"'last\.weight' of module 'last', .*test_capture_check\.py:\d+"
# A step, the tensor of its graph that is made wrong, by which factor or operator, and the finding.
WRONG: list[tuple[str, str, float | tuple[Any, ...], str]] = [
    ("plain", "loss", 1.003, "the loss is off"),
    ("plain", "first.weight_grad", 1.003, r"1 gradient off.*'first\.weight'"),
    ("plain", "last.weight_grad", 1.1, LINE),
    ("plain", "norm.running_mean_new", 1.003, "1 buffer off"),
    ("adamw", "first.weight_new", 1.001, r"new parameter.*first\.weight"),
    ("adamw", "first.weight.exp_avg_sq_new", 1.001, r"new state tensor.*first\.weight\.exp_avg_sq"),
    ("followed", "teacher.weight_new", 1.01, r"buffer off.*'teacher\.weight'"),
    # Whose one entry is not a number does not hide the others.
    ("roots", "w_grad", 3.0, "1 gradient off"),
    ("counting", "count_new", ("Add", np.asarray(1)), "1 buffer off.*'count'"),
    ("counting", "odd_new", ("Not",), "1 buffer off.*'odd'"),
    ("counting with an optimizer", "count_new", ("Add", np.asarray(1)), "1 buffer off.*'count'"),
    ("averages", "student.weight.ema_new", 1.01, r"student\.weight\.ema"),
    ("teacher", "teacher.weight_new", 1.01, r"teacher\.weight"),
    ("averages", "agree", 1.01, "agree"),
    ("scaled", "loss_scale_new", 1.5, "'loss_scale'"),
    ("scaled", "growth_tracker_new", ("Add", np.asarray(1)), "'growth_tracker'"),
]


@functools.cache
def right(name: str) -> bool:
    return memplan.capture(STEPS[name]()).check.verdict is Verdict.EQUAL


@pytest.mark.parametrize(("name", "output", "factor", "finding"), WRONG)
def test_a_wrong_tensor_is_a_finding_and_no_file(
    name: str,
    output: str,
    factor: float | tuple[Any, ...],
    finding: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert right(name)

    def wrong(model: Any) -> None:
        if isinstance(factor, float):
            scaled(model, output, factor)
        else:
            replaced(model, output, *factor)

    planted(monkeypatch, wrong)
    with pytest.raises(CaptureDiffersError, match=finding) as caught:
        memplan.capture(STEPS[name](), tmp_path / "step.onnx")
    assert caught.value.exit_code == 1
    assert "--no-check" in caught.value.hint
    assert not list(tmp_path.iterdir())
    if factor == 1.003:
        (found,) = caught.value.check.differences
        assert found.error == pytest.approx(3e-3, rel=0.1)
    if finding is LINE:
        assert "acts on gradients alone" in caught.value.hint


# --- What cannot be checked -----------------------------------------------------------------------


def reason(given: Any, kind: Skip) -> str:
    capture = memplan.capture(given, weights="none")
    check = capture.check
    assert check is not None
    assert (check.verdict, check.skipped_for) == (Verdict.SKIPPED, kind)
    assert check.lines == (f"not checked against PyTorch, nothing was compared: {check.reason}",)
    shown = [getattr(part, "text", part) for part in tell_capture(capture).parts]
    assert [text for text in shown if NO_SESSION not in text][1] == check.lines[0]
    return str(check.reason)


def test_a_loss_that_is_not_a_number_is_said() -> None:
    def loss(model: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x), y) / 0

    assert "own loss is inf" in reason(step(loss=loss), Skip.LOSS)


def test_memory_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.api.capture import reference

    monkeypatch.setattr(reference, "available_bytes", lambda: 10_000)
    assert "are free; a smaller example batch would do" in reason(step(), Skip.MEMORY)


def test_a_step_that_fits_but_not_in_float64_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.api.capture import reference

    free = iter([10**12])
    monkeypatch.setattr(reference, "available_bytes", lambda: next(free, 1_000))
    check = memplan.capture(step(adamw)).check
    assert (check.verdict, check.own_error) == (Verdict.EQUAL, None)
    (said,) = check.not_checked
    assert said.startswith("how much PyTorch itself rounds: in float64 it needs about ")


def test_a_step_is_one_sample_of_what_gradients_are_off_by(monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.api.capture import reference
    from memplan.pytorch.reading import read_step

    seen = iter([3e-4, 1e-5])
    monkeypatch.setattr(reference, "Tolerance", lambda *_: SimpleNamespace(typical=next(seen)))
    held = reference.Reference(read_step(step()))
    assert [held.begin().tolerance.typical for _ in range(2)] == [3e-4, 3e-4]


def test_a_graph_that_the_runtime_cannot_run_is_said() -> None:
    model = nn.Conv1d(2, 3, 2).double()
    given = memplan.TorchStep(model, lambda m, x: m(x).pow(2).mean(), torch.randn(1, 2, 5).double())
    assert "Conv" in reason(given, Skip.NO_KERNEL)


def test_memory_that_a_run_does_not_get_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_runs(monkeypatch, RuntimeError("Failed to allocate memory for requested buffer"))
    assert "ran out of memory" in reason(step(), Skip.MEMORY)


def test_memory_that_pytorch_does_not_get_is_said() -> None:
    def loss(model: Any, x: Any, y: Any) -> Any:
        if not torch.compiler.is_compiling() and type(x) is torch.Tensor:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        return F.cross_entropy(model(x), y)

    assert "PyTorch ran out of memory" in reason(step(loss=loss), Skip.MEMORY)


def test_a_step_that_pytorch_cannot_take_is_refused(tmp_path: Path) -> None:
    def loss(model: Any, x: Any) -> Any:
        return torch.heaviside(model(x), model.weight[0]).sum()

    given = memplan.TorchStep(nn.Linear(4, 4), loss, {"x": torch.randn(3, 4)})
    with pytest.raises(ModelError, match="PyTorch itself cannot take this step") as caught:
        memplan.capture(given, tmp_path / "step.onnx")
    assert "heaviside" in caught.value.message
    assert not list(tmp_path.iterdir())
    assert memplan.capture(given, check=False).check is None


# --- Steps that are rude --------------------------------------------------------------------------


def test_a_step_that_counts_its_runs_is_not_taken_for_rounding() -> None:
    runs = [0]

    def loss(model: Any, x: Any, y: Any) -> Any:
        runs[0] += 1
        return F.cross_entropy(model(x), y) * (1 + 0.01 * runs[0])

    named = r"steps change loss function's closure 'runs\[0\]'"
    with pytest.raises(CaptureDiffersError, match=named) as raised:
        memplan.capture(step(loss=loss))
    assert "register_buffer" in raised.value.hint


def test_updates_of_float16_weights_are_equal_within_the_unit_of_float16() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).half()
    batch = torch.randn(6, 4).half(), torch.randint(0, 3, (6,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check = memplan.capture(memplan.TorchStep(model, F.cross_entropy, batch, optimizer)).check
    assert check is not None
    assert check.verdict is Verdict.EQUAL
