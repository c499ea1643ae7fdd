"""A refusal names the operator, the module and the line of the user's code."""

from typing import Any

import pytest

import memplan
from helpers.with_torch import nn, torch
from memplan.errors import ModelError


class Middle(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mode(1).values


class Branching(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad


def inside(function: Any) -> str:
    """The line of a function's body of one line."""
    return f"test_errors.py:{function.__code__.co_firstlineno + 1})"


def refusal(model: Any, step: Any) -> ModelError:
    with pytest.raises(ModelError) as found:
        memplan.capture((model, step, {"x": torch.randn(3, 4)}, None))
    return found.value


def whole(net: Any, x: Any) -> Any:
    return net(x).square().mean()


def aside(net: Any, x: Any) -> Any:
    return net(x).mode(1).values.mean()


def twice(net: Any, x: Any) -> Any:
    return Twice.apply(net(x)).mean()


# What stands behind a linear layer, the step, what the message has, and what the hint.
NO_FORM, SECOND = "aten.mode.default has no ONNX form", "module '1'"
REFUSED: dict[str, tuple[tuple[nn.Module, ...], Any, tuple[str, ...], str]] = {
    "operator": ((Middle(),), whole, (NO_FORM, SECOND, inside(Middle.forward)), ""),
    "operator in the loss function": ((), aside, (NO_FORM, inside(aside)), ""),
    "operator beside a user's backward": ((Middle(),), twice, (SECOND, inside(Middle.forward)), ""),
    "branch": (
        (Branching(),),
        whole,
        ("torch.export refuses the model: ", SECOND, inside(Branching.forward)),
        "torch.where",
    ),
    "all batches": ((nn.BatchNorm1d(4, momentum=None),), whole, (SECOND,), "momentum=None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_it_stands_and_what_to_do(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """In one line, and nothing of PyTorch's own beside it."""
    behind, step, message, hint = REFUSED[name]
    found = refusal(nn.Sequential(nn.Linear(4, 4), *behind), step)
    assert [part for part in message if part not in found.message] == []
    assert hint in found.hint
    assert "\n" not in found.message
    assert capfd.readouterr().err == ""


def test_a_step_that_takes_a_gradient_by_itself() -> None:
    def step(net: Any, x: Any) -> Any:
        x = x.clone().requires_grad_(True)
        (grad,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return grad.square().mean()

    found = refusal(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), step)
    assert found.message.startswith(
        "the step cannot be captured: the step takes a gradient by itself"
    )
    assert f"test_errors.py:{step.__code__.co_firstlineno + 2})" in found.message
    assert "gradient penalty" in found.hint


def masked(**known: bool) -> Any:
    """A decoder that is given a causal mask, as a step."""
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 4, 0.0, batch_first=True), 1)

    def step(net: Any, x: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(3)
        return net(x[None], x[None], tgt_mask=mask, **known).square().mean()

    return decoder, step


def counted(net: Any, x: Any) -> Any:
    classes = nn.functional.one_hot(x.abs().long().clamp(0, 3)).float()
    return (net(x) * classes.sum()).mean()


def packed(net: Any, x: Any) -> Any:
    sizes = (x > -9).sum(1)
    taken = nn.utils.rnn.pack_padded_sequence(
        x[..., None].expand(-1, -1, 4), sizes, batch_first=True, enforce_sorted=False
    )
    return net(taken)[0].data.mean()


def test_a_failure_with_a_known_cure_names_it() -> None:
    """Inside PyTorch's own modules nobody finds a branch to replace."""
    assert "tgt_is_causal=True" in refusal(*masked()).hint
    assert "give it num_classes" in refusal(nn.Linear(4, 4), counted).hint
    gru = nn.GRU(4, 4, batch_first=True)
    assert "run the recurrent module on the padded batch" in refusal(gru, packed).hint


def test_the_cure_that_is_named_helps() -> None:
    model, step = masked(tgt_is_causal=True)
    memplan.capture((model, step, {"x": torch.randn(3, 4)}, None), check=False)
