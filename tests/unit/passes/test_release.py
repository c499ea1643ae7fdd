"""What ``release`` frees, and which pools it leaves alone."""

from __future__ import annotations

import pytest

from helpers.graphs import REUSING, TUNED, node, open_text, tensor
from helpers.passes import applied, nodes
from memplan.ir.graph import Phase
from memplan.passes.manager import PassManager
from memplan.passes.release import Release
from memplan.simulate.timeline import simulate

POOL = """g (float[2, 3, H, 6] x) => (int64[2, 3, 1, 1] y)
<int64[2] first = {0, 0}, int64[2] second = {1, 1}, int64[2] axes = {2, 3},
 int64[2] turned = {3, 2}, int64[2] behind = {-1, -2}, int64[2] other = {1, 0},
 int64[2] three = {2, 1}>
{ [pool] v, i = MaxPool <kernel_shape: ints = [1, 1]>(x)
  [cut] y = Slice(i, first, second, axes) }"""


def pool(height: str = "4", **changes: str) -> str:
    """The second pool of an exported one, with words replaced."""
    text = POOL.replace("H", height)
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    "text",
    [
        pool(),
        pool(axes="turned").replace("turned = {2, 3}", "axes = {2, 3}"),
        pool().replace("second, axes)", "second, behind)"),
        pool().replace(
            "kernel_shape: ints = [1, 1]", "kernel_shape: ints = [1, 1], ceil_mode: int = 1"
        ),
    ],
)
def test_a_pool_for_one_index_becomes_one_of_the_first_row(text: str) -> None:
    model = applied(text, Release())
    assert [n.op for n in model.graph.nodes] == ["Slice", "MaxPool", "Size", "Slice", "Add", "Add"]
    short = model.graph.nodes[1]
    assert [model.graph.tensors[t].shape for t in short.outputs] == [(2, 3, 1, 6)] * 2
    assert tensor(model.graph, "y").is_output
    assert len(model.phases.of) == len(model.modules) == 6


@pytest.mark.parametrize(
    "text",
    [
        pool("1"),
        pool("N"),
        pool().replace("first, second", "other, three"),
        pool().replace("[1, 1]", "[2, 2]").replace("float[2, 3, 4, 6]", "float[2, 3, 4, 7]"),
        pool().replace("[1, 1]", "[1, 1], strides: ints = [2, 2]"),
        pool().replace("[1, 1]", "[1, 1], storage_order: int = 1"),
        pool()
        .replace("[1, 1]", "[1, 1], pads: ints = [0, 0, 0, 0]")
        .replace("Slice(i", "Slice(i")
        .replace("[0, 0, 0, 0]", "[0, 0, 1, 1]")
        .replace("[1, 1], pads", "[2, 2], pads"),
        pool().replace("(int64[2, 3, 1, 1] y)", "(int64[2, 3, 1, 1] y, int64[2, 3, 4, 6] i)"),
        pool().replace("(int64[2, 3, 1, 1] y)", "(int64[2, 3, 1, 1] y, float[2, 3, 4, 6] v)"),
        pool()
        .replace("axes) }", "axes) [more] u = Abs(i) }")
        .replace("1] y)", "1] y, int64[2, 3, 4, 6] u)"),
    ],
)
def test_other_pools_stay(text: str) -> None:
    model = open_text(text, dims={"N": 4} if '"N"' in text or "[2, 3, N" in text else None)
    steps = PassManager([Release()]).run(model, simulate(model.graph, TUNED))
    assert not any(n.op == "Add" for n in steps[0].model.graph.nodes)


SPLIT = """g (float[2, 48] z) => (float[2, 24] w) { [halves] left, right = Split <axis: int = 1,
 num_outputs: int = 2>(z) [act] e = Exp(right) [mid] f = Sin(e) [last] w = Exp(f) }"""


def test_an_unread_result_gets_a_reader_right_behind_its_maker() -> None:
    model = open_text(SPLIT)
    before = simulate(model.graph, TUNED)
    step = PassManager([Release()]).run(model, before)[0]
    assert nodes(step.model) == "halves left/release act mid last"
    assert step.note == "1 node with results that nothing reads"
    assert step.timeline.dynamic_peak_bytes < before.dynamic_peak_bytes
    assert step.model.phases.of[1] is step.model.phases.of[0] is Phase.FORWARD
    again = PassManager([Release()]).run(step.model, step.timeline)[0]
    assert again.model is step.model
    assert not again.changed


def test_no_readers_where_the_runtime_orders_and_reuses_by_itself() -> None:
    model = open_text(SPLIT)
    step = PassManager([Release()]).run(model, simulate(model.graph, REUSING))[0]
    assert step.model is model


def test_eight_bytes_are_not_worth_a_reader() -> None:
    text = SPLIT.replace("[2, 48]", "[1, 4]").replace("[2, 24]", "[1, 2]")
    assert node(applied(text, Release()).graph, "halves").op == "Split"
    assert "release" not in nodes(applied(text, Release()))
