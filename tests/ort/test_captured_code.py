"""Pieces of training code whose gradient is not that of their forward graph, or whose ONNX form is
not theirs: against PyTorch. A row each."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import memplan
from memplan.api.capture.capture_check import CaptureDiffersError
from memplan.proto.surrogates import DOMAIN

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from helpers.torch_steps import Reversed, captured, errors_by_name  # noqa: E402

pytestmark = pytest.mark.ort
TOLERANCE = 1e-4
"""Relative, in float32."""
Step = Callable[..., Any]
ROWS: dict[str, tuple[Step, tuple[str, ...], tuple[str, ...]]] = {}


class Net(nn.Module):
    """What all rows are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.rows = nn.Embedding(7, 4)
        self.conv, self.deep = nn.Conv2d(1, 2, 3, padding=1), nn.Conv3d(1, 2, 2, bias=False)
        self.lstm, self.gru, self.rnn = (
            kind(4, 4, 2, dropout=0.5, batch_first=True) for kind in (nn.LSTM, nn.GRU, nn.RNN)
        )
        self.zero = nn.Parameter(torch.zeros(4))
        self.register_buffer("mean", torch.ones(4))


def batch() -> dict[str, Any]:
    torch.manual_seed(1)
    return {
        "x": torch.randn(6, 4),
        "labels": torch.tensor([0, 1, -100, 3, 2, 2]),
        "likely": torch.rand(6, 4).softmax(1),
        "truth": torch.tensor([[1.0, 0.0, 0.0, 1.0]]).repeat(6, 1),
        "tokens": torch.tensor([[0, 2, 3], [2, 2, 1], [6, 5, 5]]),
        "several": torch.tensor([[3, 0, -1, 1]]).repeat(6, 1),
        "image": torch.randn(2, 1, 7, 7),
        "volume": torch.randn(1, 1, 4, 4, 4),
    }


def row(*inputs: str) -> Callable[[Step], Step]:
    def note(step: Step) -> Step:
        ROWS[step.__name__] = (step, inputs or ("x",))
        return step

    return note


@row()
def detach(m: Any, x: Any) -> Any:
    h = m.a(x)
    return (h.detach() * m.b(h)).sum()


@row()
def detach_in_place(m: Any, x: Any) -> Any:
    h = m.a(x)
    g = h * 1
    g.detach_()
    return (m.b(h) * g).sum()


@row()
def a_part_behind_detach(m: Any, x: Any) -> Any:
    return m.b(m.a(x).detach()).square().mean()


@row()
def straight_through(m: Any, x: Any) -> Any:
    h = m.a(x)
    return (h + (h.round() - h).detach()).square().mean()


@row()
def teacher(m: Any, x: Any) -> Any:
    with torch.no_grad():
        t = m.a(x)
    return F.mse_loss(m.b(m.a(x)), t)


@row()
def gradients_switched_off_and_on(m: Any, x: Any) -> Any:
    torch.set_grad_enabled(False)
    t = m.a(x)
    torch.set_grad_enabled(True)
    return F.mse_loss(m.b(m.a(x)), t)


