"""What the training graphs of others state by their names, their order or not at all.

The graphs are small ones of the kind that onnx-ad 0.3, onnxsim 0.8, jax2onnx 0.17 and tf2onnx 1.17
write; see docs/guide.md.
"""

import pytest

from helpers.graphs import open_text
from memplan.ir.contract import Contract, find_contract
from memplan.ir.graph import Phase
from memplan.ir.roles import Role
from memplan.simulate.opened import OpenModel

# Gradients are called adj_X, of a loss whose own gradient is fed; bias gradients are columns.
ONNX_AD = """
  g (float[4,3] x, float[3,2] w, float[2] b, float[1,1] adj_loss)
    => (float loss, float[3,2] adj_w, float[2,1] adj_b) {
  y0 = MatMul(x, w)  y = Add(y0, b)  s = Mul(y, y)  loss = ReduceSum <keepdims = 0> (s)
  d0 = Mul(y, adj_loss)  d = Add(d0, d0)
  t = Transpose <perm = [1, 0]> (x)  adj_w = MatMul(t, d)
  a = Constant <value_ints = [0]> ()  c = ReduceSum <keepdims = 0> (d, a)
  n = Constant <value_ints = [1]> ()  adj_b = Unsqueeze(c, n)
}"""
# Adam with names that say nothing: moments are scaled before a gradient is added.
ONNXSIM = """
  g (float[4,3] x, float[3,2] v_7, float[3,2] m_6, float[3,2] w, float lr, float correction)
    => (float[3,2] add_9, float[3,2] add_5, float[3,2] sub_2, float loss)
  <float p = {0.9}, float q = {0.1}, float e = {0.00000001}> {
  y = MatMul(x, w)  s = Mul(y, y)  loss = ReduceSum <keepdims = 0> (s)
  d = Add(y, y)  t = Transpose <perm = [1, 0]> (x)  k = MatMul(t, d)
  m0 = Mul(m_6, p)  m1 = Mul(k, q)  add_5 = Add(m0, m1)
  v0 = Mul(v_7, p)  k2 = Mul(k, k)  v1 = Mul(k2, q)  add_9 = Add(v0, v1)
  h = Mul(add_5, correction)  r = Sqrt(add_9)  r1 = Add(r, e)  u0 = Div(h, r1)
  u = Mul(u0, lr)  sub_2 = Sub(w, u)
}"""
# No names at all. The batch has the shape of the weights.
BY_ORDER = """
  g (float[3,3] in_0, float[3,3] in_1, float[3,3] in_2, float[3] in_3)
    => (float div_0, float[3,3] y_1, float[3,3] y_0, float[3] sum_4) {
  a0 = MatMul(in_0, in_1)  a = Tanh(a0)  b0 = MatMul(a, in_2)  b = Add(b0, in_3)
  s = Mul(b, b)  div_0 = ReduceSum <keepdims = 0> (s)
  d = Add(b, b)  ax = Constant <value_ints = [0]> ()  sum_4 = ReduceSum <keepdims = 0> (d, ax)
  at = Transpose <perm = [1, 0]> (a)  y_0 = MatMul(at, d)
  wt = Transpose <perm = [1, 0]> (in_2)  e0 = MatMul(d, wt)  q = Mul(a, a)  e1 = Mul(e0, q)
  e = Sub(e0, e1)  xt = Transpose <perm = [1, 0]> (in_0)  y_1 = MatMul(xt, e)
}"""
# A gradient scaler: the loss is scaled, gradients are unscaled, taken only where all are finite.
SCALED = """
  g (float[4,3] x, float[3,2] w, float[2] b, float scale, float lr)
    => (float loss, float scaled, float[3,2] w_new, float[2] b_new, float scale_new)
  <float half = {0.5}> {
  [y0] y0 = MatMul(x, w)  [y] y = Add(y0, b)  [s] s = Mul(y, y)
  [loss] loss = ReduceSum <keepdims = 0> (s)  [scaled] scaled = Mul(loss, scale)
  [d0] d0 = Mul(y, scale)  [d] d = Add(d0, d0)
  [t] t = Transpose <perm = [1, 0]> (x)  [gw] gw = MatMul(t, d)
  [ax] ax = Constant <value_ints = [0]> ()  [gb] gb = ReduceSum <keepdims = 0> (d, ax)
  [uw] uw = Div(gw, scale)  [ub] ub = Div(gb, scale)
  [zw] zw = Sub(uw, uw)  [zb] zb = Sub(ub, ub)
  [nw] nw = ReduceSum <keepdims = 0> (zw)  [nb] nb = ReduceSum <keepdims = 0> (zb)
  [n] n = Add(nw, nb)  [bad] bad = IsNaN(n)  [ok] ok = Not(bad)
  [sw] sw = Mul(uw, lr)  [cw] cw = Sub(w, sw)  [w_new] w_new = Where(ok, cw, w)
  [sb] sb = Mul(ub, lr)  [cb] cb = Sub(b, sb)  [b_new] b_new = Where(ok, cb, b)
  [low] low = Mul(scale, half)  [scale_new] scale_new = Where(ok, scale, low)
}"""


