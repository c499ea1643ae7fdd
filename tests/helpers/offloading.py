"""Steps for tests of ``--offload``: weights that are shared, a stash per layer."""

from contextlib import AbstractContextManager
from dataclasses import replace
from unittest.mock import patch

import onnx

import memplan
from helpers.graphs import parse
from memplan.ops.cost import DEVICES
from memplan.simulate.session import session_kind

CUDA = session_kind("tuned", "cuda")


def linked(bytes_per_second: float) -> AbstractContextManager[object]:
    """The device that CUDA gets, behind a link to the host of this speed."""
    device = replace(
        DEVICES["h200"], host_bytes_per_second=bytes_per_second, host_source="a link of a test"
    )
    return patch.dict(DEVICES, {"h200": device})


def deep(layers: int = 6, size: int = 64) -> onnx.ModelProto:
    """Products and Tanh in turn: a stash of ``size`` x ``size`` floats per layer."""
    body, last = [], "x"
    for k in range(layers):
        body.append(f"m{k} = MatMul({last}, w)  a{k} = Tanh(m{k})")
        last = f"a{k}"
    kind = f"float[{size},{size}]"
    text = f"""step ({kind} x, {kind} w) => (float loss)
        {{ {"  ".join(body)}  loss = ReduceMean<keepdims = 0>({last}) }}"""
    return named(memplan.gradients(parse(text), ["loss"], ["w"]))


# The stash is drawn at random, so that nothing recomputes it; a wide layer in between.
DRAWN = """
step (float[64,64] x) => (float y)
{
    [draw] r = RandomNormalLike<seed = 1.0>(x)
    [first] a = Mul(r, x)
    [one] b = Tanh(a)
    [two] c = Concat<axis = 0>(b, b, b, b)
    [three] d = Tanh(c)
    [four] e = ReduceSum<keepdims = 0>(d)
    [last] f = Mul(r, e)
    [sum] y = ReduceSum<keepdims = 0>(f)
}"""


def named(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model; nodes without a name get one."""
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{index}_{node.op_type}"
    return model
