"""What lies between two peaks: to the byte, rightly named, whatever the nodes are called."""

import json
import time
from typing import Any

import onnx
import pytest

import memplan
from helpers.chunking import head, in_chunks, state_from
from helpers.effort import THOROUGH
from helpers.graphs import parse
from helpers.models import SAMPLES
from helpers.offloading import deep, linked
from helpers.renaming import renamed, sums
from helpers.training_steps import chain, long_skips, symbolic_batch, weights, with_dropout
from memplan.api.diff.diff_result import Diff, left_the_peak
from memplan.api.diff.diffing import compare_analyses, diff
from memplan.api.diff.peak_changes import Change, How
from memplan.errors import UsageError

LAYERS = "abcdefgh"
KIB = 1024
DRAWN_MASKS = """
g (float[64, 128] x) => (float[] z) <float ratio = {0.25}, bool on = {1}>
{
    [d1] a, m1 = Dropout<seed: int = 1>(x, ratio, on)
    [e1] b = Tanh(a)
    [d2] c, m2 = Dropout<seed: int = 2>(b, ratio, on)
    [f2] f2 = Cast<to: int = 1>(m2)
    [g2] g2 = Mul(c, f2)
    [f1] f1 = Cast<to: int = 1>(m1)
    [g1] g1 = Mul(g2, f1)
    [z] z = ReduceSum<keepdims: int = 0>(g1)
}"""


def built(body: str, batch: str = "float[512, 32]", names: str = LAYERS) -> onnx.ModelProto:
    """A step over that forward part, which ends in ``h``."""
    text = f"g ({batch} x, {weights(names)}) => (float loss) {{ {body} "
    model = parse(f"{text} loss = ReduceSum <keepdims = 0> (h) }}")
    return memplan.gradients(model, "loss", [f"w{name}" for name in names])


def plain() -> onnx.ModelProto:
    return built(chain("x", LAYERS))


def kinds(found: Diff) -> dict[Change, int]:
    """Bytes by what became of tensors."""
    total: dict[Change, int] = {}
    for change in found.changes:
        total[change.change] = total.get(change.change, 0) + change.delta_bytes
    return total


@pytest.mark.parametrize("name", ["gpt_dropout", "lstm", "unet"])
def test_another_exporter_is_no_difference(name: str) -> None:
    model = onnx.load(SAMPLES / f"{name}.onnx", load_external_data=False)
    found = diff(model, renamed(model))
    assert found.graph.same
    assert found.graph.renamed == len(found.old.graph.nodes)
    assert found.changes == ()
    assert found.delta_bytes == 0
    assert all(before == after for before, after in found.counterparts.nodes.items())


def test_a_stash_more() -> None:
    """An operator whose output the backward pass reads: found, though every name after it moved."""
    more = renamed(built(chain("x", "abcd") + " d9 = Exp(d) " + chain("d9", "efgh")))
    found = diff(plain(), more)
    sums(found)
    assert found.delta_bytes == 64 * KIB
    (appeared,) = [c for c in found.changes if c.change is Change.APPEARED and c.delta_bytes > KIB]
    assert (appeared.delta_bytes, appeared.tensor_class) == (64 * KIB, "stash")
    producer = found.new.graph.tensor_named(appeared.name)
    assert found.new.graph.nodes[producer.producer].op == "Exp"
    assert found.graph.added["Exp"] == 1


def test_a_type_widened() -> None:
    wide = plain()
    for value in (*wide.graph.input, *wide.graph.output, *wide.graph.value_info):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for value in wide.graph.initializer:
        if value.data_type == onnx.TensorProto.FLOAT:
            value.CopyFrom(
                onnx.numpy_helper.from_array(
                    onnx.numpy_helper.to_array(value).astype("float64"), value.name
                )
            )
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and attribute.t.data_type == onnx.TensorProto.FLOAT:
                array = onnx.numpy_helper.to_array(attribute.t).astype("float64")
                attribute.t.CopyFrom(onnx.numpy_helper.from_array(array))
    found = diff(plain(), wide)
    sums(found)
    assert set(kinds(found)) == {Change.GREW}
    assert ("float", "double") in found.graph.retyped
    assert not found.graph.added


