"""Models that are odd and legal: analyzed in full, or what is left out is said."""

from collections.abc import Set
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from helpers import odd_models as odd
from helpers.odd_models import FLOAT, WORKING, feeds_of, info, saved
from memplan.api.analysis import Analysis, analyze
from memplan.errors import ModelError
from memplan.shapes.fold import small_constants

COUNTED_DTYPES = {FLOAT: 4, TensorProto.INT64: 8, TensorProto.BOOL: 1}


def _names(without: Set[str] = frozenset()) -> list[object]:
    return [name for name in WORKING if name not in without]


def _bytes(model: onnx.ModelProto) -> int:
    """Inputs and constants, counted from the file alone."""
    graph = model.graph
    sizes: dict[str, int] = {}
    for value in graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        sizes[value.name] = int(np.prod(shape)) * COUNTED_DTYPES.get(kind.elem_type, 0)
    for tensor in graph.initializer:
        sizes[tensor.name] = int(np.prod(tensor.dims)) * COUNTED_DTYPES[tensor.data_type]
    for sparse in graph.sparse_initializer:
        sizes[sparse.values.name] = 4 * int(np.prod(sparse.dims))
    for node in graph.node:
        if node.op_type == "Constant":
            tensor = node.attribute[0].t
            sizes[node.output[0]] = 4 * int(np.prod(tensor.dims))
    return sum(sizes.values())


@pytest.mark.parametrize("name", _names())
def test_odd_models_are_analyzed(name: str, tmp_path: Path) -> None:
    model = WORKING[name]()
    path = saved(model, tmp_path)
    for session in ("tuned", "default"):
        analysis = analyze(path, session=session)
        # A plain session adds folded constants when it loads the file, and drops unread weights.
        if session == "tuned":
            assert analysis.timeline.resident_bytes == _bytes(model)
        assert sum(analysis.by_class.values()) == analysis.timeline.peak_bytes
        assert analysis.floor_bytes <= analysis.timeline.peak_bytes
        names = [node.name for node in analysis.graph.nodes]
        assert all(names)
        assert len(names) == len(set(names))
    assert path.read_bytes() == model.SerializeToString()


NOT_COUNTED_EXACTLY = {"sequences", "local_function"}  # and the assumptions say so
NOT_RUNNABLE = {"doubled_names", "unknown_operator"}  # ONNX Runtime refuses them


@pytest.mark.parametrize("name", _names(NOT_COUNTED_EXACTLY | NOT_RUNNABLE))
def test_odd_models_are_predicted_to_the_byte(name: str, tmp_path: Path) -> None:
    from memplan.runtime.messages import RunRequest
    from memplan.runtime.profiled import profiled_runs
    from memplan.runtime.session_options import session_options

    path = saved(WORKING[name](), tmp_path)
    analysis = analyze(path)
    feeds = feeds_of(WORKING[name]())
    result = profiled_runs(str(path), RunRequest(threads=1), feeds, session_options("tuned"))
    assert result.dynamic_bytes == analysis.timeline.dynamic_peak_bytes


@pytest.mark.parametrize("opset", range(7, 26))
def test_every_opset_gives_the_same_answer(opset: int, tmp_path: Path) -> None:
    assert analyze(saved(odd.training(opset), tmp_path)).timeline.peak_bytes == 6824


def _noted(analysis: Analysis, *words: str) -> bool:
    return any(all(word in note for word in words) for note in analysis.assumptions)


def test_an_unknown_operator_is_named_and_counted_in_full(tmp_path: Path) -> None:
    known = analyze(saved(odd.training(), tmp_path, "known.onnx"))
    unknown = analyze(saved(odd.unknown_operator(), tmp_path))
    assert _noted(unknown, "acme.ops:Swoosh", "every output gets its own buffer")
    assert not known.assumptions
    sizes = {tensor.name: tensor.nbytes for tensor in unknown.graph.tensors}
    buffers = {unknown.graph.tensors[b.root].name: b for b in unknown.timeline.allocation.buffers}
    assert buffers["a"].nbytes == sizes["a"] == 8 * 32 * 4
    assert unknown.timeline.peak_bytes >= known.timeline.peak_bytes


def test_an_unknown_operator_without_a_stated_shape_is_an_error(tmp_path: Path) -> None:
    model = odd.unknown_operator()
    del model.graph.value_info[:]
    with pytest.raises(ModelError, match=r"shape of tensor 'a' \(output of Swoosh"):
        analyze(saved(model, tmp_path))


def test_what_is_not_counted_is_said(tmp_path: Path) -> None:
    analysis = analyze(saved(odd.sequences(), tmp_path))
    assert _noted(analysis, "sequences or optionals", "not counted", "pair", "maybe")
    for name in ("pair", "maybe", "sure"):
        tensor = analysis.graph.tensor_named(name)
        assert not tensor.counted
        assert tensor.nbytes == 0
    analysis = analyze(saved(odd.local_function(), tmp_path))
    assert _noted(analysis, "model-local functions", "runs their nodes later")


def test_bodies_are_counted_and_said(tmp_path: Path) -> None:
    assert _noted(analyze(saved(odd.conditional(), tmp_path)), "If 'pick'", "then_branch")
    assert _noted(analyze(saved(odd.loop(), tmp_path)), "Loop 'loop'", "× 3")
    assert _noted(analyze(saved(odd.scan(), tmp_path)), "Scan 'scan'", "× 8")


@pytest.mark.parametrize("as_node", [False, True])
def test_a_longer_loop_stacks_more(as_node: bool, tmp_path: Path) -> None:
    one = 8 * 32 * 4
    peaks = [
        analyze(saved(odd.loop(trips, as_node=as_node), tmp_path)).timeline.peak_bytes
        for trips in (3, 4, 13)
    ]
    # Every further iteration holds one more stacked tensor.
    assert peaks[1] - peaks[0] == one
    assert peaks[2] - peaks[1] == 9 * one


@pytest.mark.parametrize("trips", [2**63 - 1, 2**40, -3, 0])
def test_loops_that_only_a_condition_ends(trips: int, tmp_path: Path) -> None:
    # Exporters write the largest integer for ``while``.
    analysis = analyze(saved(odd.loop(trips, stacked=False), tmp_path))
    assert analysis.timeline.peak_bytes < 2**20
    assert _noted(analysis, "decided by data") == (trips > 0)


def test_a_default_that_a_run_may_replace_is_no_constant() -> None:
    model = odd.training()
    assert set(small_constants(model.graph)) == {"w1", "w2", "zero", "share"}
    model.graph.input.append(info("zero", []))
    assert set(small_constants(model.graph)) == {"w1", "w2", "share"}
    assert "zero" in small_constants(model.graph, defaults=True)