@row()
def no_grad_around_enable_grad(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.no_grad():
        t = h * 2
        with torch.enable_grad():
            q = m.b(t) * h
        m.mean.mul_(0.9).add_(h.mean(0))
    return (t * m.b(h) * q * m.mean).sum()


@row()
def gradients_of_several_batches(m: Any, x: Any) -> Any:
    """As docs/commands/capture.md says it: a loop without several calls of backward."""
    parts = x.chunk(3)
    return sum(m.b(m.a(part).tanh()).square().mean() / len(parts) for part in parts)


@row()
def inference_mode(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.inference_mode():
        t = h * 2
    return (m.b(h) - t).sum()


@row()
def data(m: Any, x: Any) -> Any:
    h = m.a(x)
    return (h * h.data).sum()


@row()
def data_of_a_buffer_is_changed(m: Any, x: Any) -> Any:
    h = m.a(x)
    m.mean.data.mul_(0.5).add_(h.detach().mean(0))
    return (h * m.mean).sum()


@row()
def data_of_a_buffer_is_set(m: Any, x: Any) -> Any:
    h = m.a(x)
    m.mean.data = h.detach().mean(0)
    return (h * m.mean).sum()


@row()
def requires_grad_is_switched(m: Any, x: Any) -> Any:
    m.a.weight.requires_grad_(False)
    h = m.a(x)
    m.a.weight.requires_grad_(True)
    return m.b(h).square().sum()


@row()
def a_module_is_frozen_for_a_while(m: Any, x: Any) -> Any:
    for p in m.a.parameters():
        p.requires_grad = False
    h = m.a(m.b(x))
    for p in m.a.parameters():
        p.requires_grad = True
    return h.square().sum()


@row()
def changed_in_place_without_gradient(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.no_grad():
        h.mul_(2)
    return m.b(h).square().sum()


@row()
def made_without_gradient_and_filled_with_one(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.no_grad():
        k = h * 1
    k[1] = h[0]
    return (m.b(h) * k).square().sum()


def changed_behind_autograds_back(m: Any, x: Any) -> Any:
    h = m.a(x) * 1
    h.detach().mul_(2)
    return m.b(h).square().sum()


def a_view_changed_behind_autograds_back(m: Any, x: Any) -> Any:
    h = m.a(x)
    with torch.no_grad():
        h[0].mul_(2)
    return m.b(h).square().sum()


@row()
def detach_in_a_branch(m: Any, x: Any) -> Any:
    h = m.a(x)
    branches = (lambda h: (h.detach() * h).sum(), lambda h: h.sum())
    return torch.cond(x.sum() > 0, *branches, (h,))


@row()
def divided_by_a_detached_norm(m: Any, x: Any) -> Any:
    h = m.b(m.a(x))
    return (h / h.detach().abs().max()).square().sum()


for reduction in ("mean", "sum"):
    for weighted in (False, True):
        name = f"smoothed_{reduction}" + "_weighted" * weighted

        def smoothed(
            m: Any, x: Any, labels: Any, reduction: str = reduction, weighted: bool = weighted
        ) -> Any:
            weight = torch.tensor([1.0, 2.0, 0.5, 3.0]) if weighted else None
            options: dict[str, Any] = {
                "weight": weight,
                "reduction": reduction,
                "label_smoothing": 0.1,
            }
            return F.cross_entropy(m.a(x), labels, **options)

        ROWS[name] = (smoothed, ("x", "labels"))


@row("x", "labels")
def smoothed_one_by_one(m: Any, x: Any, labels: Any) -> Any:
    losses = F.cross_entropy(m.a(x), labels, label_smoothing=0.1, reduction="none")
    return (losses * torch.arange(6.0)).sum()


@row("x", "labels")
def smoothed_over_positions(m: Any, x: Any, labels: Any) -> Any:
    logits = m.a(x).reshape(2, 3, 4).transpose(1, 2)
    return nn.CrossEntropyLoss(label_smoothing=0.1)(logits, labels.reshape(2, 3))


@row("x", "likely")
def soft_labels(m: Any, x: Any, likely: Any) -> Any:
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0])
    smoothed = F.cross_entropy(m.a(x), likely, weight=weight, label_smoothing=0.1)
    return smoothed + F.cross_entropy(m.b(x), likely) + F.cross_entropy(m.c(x), m.a(x).softmax(1))


@row()
def one_sample(m: Any, x: Any) -> Any:
    return F.cross_entropy(m.a(x)[0], torch.tensor(2))


@row("x", "truth")
def large_logits(m: Any, x: Any, truth: Any) -> Any:
    pos_weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    first = F.binary_cross_entropy_with_logits(m.a(x) * 200, truth, pos_weight=pos_weight)
    second = F.binary_cross_entropy_with_logits(m.b(x), truth, weight=pos_weight, reduction="none")
    third = F.multilabel_soft_margin_loss(m.c(x) * 200, truth, reduction="sum")
    return first + second.square().sum() + third - F.logsigmoid(m.c(x) * 200).sum()


@row("x", "likely")
def gaussian(m: Any, x: Any, likely: Any) -> Any:
    return F.gaussian_nll_loss(m.a(x), likely, m.b(x).relu(), full=True, eps=1e-2)


@row("x", "several")
def several_labels(m: Any, x: Any, several: Any) -> Any:
    return F.multilabel_margin_loss(m.a(x), several)


@row()
def norms_of_nothing(m: Any, x: Any) -> Any:
    nothing = m.a(x) * 0
    apart = F.pairwise_distance(nothing, m.b(x) * 0, p=3.0, eps=0.0)
    norms = torch.linalg.vector_norm(nothing, ord=3, dim=1) + F.normalize(nothing, p=3.0).sum(1)
    return (apart + norms).sum() + m.a(x).sum() + m.b(x).sum()


@row()
def distances(m: Any, x: Any) -> Any:
    h, many = m.a(x), m.b(x).repeat(5, 1)
    nearest = m.rows.weight[torch.cdist(h, m.rows.weight).argmin(1)]
    pairs = torch.cdist(h, h).sum() + torch.cdist(h, m.c(x), p=1.0).sum()
    return F.mse_loss(nearest, h.detach()) + pairs + torch.cdist(many, h).square().sum()


@row()
def logarithms_of_sums(m: Any, x: Any) -> Any:
    return torch.logaddexp(m.a(x) * 100, m.b(x) * 100).sum() + torch.logaddexp2(m.a(x), x).sum()


@row()
def means_of_scattered(m: Any, x: Any) -> Any:
    index = torch.tensor([[0, 1, 2, 1]]).repeat(6, 1)
    means = m.b(x)[:3].scatter_reduce(0, index, m.a(x), "mean")
    without = m.b(x)[:3].scatter_reduce(0, index, m.a(x), "mean", include_self=False)
    return means.square().sum() + without.square().sum()


@row()
def bounds_of_two_types(m: Any, x: Any) -> Any:
    return m.a(x).clamp(0, 0.5).square().sum()


@row("tokens")
def padding_index(m: Any, tokens: Any) -> Any:
    return F.embedding(tokens, m.rows.weight, padding_idx=-5).square().sum()


@row("tokens")
def gradients_by_frequency(m: Any, tokens: Any) -> Any:
    rows = F.embedding(tokens, m.rows.weight, padding_idx=5, scale_grad_by_freq=True)
    return rows.square().sum()


@row("image")
def divisor_of_an_average(m: Any, image: Any) -> Any:
    y = m.conv(image)
    first = F.avg_pool2d(y, 2, 2, divisor_override=3)
    second = F.avg_pool2d(y, 2, padding=1, ceil_mode=True, divisor_override=3)
    return first.square().sum() + second.square().sum()


@row("image")
def windows_that_begin_behind_the_image(m: Any, image: Any) -> Any:
    y = m.conv(image)
    inside = F.avg_pool2d(y, 2, padding=1, ceil_mode=True, count_include_pad=False)
    largest = nn.MaxPool2d(2, 4, ceil_mode=True)(y)
    return F.avg_pool2d(y, 2, padding=1, ceil_mode=True).square().sum() + (
        inside.square().sum() + largest.square().sum()
    )


@row()
def custom_function(m: Any, x: Any) -> Any:
    return m.b(Reversed.apply(m.a(x), 0.5)).square().mean()


@row()
def tensor_hook(m: Any, x: Any) -> Any:
    h = m.a(x)
    h.register_hook(lambda grad: grad * 10)
    return m.b(h).square().mean()


@row()
def product_with_a_logarithm(m: Any, x: Any) -> Any:
    return torch.xlogy(m.zero, x.abs() + 1).sum() + m.a(x).square().mean()


@row("volume")
def convolution_of_volumes_without_bias(m: Any, volume: Any) -> Any:
    return m.deep(volume).square().sum()


JOINT = 9
"""So many rows make one step, each with weights of its own: most of a capture's time is not spent
on its nodes."""


def joint(rows: Mapping[str, tuple[Step, tuple[str, ...]]]) -> tuple[Any, dict[str, Any], Step]:
    """A model, its batch and its loss, of these rows; the loss of each is a metric."""
    torch.manual_seed(0)
    one = Net()
    module = nn.ModuleDict({name: copy.deepcopy(one) for name in rows})
    wanted = {key for _, inputs in rows.values() for key in inputs}

    def loss(module: Any, **given: Any) -> Any:
        found = {
            name: step(module[name], *(given[key] for key in inputs))
            for name, (step, inputs) in rows.items()
        }
        return torch.stack([*found.values()]).sum(), found

    return module, {key: value for key, value in batch().items() if key in wanted}, loss


@pytest.mark.parametrize("first", range(0, len(ROWS), JOINT))
def test_loss_and_gradients_are_those_of_pytorch(first: int) -> None:
    module, given, loss = joint(dict([*ROWS.items()][first : first + JOINT]))
    with torch.no_grad():
        before = {key: value.clone() for key, value in module.state_dict().items()}
    capture = captured(memplan.TorchStep(module, loss, given))
    assert DOMAIN not in {node.domain for node in capture.model.graph.node}
    assert DOMAIN not in {item.domain for item in capture.model.opset_import}
    module.load_state_dict(before)
    errors = errors_by_name(
        capture,
        module,
        list(given.values()),
        lambda: loss(module, **given),
        part=lambda name: name.partition(".")[0],
    )
    assert {name: error for name, error in errors.items() if error > TOLERANCE} == {}


def a_choice_that_is_drawn(m: Any, x: Any) -> Any:
    """PyTorch detaches within its own function."""
    return (F.gumbel_softmax(m.a(x), hard=True) * m.b(x)).square().sum()


def a_branch_without_gradients(m: Any, x: Any) -> Any:
    with torch.no_grad():
        wanted = torch.cond(x.sum() > 0, m.a, m.b, (m.c(x),))
    return F.mse_loss(m.a(m.c(x)), wanted)


@pytest.mark.parametrize("step", [a_choice_that_is_drawn, a_branch_without_gradients])
def test_stops_within_what_pytorch_calls_are_right_by_the_check(step: Step) -> None:
    check = captured(memplan.TorchStep(Net(), step, {"x": batch()["x"]})).check
    assert check is not None
    assert check.verdict == "equal", check.lines


def refused(step: Step, **given: Any) -> str:
    with pytest.raises(memplan.MemplanError) as caught:
        captured(memplan.TorchStep(Net(), step, given))
    return f"{caught.value.message} {caught.value.hint}"


def test_what_cannot_be_said_is_refused_by_name() -> None:
    x, tokens = batch()["x"], batch()["tokens"]

    def limited(m: Any, tokens: Any) -> Any:
        return F.embedding(tokens, m.rows.weight, max_norm=1.0).sum()

    def sequences(m: Any, x: Any) -> Any:
        logs = m.a(x)[:, None].log_softmax(-1)
        return F.ctc_loss(logs, torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2]))

    def thawed(m: Any, x: Any) -> Any:
        m.a.weight.requires_grad_(True)
        return m.a(x).sum()

    assert "max_norm" in refused(limited, tokens=tokens)
    assert "ctc_loss" in refused(sequences, x=x)
    for changed in (changed_behind_autograds_back, a_view_changed_behind_autograds_back):
        assert re.search(r"detach\(\).*test_captured_code\.py:\d+", refused(changed, x=x))
    frozen = Net()
    frozen.a.weight.requires_grad_(False)
    with pytest.raises(memplan.MemplanError, match="requires_grad_"):
        captured(memplan.TorchStep(frozen, thawed, {"x": x}))


