"""A rewritten file is read as a stranger would before ``rewrite`` says that it fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import memplan
from helpers.chunking import layered
from helpers.graphs import parse
from memplan.api.rewrite import proved
from memplan.api.rewrite.reread import ensure_readable
from memplan.api.rewrite.rewriting import Rewrite, RewriteOptions, rewrite
from memplan.errors import EXIT_BUG
from memplan.planning.verify import Rejected
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import opened
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate
from memplan.units import parse_size

ROWS = 512
TUNED = session_kind("tuned", "cpu")


def fused(depth: int = 12) -> onnx.ModelProto:
    """Layers whose products are the runtime's own operator, of which shape inference knows nothing,
    one behind the other, for any number of rows. The file states the sizes of its tensors."""
    model = layered(depth=depth, rows=ROWS)
    for value in (*model.graph.input, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == ROWS:
                dim.dim_param = "rows"
    model = onnx.shape_inference.infer_shapes(model)
    model.opset_import.add(domain="com.microsoft", version=1)
    for node in model.graph.node:
        if node.op_type == "MatMul":
            node.op_type, node.domain = "FusedMatMul", "com.microsoft"
    return model


def rewritten(chunk: str = "layers", budget: str = "60%") -> Rewrite:
    options = RewriteOptions(
        parse_size(budget), chunk=chunk, optimize="none", strategy="greedy", passes="none"
    )
    return rewrite(fused(), options, dims={"rows": ROWS})


def test_chunks_of_a_dynamic_batch_state_their_sizes() -> None:
    result = rewritten()
    assert result.chunked
    stated = {value.name for value in result.model.graph.value_info}
    made = {name for node in result.model.graph.node for name in node.output}
    assert made <= stated | {value.name for value in result.model.graph.output}
    again = memplan.analyze(result.model)
    assert not again.inexact
    timeline = result.timeline
    assert again.timeline.peak_with_workspace_bytes == timeline.peak_with_workspace_bytes


@pytest.mark.rejects
def test_chunks_that_nobody_else_can_read_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is made once more without chunks, and that is told."""

    def unreadable(model: onnx.ModelProto, *more: Any) -> None:
        if any("/chunk" in node.name for node in model.graph.node):
            raise Rejected("a chunk cannot be read")
        ensure_readable(model, *more)

    monkeypatch.setattr(proved, "ensure_readable", unreadable)
    result = rewritten()
    assert not result.chunked
    assert any("rejected: a chunk cannot be read." in note for note in result.assumptions)
    assert not memplan.analyze(result.model, {"rows": ROWS}).inexact


@pytest.mark.rejects
def test_a_file_that_says_something_else_is_our_bug() -> None:
    model = fused()
    before = prepare(model, Path("m.onnx"), {"rows": ROWS})
    ours = opened(before)
    promised = simulate(ours.graph, TUNED)
    ensure_readable(model, before, promised, TUNED, None)
    half = simulate(opened(prepare(model, Path("m.onnx"), {"rows": ROWS // 2})).graph, TUNED)
    with pytest.raises(Rejected) as caught:
        ensure_readable(model, before, half, TUNED, None)
    assert caught.value.exit_code == EXIT_BUG
    for timeline in (promised, half):
        assert f"{timeline.peak_with_workspace_bytes:,} B" in caught.value.message


@pytest.mark.rejects
def test_a_tensor_without_a_size_is_named() -> None:
    """Only the file says how many elements a run picks."""
    model = parse("""g (float[8] x, bool[8] on) => (float z)
        { [pick] y = Compress(x, on) [sum] z = ReduceSum<keepdims: int = 0>(y) }""")
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("y", 1, [4]))
    before = prepare(model, Path("m.onnx"), {})
    promised = simulate(opened(before).graph, TUNED)
    del model.graph.value_info[:]
    with pytest.raises(Rejected, match="does not tell the size of"):
        ensure_readable(model, before, promised, TUNED, None)
    model.graph.node[0].input[0] = "nothing"
    with pytest.raises(Rejected, match="cannot be read again"):
        ensure_readable(model, before, promised, TUNED, None)
