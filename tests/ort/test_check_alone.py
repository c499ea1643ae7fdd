"""What the exporter and the runtime get wrong is found by the check, if nothing else prevents it.

Everything that makes these steps right is taken out here: functions written out, stops, what notes
custom backwards, translations of our own, guards against fusions. What is left is the road as it
would be with a defect that nobody knows; no such step may be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

import memplan
from memplan.api.capture.capture_check import CaptureDiffersError

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

nn, F = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.ort, pytest.mark.slow]


class Net(nn.Module):  # type: ignore[name-defined,misc]
    """What the losses need."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.table = nn.Embedding(9, 6, padding_idx=0)
        self.lstm = nn.LSTM(6, 6, 2, dropout=0.5)
        self.conv = nn.Conv2d(1, 2, 3)
        self.vector, self.zero = nn.Parameter(torch.randn(6)), nn.Parameter(torch.zeros(6))


class Reversed(torch.autograd.Function):  # type: ignore[name-defined,misc]
    """The identity, with another gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return -0.5 * grad


def detached(m: Any, x: Any, labels: Any) -> Any:
    h = m.a(x)
    return (m.b(h) - h.detach()).pow(2).mean() + h.mean()


def teacher(m: Any, x: Any, labels: Any) -> Any:
    with torch.no_grad():
        wanted = m.a(x)
    return F.mse_loss(m.b(m.a(x)), wanted)


def straight_through(m: Any, x: Any, labels: Any) -> Any:
    h = m.a(x)
    return (h + (h.round() - h).detach()).pow(2).mean()


def padding(m: Any, x: Any, labels: Any) -> Any:
    return m.b(m.table(labels)).pow(2).mean()


def smoothed(m: Any, x: Any, labels: Any) -> Any:
    return F.cross_entropy(m.a(x), labels, label_smoothing=0.1)


def large_logits(m: Any, x: Any, labels: Any) -> Any:
    wanted = (x > 0).float()
    return F.binary_cross_entropy_with_logits(200 * m.a(x), wanted, pos_weight=1 + x[0].abs())


def custom_function(m: Any, x: Any, labels: Any) -> Any:
    return m.b(Reversed.apply(m.a(x))).pow(2).mean()


def tensor_hook(m: Any, x: Any, labels: Any) -> Any:
    h = m.a(x)
    h.register_hook(lambda grad: grad * 10)
    return m.b(h).pow(2).mean()


def frozen_mask(m: Any, x: Any, labels: Any) -> Any:
    return (m.a(x) * torch.bernoulli(torch.full((8, 1), 0.5))).pow(2).mean()


def divisor(m: Any, x: Any, labels: Any) -> Any:
    image = m.conv(x[None, None])
    return F.avg_pool2d(image, 2, 2, divisor_override=3).pow(2).mean()


def product_with_a_logarithm(m: Any, x: Any, labels: Any) -> Any:
    return torch.xlogy(m.zero, x.abs() + 1).sum() + m.a(x).mean()


WRONG: list[Callable[..., Any]] = [
    detached,
    teacher,
    straight_through,
    padding,
    smoothed,
    large_logits,
    custom_function,
    tensor_hook,
    frozen_mask,
    divisor,
    product_with_a_logarithm,
]


@pytest.fixture
def unmended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Capture without what makes these steps right."""
    from memplan.autodiff import finished_graph
    from memplan.pytorch import custom_backward, prepared_step, program, trace, translations

    for module, name in ((trace, "tracing"), (prepared_step, "traced_calls")):
        monkeypatch.setattr(module, name, nullcontext)
    monkeypatch.setattr(program, "with_stops", lambda given: given)
    monkeypatch.setattr(program, "RANDOM", ())
    monkeypatch.setattr(program, "aten_forms", dict)
    monkeypatch.setattr(custom_backward, "_watched", lambda recorder: [])
    kept = ("lstm", "gru", "rnn", "batch_norm")
    own = {op: f for op, f in translations.TRANSLATIONS.items() if any(k in str(op) for k in kept)}
    monkeypatch.setattr(translations, "TRANSLATIONS", own)
    monkeypatch.setattr(finished_graph, "make_blunt", lambda model: None)
    program.registry.cache_clear()
    program._decompositions.cache_clear()
    yield
    monkeypatch.undo()
    program.registry.cache_clear()
    program._decompositions.cache_clear()


def step(loss: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    model = Net()
    batch = {"x": torch.randn(8, 6), "labels": torch.tensor([0, 1, 2, 3, 0, 5, 4, 1])}
    return memplan.TorchStep(model, loss, batch)


@pytest.mark.parametrize("loss", WRONG, ids=lambda loss: loss.__name__)
def test_the_check_alone_finds_it(loss: Callable[..., Any], unmended: None) -> None:
    with pytest.raises(CaptureDiffersError) as caught:
        memplan.capture(step(loss))
    assert caught.value.check.differences


@pytest.mark.parametrize("loss", WRONG, ids=lambda loss: loss.__name__)
def test_it_is_right_with_all_in_place(loss: Callable[..., Any]) -> None:
    check = memplan.capture(step(loss)).check
    assert check is not None
    assert check.verdict == "equal"