def bernoulli_of_a_constant(m: Any, x: Any) -> Any:
    return (m.a(x) * torch.bernoulli(torch.full((6, 1), 0.25))).square().mean()


def bernoulli_of_probabilities(m: Any, x: Any) -> Any:
    return torch.bernoulli(torch.full_like(x, 0.1) + x * 0).mean() + m.a(x).sum() * 0


def dropout_of_a_constant(m: Any, x: Any) -> Any:
    return (m.a(x) * F.dropout(torch.ones(6, 1), 0.5)).square().mean()


def slopes(m: Any, x: Any) -> Any:
    return F.rrelu(m.a(x), 0.1, 0.9, training=True).square().mean()


def mixed(m: Any, x: Any) -> Any:
    share = torch.rand(())
    return m.a(share * x + (1 - share) * x[torch.randperm(6)]).square().mean()


def without_replacement(m: Any, x: Any) -> Any:
    weights = torch.tensor([0.7, 0.1, 0.1, 0.1])
    drawn = torch.multinomial(weights, 2)
    return (drawn[0] == drawn[1]).float() + torch.rand(()) * 0.01 + m.a(x).sum() * 0


def policy(m: Any, x: Any) -> Any:
    choice = torch.distributions.Categorical(logits=m.a(x))
    actions = choice.sample()
    return -(choice.log_prob(actions) * actions).mean()