def contract(model: OpenModel) -> Contract:
    return find_contract(model.graph, model.phases, {})


def test_adjoints_by_name_and_what_the_gradient_of_the_loss_is() -> None:
    model = open_text(ONNX_AD)
    found = contract(model)
    assert found.gradients == {"adj_w": "w"}
    assert found.roles["adj_loss"] is Role.HYPERPARAMETER
    assert found.named(Role.PARAMETER) == ("w", "b")
    assert found.named(Role.BATCH) == ("x",)
    assert "'adj_b' of 'b'" in found.notes[0]  # in another shape
    forward = {model.graph.nodes[n].outputs[0] for n in model.phases.forward}
    assert len(forward) == 4


def test_moments_behind_arithmetic_are_state() -> None:
    found = contract(open_text(ONNXSIM))
    assert found.new_values == {"sub_2": "w", "add_5": "m_6", "add_9": "v_7"}
    assert found.named(Role.OPTIMIZER_STATE) == ("v_7", "m_6")
    assert found.named(Role.HYPERPARAMETER) == ("lr", "correction")
    assert found.named(Role.BATCH) == ("x",)


def test_what_two_outputs_could_renew_is_left_alone() -> None:
    text = ONNXSIM.replace("m0 = Mul(m_6, p)", "o = Mul(m_6, v_7)  m0 = Mul(o, p)")
    found = contract(open_text(text.replace("v0 = Mul(v_7, p)", "v0 = Mul(o, p)")))
    assert found.new_values == {"sub_2": "w"}


def test_a_weight_that_the_forward_part_reads_is_not_renewed_from_afar() -> None:
    """A gradient with weight decay is made by arithmetic on the weight, and is no new value."""
    text = """g (float[4,3] x, float[3,2] w) => (float loss, float[3,2] o) <float c = {0.1}> {
      y = MatMul(x, w)  s = Mul(y, y)  loss = ReduceSum <keepdims = 0> (s)  d = Add(y, y)
      t = Transpose <perm = [1, 0]> (x)  k = MatMul(t, d)  l = Mul(w, c)  o = Add(k, l) }"""
    found = contract(open_text(text))
    assert found.new_values == {}
    assert found.gradients == {"o": "w"}


def test_gradients_without_names_are_those_of_a_run_of_inputs() -> None:
    model = open_text(BY_ORDER)
    found = contract(model)
    assert found.gradients == {"y_1": "in_1", "y_0": "in_2", "sum_4": "in_3"}
    assert found.named(Role.PARAMETER) == ("in_1", "in_2", "in_3")
    assert found.named(Role.BATCH) == ("in_0",)
    assert "'y_1' of 'in_1'" in found.notes[0]


def test_of_several_runs_the_one_with_the_weights_is_taken() -> None:
    text = """g (float[3,3] x, float[3,3] w) => (float loss, float[3,3] o) {
      y = MatMul(x, w)  s = Mul(y, y)  loss = ReduceSum <keepdims = 0> (s)  d = Add(y, y)
      t = Transpose <perm = [1, 0]> (x)  o = MatMul(t, d) }"""
    assert contract(open_text(text)).gradients == {"o": "w"}


@pytest.mark.parametrize("output", ["scaled", "total"])
def test_a_scaled_loss_is_not_the_next_scale(output: str) -> None:
    text = SCALED.replace(", float scale_new)", ")")
    text = text.replace(text[text.index("  [low]") : text.index("}", text.index("  [low]"))], "")
    found = contract(open_text(text.replace("scaled", output)))
    assert output not in found.new_values
    assert found.roles[output] is Role.OUTPUT
    assert found.roles["scale"] is Role.HYPERPARAMETER


def test_a_loss_scale_does_not_make_an_update_of_the_backward_part() -> None:
    model = open_text(SCALED)
    phases = dict(zip((n.outputs[0] for n in model.graph.nodes), model.phases.of, strict=True))
    named = {model.graph.tensors[t].name: str(phase) for t, phase in phases.items()}
    back = {name for name, phase in named.items() if phase == Phase.BACKWARD}
    assert back == {"scaled", "d0", "d", "t", "gw", "gb"}
    update = {name for name, phase in named.items() if phase == Phase.UPDATE}
    assert {"uw", "zw", "nw", "n", "bad", "ok", "sw", "cw", "w_new", "scale_new"} <= update
    found = contract(model)
    assert found.new_values == {"w_new": "w", "b_new": "b", "scale_new": "scale"}
    assert found.named(Role.OPTIMIZER_STATE) == ("scale",)
