"""What is constant in a forward graph because its sizes are."""

import onnx

import memplan
from memplan.autodiff.forward.expand import emitter_for

EXPORTED = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[7,N,6] x, float[20,6] w, float[20,5] r, float[1,3,5] begin) => (float loss)
<int64[1] zero = {0}, int64[1] four = {4}, int64[1] twenty = {20}, int64 scale = {4}>
{
    hidden = Shape <start = 2, end = 3> (begin)
    all = Mul(hidden, scale)
    rows = Slice(w, zero, all, zero)
    w1 = Unsqueeze(rows, zero)
    recurrent = Slice(r, zero, all, zero)
    r1 = Unsqueeze(recurrent, zero)
    y = LSTM <hidden_size = 5> (x, w1, r1)
    loss = ReduceSum <keepdims = 0> (y)
}"""


def test_sizes_that_are_fixed_are_constants_and_others_are_not() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[N,4] x) => (int64[1] fixed, int64[1] free, int64[2] both)
        { fixed = Shape <start = 1> (x)  free = Shape <end = 1> (x)  both = Shape(x) }"""
    )
    constants = emitter_for(model, ()).constants
    assert constants["fixed"].tolist() == [4]
    assert not {"free", "both"} & set(constants)


def test_an_exporters_recurrent_layer_finds_its_hidden_size_by_a_shape() -> None:
    """Behind Unsqueeze and Slice, as torch.onnx.export(optimize=False) writes it."""
    trained = memplan.gradients(onnx.parser.parse_model(EXPORTED), "loss", ["w", "r"])
    assert {value.name for value in trained.graph.output} == {"loss", "w_grad", "r_grad"}