def two_views(m: Any, x: Any) -> Any:
    h = m.a(x)
    return (F.dropout(h, 0.5) - F.dropout(h, 0.5)).square().mean()


def layered(kind: Any) -> Step:
    """Dropout between layers that are recurrent."""
    return lambda m, x: getattr(m, kind)(m.a(x)[None])[0].square().mean()


DRAWS: dict[str, Step] = {
    "bernoulli_of_a_constant": bernoulli_of_a_constant,
    "bernoulli_of_probabilities": bernoulli_of_probabilities,
    "dropout_of_a_constant": dropout_of_a_constant,
    "slopes": slopes,
    "mixed": mixed,
    "without_replacement": without_replacement,
    "policy": policy,
    "two_views": two_views,
    **{name: layered(name) for name in ("lstm", "gru", "rnn")},
}


def test_what_is_drawn_is_drawn_anew_and_as_in_pytorch() -> None:
    """Mean and deviation of each loss over 200 steps."""
    import onnxruntime

    module, given, loss = joint({name: (step, ("x",)) for name, step in DRAWS.items()})
    capture = captured(memplan.TorchStep(module, loss, given))
    session = onnxruntime.InferenceSession(
        capture.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {"x": given["x"].numpy()}
    own = np.array([session.run([*DRAWS], feeds) for _ in range(200)])
    with torch.no_grad():
        drawn = [loss(module, **given)[1] for _ in range(200)]
    for name, found in zip(DRAWS, own.T, strict=True):
        wanted = np.array([float(each[name]) for each in drawn])
        assert 0.6 * wanted.std() < found.std() < 1.6 * wanted.std(), name
        assert abs(found.mean() - wanted.mean()) < wanted.std(), name


# --- The same without what makes them right -------------------------------------------------------


@pytest.fixture
def unmended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Capture without what makes these steps right: functions written out, stops, what notes custom
    backwards, translations of our own, guards against fusions. What is left is the road as it would
    be with a defect that nobody knows."""
    from memplan.autodiff import finished_graph
    from memplan.pytorch import custom_backward, prepared_step, program, trace, translations

    for module, name in ((trace, "tracing"), (prepared_step, "traced_calls")):
        monkeypatch.setattr(module, name, nullcontext)
    monkeypatch.setattr(trace, "complete_stops", lambda given: None)
    monkeypatch.setattr(program, "RANDOM", ())
    monkeypatch.setattr(program, "aten_forms", dict)
    monkeypatch.setattr(custom_backward, "_watched", lambda recorder: [])
    kept = ("lstm", "gru", "rnn", "batch_norm")
    own = {op: f for op, f in translations.TRANSLATIONS.items() if any(k in str(op) for k in kept)}
    monkeypatch.setattr(translations, "TRANSLATIONS", own)
    monkeypatch.setattr(finished_graph, "without_known_faults", lambda model: None)
    program.registry.cache_clear()
    program._decompositions.cache_clear()
    yield
    monkeypatch.undo()
    program.registry.cache_clear()
    program._decompositions.cache_clear()


WRONG = {
    name: ROWS.get(name) or (DRAWS[name], ("x",))
    for name in (
        "detach",
        "teacher",
        "straight_through",
        "padding_index",
        "smoothed_mean",
        "large_logits",
        "custom_function",
        "tensor_hook",
        "divisor_of_an_average",
        "product_with_a_logarithm",
        "bernoulli_of_a_constant",
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_the_check_alone_finds_what_nothing_else_prevents(name: str, unmended: None) -> None:
    step, inputs = WRONG[name]
    torch.manual_seed(0)
    given = {key: batch()[key] for key in inputs}
    with pytest.raises(CaptureDiffersError) as caught:
        captured(memplan.TorchStep(Net(), step, given))
    assert caught.value.check.differences
