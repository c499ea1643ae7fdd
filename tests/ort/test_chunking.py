"""Graphs in chunks on ONNX Runtime: results, proof and memory, at random and for real models."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from helpers.chunking import ATTENTION, Array, drawn, head, in_chunks, layered, runs, state_from
from helpers.effort import tries
from helpers.graphs import TUNED, parse
from helpers.models import runnable_models
from helpers.proofs import proof
from helpers.random_graphs import models
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.api.validate.validating import validate
from memplan.errors import UsageError
from memplan.options import ValidateOptions
from memplan.passes.change import facts_of
from memplan.passes.chunk.chunk_state import State, chunked
from memplan.passes.chunk.part import Part
from memplan.passes.chunk.region import Growth, grow
from memplan.passes.chunk.turn import between
from memplan.runtime.inputs import synthesize
from memplan.runtime.messages import RunRequest
from memplan.runtime.profiled import profiled_runs
from memplan.runtime.session_options import session_options
from memplan.simulate.timeline import simulate
from memplan.units import parse_size

pytestmark = pytest.mark.slow

QUIET = settings(
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),  # a counterexample is small as it is, and to shrink it takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def outputs(state: State, feeds: dict[str, Array]) -> dict[str, Array]:
    """Run in a tuned session; every step takes what was predicted."""
    graph = state.model.graph
    timeline = simulate(graph, TUNED)
    proto = state.model.prepared.proto
    result = profiled_runs(
        proto.SerializeToString(), RunRequest(threads=1), feeds, session_options("tuned")
    )
    assert [node.name for node in result.nodes] == [graph.nodes[n].name for n in timeline.order]
    measured = [node.nbytes - result.base_bytes for node in result.nodes]
    assert measured == timeline.dynamic.tolist()
    return runs(proto, feeds)


def check(before: State, after: State, feeds: dict[str, Array]) -> None:
    """The proof holds, memory is as predicted, and results are the same but for rounding."""
    found = proof(before.model.prepared.proto, after.model.prepared.proto)
    assert found.reason is None
    expected = outputs(before, feeds)
    for name, value in outputs(after, feeds).items():
        scale = float(np.abs(expected[name][np.isfinite(expected[name])]).max(initial=0.0))
        np.testing.assert_allclose(
            value, expected[name], rtol=1e-5, atol=1e-5 * scale, err_msg=name
        )


_UNARY = ("Tanh", "Exp", "Sigmoid", "Neg", "Relu", "Sqrt", "Erf")


_KINDS = ("unary", "binary", "bias", "row", "softmax", "norm", "pick", "scatter", "view")


@st.composite
def chunkable(draw: st.DrawFn) -> onnx.ModelProto:
    """Rows that get wide and narrow again, with whatever reduces or mixes them in between."""
    rows, width, classes = draw(st.sampled_from((4, 8))), 3, draw(st.sampled_from((16, 24)))
    nodes: list[onnx.NodeProto] = []
    wide = ["s0"]

    def add(op: str, reads: list[str], **attributes: object) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(op, reads, [name], name=f"n{len(nodes)}", **attributes))
        return name

    nodes.append(helper.make_node("MatMul", ["x", "w"], ["s0"], name="first"))
    made: list[str] = []
    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(_KINDS))
        a, b = (draw(st.sampled_from(wide)) for _ in range(2))
        if kind == "unary":
            wide.append(add(draw(st.sampled_from(_UNARY)), [a]))
        elif kind == "binary":
            wide.append(add(draw(st.sampled_from(("Add", "Mul", "Sub"))), [a, b]))
        elif kind == "bias":
            wide.append(add("Add", [a, "bias"]))
        elif kind == "row":
            op = draw(st.sampled_from(("ReduceSum", "ReduceMax", "ReduceMean")))
            row = add(op, [a, draw(st.sampled_from(("axis0", "axis1")))])
            wide.append(add(draw(st.sampled_from(("Add", "Sub"))), [b, row]))
        elif kind == "softmax":
            axis = draw(st.sampled_from((0, 1)))
            wide.append(add(draw(st.sampled_from(("Softmax", "LogSoftmax"))), [a], axis=axis))
        elif kind == "norm":
            wide.append(add("LayerNormalization", [a, "bias"]))
        elif kind == "pick":
            picked = add("GatherElements", [a, "labels"], axis=1)
            wide.append(add("Mul", [b, picked]))
        elif kind == "scatter":
            zeros = add("Expand", ["zero", "shape"])
            wide.append(add("ScatterElements", [zeros, "labels", "ones"], axis=1))
        else:
            folded = add("Reshape", [a, "folded"])
            wide.append(add("Reshape", [add("Tanh", [folded]), "shape"]))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("back", "weight", "fused", "sum", "loss")))
        a, b = (draw(st.sampled_from(wide)) for _ in range(2))
        if kind == "back":
            made.append(add("MatMul", [a, "wt"]))
        elif kind == "weight":
            made.append(add("MatMul", [add("Transpose", [a], perm=[1, 0]), "x"]))
        elif kind == "fused":
            made.append(add("Gemm", [a, b, "c"], transA=1))
        elif kind == "sum":
            made.append(add("ReduceSum", [a, "axis0"], keepdims=0))
        else:
            made.append(add("ReduceMean", [add("ReduceSum", [a, "axis1"]), "axis0"]))
    shape = [rows, classes]
    source = np.random.default_rng(0)

    def floats(name: str, *sizes: int) -> onnx.TensorProto:
        values = source.standard_normal(sizes).astype(np.float32) / 4
        return numpy_helper.from_array(values, name)

    def whole(name: str, *values: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.asarray(values, np.int64), name)

    constants = [
        *(floats("w", width, classes), floats("wt", classes, width), floats("bias", classes)),
        *(floats("c", classes, classes), floats("ones", rows, 1), floats("zero")),
        *(whole("axis0", 0), whole("axis1", 1), whole("shape", *shape)),
        whole("folded", 2, rows // 2, classes),
        numpy_helper.from_array(source.integers(0, classes, (rows, 1)), "labels"),
    ]
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, width])],
        [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(made)],
        constants,
    )
    opsets = [helper.make_opsetid("", 20)]
    inferred = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opsets, ir_version=10), data_prop=True
    )
    del inferred.graph.value_info[:]
    return inferred


@settings(QUIET, max_examples=tries(60))
@given(chunkable(), st.data())
def test_random_regions(model: onnx.ModelProto, data: st.DataObject) -> None:
    before = state_from(model)
    graph = before.model.graph
    seeds = [t for t in graph.tensors if t.producer >= 0 and len(t.shape) > 1]
    seed = data.draw(st.sampled_from(seeds))
    axis = data.draw(st.sampled_from(range(len(seed.shape))))
    smallest = data.draw(st.sampled_from((0, seed.nbytes // 4, seed.nbytes)))
    region = grow(facts_of(before.model), seed.id, axis, smallest)
    assume(region is not None)
    assert region is not None
    counts = [c for c in (2, 4) if region.divisor(graph) % c == 0]
    assume(counts)
    after = chunked(before, [Part((region,), data.draw(st.sampled_from(counts)))])
    check(before, after, dict(synthesize(graph)))


@settings(QUIET, max_examples=tries(60))
@given(models(), st.data())
def test_whatever_is_in_a_graph_stays_right(model: onnx.ModelProto, data: st.DataObject) -> None:
    """Graphs with everything: what cannot be chunked ends a region."""
    before = state_from(model)
    graph = before.model.graph
    seeds = [t for t in graph.tensors if t.producer >= 0 and t.shape and t.counted]
    assume(seeds)
    seed = data.draw(st.sampled_from(seeds))
    axis = data.draw(st.sampled_from(range(len(seed.shape))))
    region = grow(
        facts_of(before.model), seed.id, axis, data.draw(st.sampled_from((0, seed.nbytes)))
    )
    assume(region is not None)
    assert region is not None
    assume(region.divisor(graph) % 2 == 0)
    check(before, chunked(before, [Part((region,), 2)]), dict(synthesize(graph)))


@settings(QUIET, max_examples=tries(40))
@given(models(), st.data())
def test_whatever_lies_between_two_places(model: onnx.ModelProto, data: st.DataObject) -> None:
    """Layers are cut at any place of any graph, not at borders of layers alone."""
    before = state_from(model)
    graph = before.model.graph
    found = [t for t in graph.tensors if t.producer >= 0 and t.shape and t.counted]
    assume(found)
    seed = data.draw(st.sampled_from(found))
    growth = Growth(facts_of(before.model), -1)
    assume(growth.start(seed.id, data.draw(st.sampled_from(range(len(seed.shape)))), 1000))
    places = st.integers(0, len(graph.nodes) - 1)
    region = between(growth, *sorted((data.draw(places), data.draw(places))))
    assume(region is not None and region.divisor(graph) % 2 == 0)
    assert region is not None
    check(before, chunked(before, [Part((region,), 2)]), dict(synthesize(graph)))


@pytest.mark.parametrize("kind", ["layers", pytest.param("regions", marks=pytest.mark.nightly)])
def test_plain_sessions(kind: str, tmp_path: Path) -> None:
    """The runtime leaves the nodes as they are, in their order, and takes what was predicted."""
    model = parse(head(rows=1024, width=16, classes=300)) if kind == "regions" else layered()
    path, target = tmp_path / "model.onnx", tmp_path / "chunks.onnx"
    onnx.save(model, path)
    budget = parse_size("60%" if kind == "regions" else "40%")
    options = RewriteOptions(budget, chunk=kind, session="default", effort=5)
    result = rewrite(path, options, target)
    assert result.chunked
    assert not [note for note in result.assumptions if "changes the planned nodes" in note]
    found = validate(path, target, ValidateOptions(runs=1, draws=1))
    assert not found.findings
    assert found.rewritten.as_predicted
    assert found.rewritten.measured_peak_bytes <= result.budget_bytes


@pytest.mark.parametrize(("text", "seed"), [(head(), "logits"), (ATTENTION, "s")])
def test_training_steps(text: str, seed: str) -> None:
    before = state_from(text)
    check(before, in_chunks(before, seed, 0, 4), drawn(before.model, classes=64))


@pytest.mark.parametrize("wide", [64, 768])
def test_large_chunks_of_rows_give_the_same_bits(wide: int) -> None:
    """Whole blocks of summands, in the kernel's own order: bit for bit on this provider."""
    before = state_from(head(rows=1024, width=wide, classes=500))
    after = in_chunks(before, "logits", 0, 4)
    feeds = drawn(before.model, classes=500)
    expected, found = outputs(before, feeds), outputs(after, feeds)
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_symbolic_sizes_are_those_that_were_given(tmp_path: Path) -> None:
    text = head(rows=1024, width=16, classes=300).replace("float[1024, 16] x", "float[N, 16] x")
    text = text.replace("int64[1024] labels", "int64[N] labels")
    model, target = tmp_path / "head.onnx", tmp_path / "chunks.onnx"
    onnx.save(parse(text), model)
    options = RewriteOptions(parse_size("50%"), chunk="auto", strategy="search{iterations=6}")
    result = rewrite(model, options, target, dims={"N": 1024})
    assert result.equivalence.rounded
    quick = ValidateOptions(plain=False, runs=1, draws=1)
    found = validate(model, target, quick)
    assert not found.findings
    assert found.rewritten.as_predicted
    assert not validate(model, target, quick, dims={"N": 1024}).findings
    with pytest.raises(UsageError, match="for N=1024"):
        validate(model, target, quick, dims={"N": 512})


@pytest.mark.parametrize("path", [p for p in runnable_models() if p.stem == "gpt"], ids=str)
def test_a_real_model_is_judged_up_to_rounding(path: Path, tmp_path: Path) -> None:
    options = RewriteOptions(parse_size("70%"), chunk="2", strategy="search{iterations=6}")
    target = tmp_path / "chunked.onnx"
    result = rewrite(path, options, target)
    step = next(step for step in result.passes if step.name == "chunk")
    assert step.changed
    assert result.equivalence.rounded
    found = validate(path, target, ValidateOptions(plain=False, runs=1))
    assert not found.findings
    assert not found.proved
    assert found.rewritten.as_predicted
    assert (
        any("judged up to rounding" in note for note in found.notes) or found.equality == "bitwise"
    )
