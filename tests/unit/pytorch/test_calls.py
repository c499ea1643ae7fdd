"""Which call of PyTorch made a tensor."""

from typing import Any

import pytest

from helpers.with_torch import functional, nn, torch
from memplan.proto.metadata import CALL_KEY, node_metadata
from memplan.pytorch.reading import Reading, read_step
from memplan.pytorch.torch_step import TorchStep

pytestmark = pytest.mark.slow


class Inner(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 24), nn.Linear(8, 8)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        q, k, v = self.first(x).reshape(2, 4, 3, 8).unbind(2)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        y = self.act(self.second(mixed)) * 2.0
        z = y.sigmoid() + 1.0
        y = y.neg()
        y += z  # what neg gave is written over
        return functional.dropout(self.act(y + 1.0) + y.sin() + x, 0.5)


class Outer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Inner(), Inner()])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x.exp().mean()


@pytest.fixture(scope="module")
def reading() -> Reading:
    torch.manual_seed(0)
    return read_step(TorchStep(Outer(), None, (torch.randn(2, 4, 8),), None))


def calls(model: Any) -> dict[str, str]:
    told = {node.output[0]: node_metadata(node).get(CALL_KEY) for node in model.graph.node}
    return {name: call for name, call in told.items() if call is not None}


def test_calls_are_told_by_module_operator_and_number(reading: Reading) -> None:
    found = calls(reading.forward().model)
    inner = {c.removeprefix("blocks.1/") for c in found.values() if c.startswith("blocks.1/")}
    assert {"first linear 0", "second linear 0", "act relu 0", "act@1 relu 0"} <= inner
    own = {c.removeprefix("blocks.1 ") for c in found.values() if c.startswith("blocks.1 ")}
    assert {"scaled_dot_product_attention 0", "mul 0", "sigmoid 0", "sin 0"} <= own
    assert not {name for name in own if name.startswith(("matmul", "softmax", "neg", "dropout"))}
    assert " exp 0" in found.values()


def test_views_belong_to_the_call_whose_memory_they_share(reading: Reading) -> None:
    found = calls(reading.forward().model)
    parts = [name for name, call in found.items() if call == "blocks.0/first linear 0"]
    assert len(parts) >= 4  # the product, its three parts among others
