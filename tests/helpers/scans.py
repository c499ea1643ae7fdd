"""Forward graphs with a Scan, as text."""

from typing import Any

import onnx
import onnx.parser

from helpers.gradients import draw

RNN = """
    <ir_version: 10, opset_import: ["" : 20]>
    rnn (double[3,2] x, double[4] h0, double[2,4] w, double[4,4] r, double[4] b)
        => (double[4] last, double[3,4] all)
    {
        [loop] last, all = Scan<num_scan_inputs = 1, body = step
            (double[4] h, double[2] xt) => (double[4] next, double[4] out)
            {
                [in] a = MatMul(xt, w)
                [rec] c = MatMul(h, r)
                [sum] s = Add(a, c)
                [bias] z = Add(s, b)
                [act] next = Tanh(z)
                [out] out = Identity(next)
            }>(h0, x)
    }"""


def feeds_for(model: onnx.ModelProto) -> dict[str, Any]:
    """Numbers for every input."""
    return {
        value.name: draw([d.dim_value for d in value.type.tensor_type.shape.dim], seed=k) / 2
        for k, value in enumerate(model.graph.input)
    }


def model_of_text(text: str, opset: int = 20) -> onnx.ModelProto:
    """A parsed model."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n' + text)


# Two states, of which one is an integer counter beside; axes and directions; a captured tensor that
# is used outside, too, and an initial state that is captured; an output that nobody asks for.
MIXED = """
    g (double[2,3] x, double[3,2] y, double[2] a, double[2] k)
        => (double[2] ea, double[2] eb, double[2,3] p, double[3,2] q)
        <int64 zero = {0}, int64 one = {1}>
    {
        [double] twice = Mul(k, a)
        [loop] ea, eb, count, p, q = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0],
            scan_input_directions = [0, 1], scan_output_axes = [-1, 0],
            scan_output_directions = [1, 0], body = step
            (double[2] s, double[2] t, int64 n, double[2] u, double[2] v)
                => (double[2] s1, double[2] t1, int64 n1, double[2] p1, double[2] q1)
            {
                [m] m = Mul(s, u)
                [s1] s1 = Sin(m)
                [mk] mk = Mul(t, k)
                [mv] mv = Add(mk, v)
                [t1] t1 = Tanh(mv)
                [n1] n1 = Add(n, one)
                [ma] ma = Mul(m, a)
                [p1] p1 = Mul(ma, t)
                [nf] nf = Cast<to = 11>(n)
                [q1] q1 = Mul(s1, nf)
            }>(a, twice, zero, x, y)
    }"""


# States that pass through, swap, take a slice or a constant; an output twice.
ODD = """
    g (double[3,2] x, double[2] a, double[2] b)
        => (double[2] ea, double[2] eb, double[2] ec, double[3,2] p, double[3,2] q, double[3,2] r)
    {
        [loop] ea, eb, ec, p, q, r = Scan<num_scan_inputs = 1, body = step
            (double[2] s, double[2] t, double[2] c, double[2] u)
                => (double[2] t, double[2] w, double[2] u, double[2] w, double[2] w, double[2] s)
                <double[2] five = {5.0, 0.5}>
            { [w] v = Mul(s, five) [w2] w = Mul(v, c) }>(a, b, b, x)
    }"""