def test_a_fusion_lost() -> None:
    fused = "a0 = MatMul(x, wa) h = Softmax <axis = -1> (a0)"
    apart = (
        "a0 = MatMul(x, wa) top = ReduceMax(a0) low = Sub(a0, top) e = Exp(low) "
        "axes = Constant <value = int64[1] {1}> () s = ReduceSum(e, axes) h = Div(e, s)"
    )
    found = diff(built(fused, names="a"), built(apart, names="a"))
    sums(found)
    assert found.delta_bytes > 0
    assert found.graph.removed["Softmax"] == 1
    assert found.graph.added["Exp"] >= 1
    largest = found.groups[0].first
    assert largest.change in (Change.APPEARED, Change.LONGER)


def test_another_order() -> None:
    """The same nodes, gradients of weights last: they hold what they read."""
    late = plain()
    nodes = list(late.graph.node)
    ends = [n for n in nodes if any(o.name in n.output for o in late.graph.output)]
    rest = [n for n in nodes if n not in ends]
    del late.graph.node[:]
    late.graph.node.extend([*rest, *ends])
    found = diff(plain(), late)
    sums(found)
    assert found.delta_bytes > 0
    assert found.graph.moved > 0
    assert not {**found.graph.added, **found.graph.removed}
    assert not found.graph.resized
    assert Change.LONGER in kinds(found)
    assert Change.APPEARED not in kinds(found)


def test_a_batch_doubled() -> None:
    found = diff(symbolic_batch(), symbolic_batch(), {"N": 512}, new_dims={"N": 1024})
    sums(found)
    assert set(kinds(found)) == {Change.GREW}
    assert not {**found.graph.added, **found.graph.removed}
    assert not found.graph.moved
    assert {c.new_bytes for c in found.changes if c.tensor_class == "stash"} == {128 * KIB}


def test_a_layer_more_under_other_names() -> None:
    found = diff(plain(), renamed(built(chain("x", "abcdefgih"), names=f"{LAYERS}i")))
    sums(found)
    stashes = [c for c in found.changes if c.tensor_class == "stash"]
    assert [c.change for c in stashes] == [Change.APPEARED]
    weight = next(c for c in found.changes if c.tensor_class == "weights")
    assert (weight.change, weight.delta_bytes) == (Change.APPEARED, 4 * KIB)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "how"), [(long_skips, How.RECOMPUTED), (with_dropout, How.REBUILT)]
)
def test_a_rewrite_says_what_left_the_peak_and_how(make: Any, how: How) -> None:
    model = make()
    result = memplan.rewrite(model, memplan.RewriteOptions("min", strategy="greedy"))
    found = diff(model, result.model)
    sums(found)
    assert found.delta_bytes == result.timeline.peak_bytes - result.original.timeline.peak_bytes
    left = left_the_peak(found)
    assert left[how][0] >= 1
    copied = {name.split("/recompute")[0] for name in result.plan.recomputed}
    for change in found.changes:
        if change.how is How.RECOMPUTED:
            producer = found.old.graph.tensor_named(change.name)
            members = _members(found, producer.id)
            assert members & copied, change.name
    back = diff(result.model, model)
    assert back.delta_bytes == -found.delta_bytes
    sums(back)


@pytest.mark.slow
def test_a_rewrite_that_offloads() -> None:
    model = deep(size=128)
    options = memplan.RewriteOptions(
        "75%", provider="cuda", optimize="none", offload=True, strategy="greedy"
    )
    with linked(400e12):
        result = memplan.rewrite(model, options)
    found = diff(model, result.model, provider="cuda")
    sums(found)
    count = len(result.offload.tensors)
    assert left_the_peak(found) == {How.OFFLOADED: (count, result.offload.out_bytes)}


