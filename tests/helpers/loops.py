"""Training graphs with pairs of loops, for tests."""

from pathlib import Path

import onnx
import onnx.parser

from helpers.graphs import TUNED, parse
from memplan.autodiff.backward import Request, build_gradients
from memplan.ops.cost import device_for
from memplan.passes.loops.loop_pairs import RecurrentPair, find_pairs
from memplan.passes.loops.loop_rewrite import store_less
from memplan.passes.loops.loop_step import PairStep, named, read_step
from memplan.planning.costs import NodeCosts
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.timeline import simulate

COSTS = NodeCosts("estimate", device_for("cpu"), "cpu")

# h is kept by an output; c by nobody. The gate reads both states, the Split has three outputs.
CELL = """
    <ir_version: 10, opset_import: ["" : 20]>
    cell (float[T,N,4] x, float[N,4] h0, float[N,4] c0, float[4,12] w, float[4,12] r)
        => (float[N,4] h_last, float[N,4] c_last, float[T,N,4] all)
    {
        [loop] h_last, c_last, all = Scan<num_scan_inputs = 1, body = step
            (float[N,4] h, float[N,4] c, float[N,4] xt)
                => (float[N,4] next, float[N,4] after, float[N,4] out)
            {
                [in] a = MatMul(xt, w)
                [rec] b = MatMul(h, r)
                [sum] s = Add(a, b)
                [split] i, f, g = Split<axis = -1, num_outputs = 3>(s)
                [si] ii = Sigmoid(i)
                [sf] ff = Sigmoid(f)
                [tg] gg = Tanh(g)
                [fc] fc = Mul(ff, c)
                [ig] ig = Mul(ii, gg)
                [after] after = Add(fc, ig)
                [next] next = Tanh(after)
                [out] out = Identity(next)
            }>(h0, c0, x)
    }"""


def parsed(text: str, **sizes: int) -> onnx.ModelProto:
    """The model in a text, with sizes put in for names."""
    for name, size in sizes.items():
        text = text.replace(f"[{name},", f"[{size},").replace(f",{name},", f",{size},")
    return onnx.parser.parse_model(text)


def trained(model: onnx.ModelProto) -> OpenModel:
    """The training graph: gradients of all outputs, which are given, by all float inputs."""
    names = [value.name for value in model.graph.output]
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    xs = [v.name for v in model.graph.input if v.type.tensor_type.elem_type in floats]
    made = build_gradients(model, Request(tuple(names), tuple(xs), tuple(f"d_{n}" for n in names)))
    return opened(prepare(made, Path("test.onnx"), {}))


def cell(steps: int = 5, batch: int = 3) -> OpenModel:
    """The training graph of ``CELL``."""
    return trained(parsed(CELL, T=steps, N=batch))


def layer(op: str, steps: int, batch: int, width: int, hidden: int, layers: int = 1) -> OpenModel:
    """The training graph of recurrent layers: LSTM, GRU or RNN."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * hidden
    inputs, nodes, source = [f"float[{steps},{batch},{width}] x"], [], "x"
    for k in range(layers):
        wide = hidden if k else width
        inputs.append(f"float[1,{gates},{wide}] w{k}, float[1,{gates},{hidden}] r{k}")
        inputs.append(f"float[1,{2 * gates}] b{k}")
        nodes.append(
            f"[layer{k}] y{k} = {op} <hidden_size = {hidden}> ({source}, w{k}, r{k}, b{k}) "
            f"[squeeze{k}] z{k} = Squeeze (y{k}, one)"
        )
        source = f"z{k}"
    return trained(
        parse(f"""layers ({", ".join(inputs)}) => (float[{steps},{batch},{hidden}] {source})
            <int64[1] one = {{1}}> {{ {" ".join(nodes)} }}""")
    )


def pairs_of(model: OpenModel) -> tuple[RecurrentPair, ...]:
    """The pairs of an open model."""
    prepared = model.prepared
    return find_pairs(prepared.bound, prepared.types, model.graph, model.phases)


def steps_of(model: OpenModel) -> list[PairStep]:
    """Their steps."""
    protos = [n for n in model.prepared.proto.graph.node if n.op_type != "Constant"]
    return [read_step(p, model.graph, protos, COSTS.estimate, True) for p in pairs_of(model)]


def reopened(model: onnx.ModelProto, **dims: int) -> OpenModel:
    """A rewritten model, opened."""
    return opened(prepare(model, Path("test.onnx"), dims))


def recompute_in_scans(model: onnx.ModelProto, wish: str, **dims: int) -> onnx.ModelProto:
    """A training graph in which named tensors of pairs are made again instead of stored; the same
    if it has no pairs."""
    before = opened(prepare(model, Path("test.onnx"), dims))
    steps = steps_of(before)
    if not steps:
        return model
    rows = list(zip(steps, named(steps, wish), strict=True))
    return store_less(before.prepared.proto, rows, bool(dims))


def peak(model: OpenModel) -> int:
    """The predicted dynamic peak."""
    return simulate(model.graph, TUNED).dynamic_peak_bytes
