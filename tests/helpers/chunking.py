"""Graphs for chunks, and how they are chunked and run in tests."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx

import memplan
from helpers.graphs import TUNED, open_text, parse, tensor
from memplan.ir.graph import Graph
from memplan.ops.cost import flops
from memplan.passes.change import facts_of
from memplan.passes.chunk.choose_chunks import Chunks
from memplan.passes.chunk.chunk_state import State, chunked, state_of
from memplan.passes.chunk.part import Part
from memplan.passes.chunk.region import Region, grow
from memplan.passes.prune import Prune
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import simulate

Array = npt.NDArray[np.generic]

HEAD = """
g (float[R, D] x, float[V, D] w, int64[R] labels) => (float l, float[R, D] dx, float[V, D] dw)
<float minus = {-1}, int64[1] one = {1}, int64[1] none = {0}, int64[2] rv = {R, V},
 int64[2] r1 = {R, 1}, float zero = {0}, float share = {S}> {
    [h] h = Tanh(x)
    [wt] wt = Transpose <perm: ints = [1, 0]>(w)
    [mm] logits = MatMul(h, wt)
    [ls] ls = LogSoftmax <axis: int = 1>(logits)
    [at] at = Unsqueeze(labels, one)
    [pick] pick = GatherElements <axis: int = 1>(ls, at)
    [loss] l0 = ReduceMean <keepdims: int = 0>(pick, none)
    [neg] l1 = Neg(l0)
    [flat] l = Squeeze(l1)
    [zeros] zeros = Expand(zero, rv)
    [g] g = Expand(share, r1)
    [scatter] scatter = ScatterElements <axis: int = 1>(zeros, at, g)
    [exp] exp = Exp(ls)
    [total] total = ReduceSum(scatter, one)
    [back] back = Mul(exp, total)
    [dl] dl = Sub(scatter, back)
    [dh] dh = MatMul(dl, w)
    [dt] dt = Transpose <perm: ints = [1, 0]>(dl)
    [dw] dw = MatMul(dt, h)
    [hh] hh = Mul(h, h)
    [one] dh1 = Mul(dh, hh)
    [dx] dx = Sub(dh, dh1)
}
"""
"""Logits, cross-entropy and their gradients, as PyTorch exports them. R rows, D wide, V classes."""


def head(rows: int = 8, width: int = 4, classes: int = 64) -> str:
    """:data:`HEAD` at some size."""
    sizes = {"R": rows, "D": width, "V": classes, "S": -1.0 / rows}
    text = HEAD
    for name, size in sizes.items():
        for left in ("[", "{", " "):
            for right in ("]", "}", ","):
                text = text.replace(f"{left}{name}{right}", f"{left}{size}{right}")
    return text


ATTENTION = """
g (float[4, 16, 2] q, float[4, 2, 16] k, float[4, 16, 2] v, float[4, 16, 2] g)
=> (float[4, 16, 2] y, float[4, 16, 2] dv, float[4, 16, 2] dq)
<int64[1] last = {-1}, int64[1] first = {0}> {
    [qk] s = MatMul(q, k)
    [p] p = Softmax(s)
    [y] y = MatMul(p, v)
    [top] top = ReduceMax(y, first)
    [far] y2 = Mul(y, top)
    [dy] dy = Add(y2, g)
    [pt] pt = Transpose <perm: ints = [0, 2, 1]>(p)
    [dv] dv = MatMul(pt, dy)
    [vt] vt = Transpose <perm: ints = [0, 2, 1]>(v)
    [dp] dp = MatMul(dy, vt)
    [m] m = Mul(dp, p)
    [t] t = ReduceSum(m, last)
    [pm] pm = Mul(p, t)
    [ds] ds = Sub(m, pm)
    [kt] kt = Transpose <perm: ints = [0, 2, 1]>(k)
    [dq] dq = MatMul(ds, kt)
}
"""
"""Attention and its gradients. What stands between needs the results of all batches."""


def state_from(text: str | onnx.ModelProto, dims: dict[str, int] | None = None) -> State:
    """A graph that nothing is chunked in and that has no dead nodes, simulated."""
    model = open_text(text, dims=dims)
    timeline = simulate(model.graph, TUNED)
    model = Prune().apply(model, timeline).model  # as it runs ahead of the chunks
    return state_of(model, simulate(model.graph, TUNED))


def region_of(state: State, name: str, axis: int, smallest: int | None = None) -> Region | None:
    """The region around a tensor; ``smallest``: a quarter of its bytes, unless given."""
    seed = tensor(state.model.graph, name)
    return grow(
        facts_of(state.model), seed.id, axis, seed.nbytes // 4 if smallest is None else smallest
    )


def in_chunks(state: State, name: str, axis: int, count: int) -> State:
    """The graph with the region around a tensor in chunks."""
    region = region_of(state, name, axis)
    assert region is not None
    return chunked(state, [Part((region,), count)])


def member_names(state: State, region: Region) -> str:
    """The nodes of a region."""
    return " ".join(state.model.graph.nodes[n].name for n in region.uses)


def runs(model: OpenModel | onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What a model gives on ONNX Runtime, unoptimized, by output."""
    from helpers.sessions import RAW, outputs

    return outputs(model.prepared.proto if isinstance(model, OpenModel) else model, feeds, RAW)


def drawn(model: OpenModel, seed: int = 0, classes: int = 2) -> dict[str, Array]:
    """Inputs for a graph: floats around 0, whole numbers below ``classes``."""
    source = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for index in model.graph.inputs:
        value = model.graph.tensors[index]
        if value.dtype == onnx.TensorProto.FLOAT:
            feeds[value.name] = source.standard_normal(value.shape).astype(np.float32)
        else:
            feeds[value.name] = source.integers(0, classes, value.shape)
    return feeds


def layered(depth: int = 4, rows: int = 2048, width: int = 8) -> onnx.ModelProto:
    """A training step of some layers, each with a residual: the mean squared error over the rows
    that count, by the weights."""
    lines = ["[count] count = ReduceSum <keepdims: int = 0>(mask)"]
    shown = ["h0 = Identity(x)"]
    for k in range(depth):
        shown += [f"[a{k}] a{k} = MatMul(h{k}, u{k})", f"[t{k}] t{k} = Tanh(a{k})"]
        shown += [f"[b{k}] b{k} = MatMul(t{k}, v{k})", f"[h{k + 1}] h{k + 1} = Add(h{k}, b{k})"]
    shown += lines
    weights = [f"{name}{k}" for k in range(depth) for name in "uv"]
    sizes = {"u": f"float[{width}, {8 * width}]", "v": f"float[{8 * width}, {width}]"}
    given = ", ".join(f"{sizes[name[0]]} {name}" for name in weights)
    text = f"""g (float[{rows}, {width}] x, float[{rows}, 1] mask, {given}) => (float loss) {{
        {chr(10).join(shown)}
        [sq] sq = Mul(h{depth}, h{depth})  [on] on = Mul(sq, mask)
        [sum] sum = ReduceSum <keepdims: int = 0>(on)  [loss] loss = Div(sum, count)
    }}"""
    return memplan.gradients(parse(text), "loss", weights)


def products(graph: Graph) -> float:
    """FLOPs of all products."""
    return sum(flops(graph, node) for node in graph.nodes if node.op in ("MatMul", "Gemm"))


def by_pass(chunks: Chunks, text: str | onnx.ModelProto) -> tuple[State, State, str]:
    """Before, after, and what was done."""
    state = state_from(text)
    found = chunks.apply(state.model, state.timeline)
    return state, state_of(found.model, simulate(found.model.graph, TUNED)), found.note