@pytest.mark.slow
def test_a_rewrite_that_packs() -> None:
    """A mask that was drawn: nothing computes it again."""
    options = memplan.RewriteOptions(
        "min", strategy="search{iterations=6}", passes="none", optimize="none"
    )
    found = diff(parse(DRAWN_MASKS), memplan.rewrite(parse(DRAWN_MASKS), options).model)
    sums(found)
    assert left_the_peak(found) == {How.PACKED: (1, 64 * 128)}


def test_chunks_are_no_counterparts_of_what_they_are_parts_of() -> None:
    """Though one of them may have the whole's place in the graph."""
    text = head(rows=64, classes=512)
    chunks = in_chunks(state_from(text), "logits", 0, 4).model.prepared.proto
    found = diff(parse(text), chunks)
    sums(found)
    whole = {c.name: c for c in found.changes if c.how is How.CHUNKED}
    assert {"back", "exp", "zeros"} <= set(whole)
    assert all(c.change is Change.GONE and not c.new_bytes for c in whole.values())
    assert left_the_peak(found)[How.CHUNKED] == (
        len(whole),
        sum(c.old_bytes for c in whole.values()),
    )
    same = diff(chunks, renamed(chunks))
    assert same.changes == ()


def _members(found: Diff, tensor: int) -> set[str]:
    """Nodes that made what lies in the buffer of an old tensor."""
    allocation, graph = found.old.timeline.allocation, found.old.graph
    members = allocation.buffers[allocation.buffer_of[tensor]].members
    return {graph.nodes[graph.tensors[t].producer].name for t in members}


def test_names_of_copies_may_run_in_a_circle() -> None:
    """Metadata is what anybody wrote."""
    model = plain()
    first, second = model.graph.node[0], model.graph.node[1]
    for node, other in ((first, second), (second, first)):
        node.metadata_props.add(key="memplan.role", value="recompute")
        node.metadata_props.add(key="memplan.of", value=other.name)
    sums(diff(plain(), model))
    sums(diff(model, model))


def test_a_node_that_makes_less_is_the_same_node() -> None:
    """As a LayerNormalization whose mean only a copy of it gives, once a rewrite has made one."""
    step = "g (float[8, 1, 128] x) => (float[] z) {{ {} z = ReduceSum<keepdims = 0>(b) }}"
    pool = "MaxPool<kernel_shape = [2]>(x)"
    old = parse(step.format(f"a, i = {pool} j = Cast<to = 1>(i) b = Add(a, j)"))
    new = parse(step.format(f"a = {pool} b = Add(a, a)"))
    found = diff(old, new).graph
    assert (found.added, found.removed) == ({}, {"Cast": 1})


def test_dimensions_that_one_model_does_not_have() -> None:
    found = diff(symbolic_batch(), plain(), {"N": 512})
    assert found.changes == ()
    with pytest.raises(UsageError, match="--dim M: neither model"):
        diff(symbolic_batch(), plain(), {"N": 512, "M": 3})


def test_json_has_a_schema_and_sums() -> None:
    found = json.loads(json.dumps(diff(plain(), renamed(plain())).as_json()))
    assert found["schema"] == "memplan.diff/1"
    assert found["delta_bytes"] == found["new"]["peak_bytes"] - found["old"]["peak_bytes"]
    assert found["graph"]["renamed_nodes"] == found["graph"]["common_nodes"]


@pytest.mark.slow
def test_ten_thousand_nodes_take_seconds() -> None:
    layers = 2500 if THOROUGH else 500
    names = [f"n{k}_" for k in range(layers)]
    body, last = [], "x"
    for name in names:
        body.append(f"{name}0 = MatMul({last}, w) {name} = Tanh({name}0)")
        last = name
    text = f"g (float[8, 8] x, float[8, 8] w) => (float loss) {{ {' '.join(body)} "
    model = parse(f"{text} loss = ReduceSum <keepdims = 0> ({last}) }}")
    step = memplan.gradients(model, "loss", ["w"])
    old = memplan.analyze(step)
    new = memplan.analyze(renamed(step))
    started = time.process_time()
    found = compare_analyses(old, new)
    assert time.process_time() - started < 5
    assert found.changes == ()
