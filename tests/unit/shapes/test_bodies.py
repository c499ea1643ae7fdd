"""Shapes in bodies."""

from pathlib import Path

import onnx
import pytest

from helpers import odd_models as odd
from helpers.graphs import parse
from helpers.odd_models import saved
from memplan.api.analysis import analyze
from memplan.shapes import complete
from memplan.shapes.complete import body_models, value_types
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import open_model


def _body_of(proto: onnx.ModelProto, op: str) -> list[tuple[int | None, bool]]:
    types, _ = value_types(proto)
    node = next(node for node in proto.graph.node if node.op_type == op)
    return [(body.trips, body.complete) for body in body_models(proto, node, types)]


def test_iterations_of_bodies() -> None:
    assert _body_of(odd.conditional(), "If") == [(1, True), (1, True)]
    assert _body_of(odd.loop(5), "Loop") == [(5, True)]
    assert _body_of(odd.loop(5, as_node=True), "Loop") == [(5, True)]
    assert _body_of(odd.loop(0), "Loop") == [(0, True)]
    assert _body_of(odd.loop(2**63 - 1, stacked=False), "Loop") == [(None, True)]
    assert _body_of(odd.scan(), "Scan") == [(odd.BATCH, True)]


@pytest.mark.parametrize("axis", [0, -2, 1])
def test_a_scan_takes_slices_along_its_axis(axis: int) -> None:
    rows, columns = (odd.BATCH, odd.HIDDEN) if axis != 1 else (odd.HIDDEN, odd.BATCH)
    proto = parse(
        f"g (float[{rows}, {columns}] rows) => (float[] out) {{ out = Scan (rows) "
        f"<num_scan_inputs = 1, scan_input_axes = [{axis}], "
        "body = body (float[] row) => (float[] minus) { minus = Neg (row) }> }"
    )
    assert value_types(proto)[0]["out"].shape == (odd.BATCH, odd.HIDDEN)


def test_a_body_that_hands_on_a_sequence_keeps_its_type(tmp_path: Path) -> None:
    proto = parse("""
        g (float[2, 3] x) => (float[8, 3] joined) <int64 trips = {3}> {
            first = SequenceConstruct (x)
            all = Loop (trips, , first) <body = body (int64 k, bool on, seq(float[]) seq)
                => (bool still, seq(float[]) longer) {
                    still = Identity (on)
                    longer = SequenceInsert (seq, x)
                }>
            joined = ConcatFromSequence <axis = 0> (all)
        }""")
    path = saved(proto, tmp_path)
    opened = open_model(path)
    joined = opened.graph.tensor_named("joined")
    assert joined.shape == (8, 3)
    types, _ = value_types(proto)
    made = body_models(proto, proto.graph.node[1], types)[0].model.graph
    assert made.output[1].type.HasField("sequence_type")
    assert analyze(path).timeline.peak_bytes > 0


def _nested(depth: int) -> str:
    """Loops in loops that stack what the innermost makes; data decides how often they run."""
    if depth == 0:
        return "[made] v0 = Neg(x)"
    inner = _nested(depth - 1)
    return f"""v{depth} = Loop(n, ) <body = b{depth} (int64 i{depth}, bool c{depth})
        => (bool d{depth}, float[] v{depth - 1}) {{ d{depth} = Identity(c{depth}) {inner} }}>"""


def test_the_innermost_of_many_bodies_is_not_walked_for_each_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walked = []

    def counted(bound: onnx.ModelProto) -> tuple[dict[str, TensorType], list[str]]:
        walked.append(bound)
        return value_types(bound)

    monkeypatch.setattr(complete, "value_types", counted)
    counted(parse(f"g (float[4] x, int64 n) => (float[] v9) {{ {_nested(9)} }}"))
    assert len(walked) <= 3 * 9


def test_trips_of_a_loop_in_a_loop_may_be_a_constant_outside() -> None:
    nested = _nested(2).replace("Loop(n, )", "Loop(n2, )")
    proto = parse(f"g (float[4] x) => (float[] v2) <int64 n2 = {{3}}> {{ {nested} }}")
    assert value_types(proto)[0]["v2"].shape == (3, 3, 4)
    fused = parse("""g (float[3, 4] x, float[4, 4] w, bool c) => (float[] y) { y = If (c) <
        then_branch = a () => (float[] t) { t = com.microsoft.FusedGemm (x, w) },
        else_branch = b () => (float[] e) { e = Neg(x) }> }""")
    assert value_types(fused)[0]["y"].shape == (3, 4)
