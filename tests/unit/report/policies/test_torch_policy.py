"""A plan as selective checkpointing: the gradients of eager PyTorch in less memory."""

import ast
import copy
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from helpers.planned_calls import plan_of
from memplan.errors import UsageError
from memplan.planning.plan_file import PlanFile
from memplan.report.policies.torch_policy import torch_policy


def test_a_plan_that_recomputes_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to checkpoint"):
        torch_policy(plan_of(("net linear 0", "kept")))


def test_names_from_the_file_are_text_and_nothing_else() -> None:
    """Whoever runs the module runs no word of the plan."""
    evil = 'a\'"""+print(1)\\'
    plan = plan_of((f"{evil} relu 0", "recomputed"), (f"{evil} linear 0", "packed"))
    plan = replace(plan, session=evil, provider=evil)
    head, *body = ast.parse(torch_policy(plan).text).body
    assert isinstance(head, ast.Expr)
    assert isinstance(ast.literal_eval(head.value), str)
    tables = [each for each in body if isinstance(each, ast.AnnAssign)]
    assert ast.literal_eval(tables[0].value) == {  # type: ignore[arg-type]
        (evil,): {"": {"relu": "r", "product": "s"}}
    }
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.AnnAssign)
    assert all(isinstance(each, kinds) for each in body)


def test_what_is_not_in_the_policy_is_told() -> None:
    plan = plan_of(
        ("net relu 0", "recomputed"),
        ("net linear 0", "offloaded"),
        (" exp 0", "recomputed"),
    )
    notes = "\n".join(torch_policy(plan).notes)
    assert "1 tensor of 1.00 KiB, offloaded in the plan: not in this form (t1)" in notes
    assert "1 call of 1.00 KiB to be made again: outside of every checkpointed module" in notes


torch: Any = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.norm, self.act = nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        y = self.act(self.norm(self.first(x)))
        y = self.second(self.drop(y))
        y = y.sigmoid() * y
        return self.act(y) + x


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class Operators(TorchDispatchMode):  # type: ignore[misc]
    """Counts what runs inside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ran[name := func.overloadpacket.__name__] += 1
        if name == "relu":
            self.ran[f"relu of {args[0].shape[1]} channels"] += 1
        return func(*args, **(kwargs or {}))


def plan(**fates: str) -> PlanFile:
    calls = {
        "first": "/first conv2d 0",
        "norm": "/norm batch_norm 0",
        "act": "/act relu 0",
        "second": "/second conv2d 0",
        "sigmoid": " sigmoid 0",
        "mul": " mul 0",
        "last": "/act@1 relu 0",
        "add": " add 0",
    }
    return plan_of(
        *(
            (f"blocks.{k}{call}", fates.get(name, "recomputed"))
            for k in range(3)
            for name, call in calls.items()
        )
    )


def apply(text: str, model: Any) -> Any:
    scope: dict[str, Any] = {}
    exec(compile(text, "policy", "exec"), scope)
    return scope["checkpoint_as_planned"](model)


def step(model: Any, x: Any) -> tuple[Any, dict[str, Any], Counter[str]]:
    """The loss, gradients and buffers, and what ran in the backward pass."""
    model.zero_grad()
    torch.manual_seed(3)
    loss = model(x)
    with Operators() as backward:
        loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    found |= {name: buffer.clone() for name, buffer in model.named_buffers()}
    return loss.detach(), found, backward.ran


@pytest.fixture
def compared() -> Callable[[PlanFile], Counter[str]]:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 4, 6, 6)

    def compare(plan: PlanFile) -> Counter[str]:
        """Hold two steps by the policy against PyTorch's own; what ran in the second backward."""
        planned = apply(torch_policy(plan).text, copy.deepcopy(model))
        assert list(planned.state_dict()) == list(model.state_dict())
        for _ in range(2):
            loss, expected, _ = step(model, x)
            own, found, ran = step(planned, x)
            assert torch.equal(loss, own)
            assert all(torch.equal(expected[name], found[name]) for name in expected)
        return ran

    return compare


KEEPS: list[dict[str, str]] = [
    {},
    {"first": "kept", "second": "kept"},
    {"norm": "kept", "last": "kept", "add": "kept"},
    dict.fromkeys(("first", "norm", "act", "second", "sigmoid", "mul", "add"), "kept"),
]


@pytest.mark.parametrize("fates", KEEPS, ids=range(len(KEEPS)))
def test_gradients_and_running_statistics_are_those_of_eager_pytorch(
    fates: dict[str, str], compared: Callable[[PlanFile], Counter[str]]
) -> None:
    compared(plan(**fates))


def test_what_is_saved_does_not_run_again(
    compared: Callable[[PlanFile], Counter[str]],
) -> None:
    again = compared(plan())
    assert again["convolution"] == 6
    assert again["native_batch_norm"] == 3
    saved = compared(plan(second="kept", norm="kept"))
    assert saved["convolution"] == 3
    assert saved["native_batch_norm"] == 0


def test_second_calls_have_decisions_of_their_own(
    compared: Callable[[PlanFile], Counter[str]],
) -> None:
    wide, narrow = "relu of 8 channels", "relu of 4 channels"
    neither, first, second = (compared(plan(**{name: "kept"})) for name in ("add", "act", "last"))
    assert (neither[wide], neither[narrow]) == (3, 3)
    assert (first[wide], first[narrow]) == (0, 3)
    assert (second[wide], second[narrow]) == (3, 0)


def test_another_model_is_told() -> None:
    policy = torch_policy(
        plan_of(("blocks.0/act relu 0", "recomputed"), ("blocks.0/first conv2d 4", "kept"))
    )
    model = apply(policy.text, Net())
    with pytest.warns(UserWarning, match=r"5 calls of convolution in blocks\.0\.first, found 1"):
        model(torch.randn(1, 4, 6, 6))


def test_nothing_is_checkpointed_without_gradients() -> None:
    model = apply(torch_policy(plan()).text, Net())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model(torch.randn(1, 4, 6, 6)).grad_fn is None
