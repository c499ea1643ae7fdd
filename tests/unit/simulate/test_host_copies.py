"""Files that copy tensors to the host and back: read, counted, and proved."""

import onnx
import pytest

from helpers.graphs import TUNED, kib, open_text, parse, tensor, timeline_of
from helpers.offloading import CUDA
from helpers.proofs import proof
from memplan.errors import ModelError
from memplan.proto.model_checks import find_fault, host_copies
from memplan.simulate.floor import structural_floor

# KiB: x 1, a 1, wide 4.
COPIED = """
g (float[256] x) => (float[256] y)
{
    [a] a = Exp(x)
    [out] h = MemcpyToHost(a)
    [wide] w = Concat<axis = 0>(a, a, a, a)
    [sum] s = ReduceSum<keepdims = 0>(w)
    [back] b = MemcpyFromHost(h)
    [y] y = Mul(b, s)
}"""
PLAIN = COPIED.replace("[out] h = MemcpyToHost(a)", "").replace(
    "[back] b = MemcpyFromHost(h)", "[back] b = Identity(a)"
)


def test_host_copies_take_nothing_of_the_device() -> None:
    timeline = timeline_of(COPIED, CUDA)
    scalar = 4 / 1024
    assert kib(timeline) == [1, 1, 5, 4 + scalar, 1 + scalar, 2 + scalar]
    assert timeline.host is not None
    assert (timeline.host // 1024).tolist() == [0, 1, 1, 1, 1, 0]
    assert not any("never probed" in note for note in timeline.assumptions)
    assert [b.root for b in timeline.live_at(2)] == [
        tensor(timeline.graph, "w").id,
        tensor(timeline.graph, "a").id,
    ]


def test_on_the_cpu_there_is_one_memory() -> None:
    assert timeline_of(COPIED, TUNED).dynamic_peak_bytes == 6 * 1024
    assert timeline_of(COPIED, TUNED).host is None


def test_the_floor_is_the_devices() -> None:
    timeline = timeline_of(COPIED, CUDA)
    floor = structural_floor(timeline.graph, timeline)
    plain = timeline_of(PLAIN, CUDA)
    assert floor.nbytes == structural_floor(plain.graph, plain).nbytes == 5 * 1024


def test_types_of_copies_follow_from_what_they_copy() -> None:
    """With a symbolic dimension too: the runtime hands shapes on."""
    text = COPIED.replace("float[256]", "float[N]")
    model = open_text(text, dims={"N": 64})
    for name in ("h", "b"):
        found = tensor(model.graph, name)
        assert found.shape == (64,)
        assert found.static == tensor(model.graph, "a").static
        assert found.seen == tensor(model.graph, "a").seen


def test_the_checker_takes_them_for_what_they_are() -> None:
    model = parse(COPIED)
    assert host_copies(model) == 2
    assert find_fault(model) is None


@pytest.mark.parametrize("call", ["MemcpyToHost(a, x)", "MemcpyToHost()"])
def test_a_copy_copies_one_tensor(call: str) -> None:
    from pathlib import Path

    from memplan.proto.read import check_structure

    with pytest.raises(ModelError, match="MemcpyToHost takes 1"):
        check_structure(parse(COPIED.replace("MemcpyToHost(a)", call)), Path("g.onnx"))


def test_a_copy_is_what_it_copies() -> None:
    found = proof(PLAIN.replace("Identity(a)", "Exp(x)"), COPIED)
    assert found.proved
    assert proof(COPIED, COPIED).proved


def test_a_copy_of_something_else_is_not() -> None:
    found = proof(PLAIN, COPIED.replace("MemcpyToHost(a)", "MemcpyToHost(x)"))
    assert not found.proved
    assert found.reason is not None


def test_a_domain_of_others_may_mean_something_else() -> None:
    other = COPIED.replace("MemcpyToHost", "com.microsoft.MemcpyToHost")
    assert not proof(PLAIN, onnx.parser.parse_model(parse_header(other))).proved


def parse_header(text: str) -> str:
    """The text with a header."""
    return '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>' + text
