"""The module of every node: from the exporter's metadata, else from parameter names."""

import pytest
from onnx import helper

from helpers.graphs import open_text, parse
from memplan.ir.modules import NO_MODULE
from memplan.simulate.opened import OpenModel

STEP = """
g (float[8,4] x, float[8,4] y, float[4,4] "enc.layer.0.attn.q.weight",
   float[4,4] "enc.layer.1.mlp.weight", float[4] "norm.scale", float[4,4] plain)
   => (float loss, float[4,4] plain_grad) <float k = {0.1}>
{
    [input] i = Mul(x, k)
    [mlp_t] wt = Transpose<perm = [1, 0]>("enc.layer.1.mlp.weight")
    [attn] a = MatMul(i, "enc.layer.0.attn.q.weight")
    [act] b = Relu(a)
    [before] c = Neg(b)
    [mlp] d = MatMul(c, wt)
    [norm] e = Mul(d, "norm.scale")
    [last] p = MatMul(e, plain)
    [diff] r = Sub(p, y)
    [mean] loss = ReduceMean<keepdims = 0>(r)
    [head] g = Mul(r, k)
    [dw] plain_grad = Gemm<transA = 1>(e, g)
}
"""


def by_node(model: OpenModel) -> dict[str, str]:
    """Module by node name."""
    return dict(zip((n.name for n in model.graph.nodes), model.modules, strict=True))


def recorded(**values: dict[str, str]) -> OpenModel:
    """The step with ``metadata_props`` of some nodes (by node name)."""
    proto = parse(STEP)
    for node in proto.graph.node:
        helper.set_metadata_props(node, values.get(node.name, {}))
    return open_text(proto)


def trained(*names: str) -> str:
    """The step with gradients of further parameters, which makes them parameters at all."""
    outputs = "".join(f', float[4,4] "{name}_grad"' for name in names)
    nodes = "".join(f'"{name}_grad" = Gemm<transA = 1>(e, g)\n' for name in names)
    return STEP.replace("plain_grad)", f"plain_grad{outputs})").rstrip()[:-1] + nodes + "}"


LAYERS = ("enc.layer.0.attn.q.weight", "enc.layer.1.mlp.weight")


def test_modules_from_parameter_names() -> None:
    found = by_node(open_text(trained(*LAYERS)))
    assert found["input"] == NO_MODULE  # no parameter was read yet
    # Cut one level behind the last layer index.
    assert found["attn"] == "enc.layer.0.attn"
    assert found["act"] == found["before"] == "enc.layer.0.attn"
    # A transposed weight still belongs to its layer, and so does whoever reads it.
    assert found["mlp_t"] == found["mlp"] == "enc.layer.1.mlp"
    assert found["last"] == "plain"
    assert found["diff"] == found["mean"] == "loss"
    assert found["head"] == found["dw"] == NO_MODULE


def test_what_is_no_parameter_names_no_module() -> None:
    found = by_node(open_text(trained(*LAYERS)))
    # norm.scale has no gradient here: it is an input like any other.
    assert found["norm"] == "enc.layer.1.mlp"


def test_recorded_modules_win() -> None:
    scopes = {"pkg.torch.onnx.name_scopes": "['', 'encoder', 'encoder.mlp', 'relu_1']"}
    found = by_node(recorded(act=scopes, head={"memplan.module": "mine"}, attn={"other": "x"}))
    assert found["act"] == "encoder.mlp"
    assert found["head"] == "mine"
    assert found["mlp"] != "encoder.mlp"


@pytest.mark.parametrize("scopes", ["['', 'mul_3']", "no list", "", "["])
def test_scopes_that_name_no_module_are_passed_over(scopes: str) -> None:
    plain = by_node(open_text(STEP))
    found = by_node(recorded(last={"pkg.torch.onnx.name_scopes": scopes}))
    assert found == plain
    assert found["last"] == "plain"


@pytest.mark.parametrize("scopes", ["3", "None"])
def test_scopes_that_are_no_list_are_passed_over(scopes: str) -> None:
    assert by_node(recorded(last={"pkg.torch.onnx.name_scopes": scopes}))["last"] == "plain"
