"""Forward, loss, backward and update on hand-written training steps: the phase of every node."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from helpers.graphs import open_text, tensor
from memplan.errors import UsageError
from memplan.ir.graph import Phase
from memplan.ir.pairs import pair_outputs
from memplan.ir.phases import count_phases, find_phases
from memplan.simulate.opened import OpenModel

# The common part of the steps below: x·w1 → Relu → ·w2, and the gradients of both weights.
FORWARD = """
    [fc1] a = MatMul(x, w1)
    [relu] h = Relu(a)
    [fc2] p = MatMul(h, w2)
"""
MSE = """
    [diff] d = Sub(p, y)
    [square] s = Mul(d, d)
    [mean] loss = ReduceMean<keepdims = 0>(s)
"""
BACKWARD = """
    [head] g = Mul(d, scale)
    [w2_t] w2t = Transpose<perm = [1, 0]>(w2)
    [fc2_dx] dh = MatMul(g, w2t)
    [h_t] ht = Transpose<perm = [1, 0]>(h)
    [fc2_dw] GRAD2 = MatMul(ht, g)
    [mask] m = Greater(a, zero)
    [mask_f] mf = Cast<to = 1>(m)
    [relu_dx] da = Mul(dh, mf)
    [x_t] xt = Transpose<perm = [1, 0]>(x)
    [fc1_dw] GRAD1 = MatMul(xt, da)
"""
CONSTANTS = "float scale = {0.125}, float zero = {0}, float mu = {0.9}, float lr = {0.1}"
MLP_BACKWARD = "head w2_t fc2_dx h_t fc2_dw mask mask_f relu_dx x_t fc1_dw"


def mlp(
    outputs: str, more: str = "", inputs: str = "", grads: tuple[str, str] = ("w1_grad", "w2_grad")
) -> str:
    """An MLP with mean squared error; ``outputs`` besides the loss, ``more`` nodes at the end."""
    body = (FORWARD + MSE + BACKWARD).replace("GRAD1", grads[0]).replace("GRAD2", grads[1])
    return f"""
    g (float[8,4] x, float[8,2] y, float[4,16] w1, float[16,2] w2 {inputs})
        => (float loss {outputs}) <{CONSTANTS}>
    {{ {body} {more} }}"""


GRADIENTS = ", float[4,16] w1_grad, float[16,2] w2_grad"


def check(model: OpenModel, **wanted: str) -> None:
    """Every phase holds exactly the nodes named, in file order; phases left out are empty."""
    found: dict[str, list[str]] = {str(phase): [] for phase in Phase}
    for node in model.graph.nodes:
        found[model.phases.of[node.id]].append(node.name)
    expected = {str(phase): wanted.get(str(phase), "").split() for phase in Phase}
    assert found == expected


def named(model: OpenModel, tensors: frozenset[int]) -> set[str]:
    """Names of tensor ids."""
    return {model.graph.tensors[t].name for t in tensors}


MEAN = "[mean] loss = ReduceMean<keepdims = 0>(s)"
MOMENTUM = mlp(
    ", float[4,16] w1_new, float[4,16] v1_new, float[16,2] w2_grad",
    """
    [decay] mv = Mul(mu, v1)
    [velocity] v1_new = Add(mv, w1_grad)
    [step] lv = Mul(lr, v1_new)
    [apply] w1_new = Sub(w1, lv)
    """,
    ", float[4,16] v1",
)
SGD = mlp(
    ", float[4,16] w1_new, float[16,2] w2_new",
    """
    [step1] s1 = Mul(lr, w1_grad)
    [apply1] w1_new = Sub(w1, s1)
    [step2] s2 = Mul(lr, w2_grad)
    [apply2] w2_new = Sub(w2, s2)
    """,
)
ADAMW_NODES = """
    [tick] t_new = Add(t, one)
    [m_decay] m_old = Mul(m1, mu)
    [m_part] m_in = Mul(w1_grad, lr)
    [m_add] m1_new = Add(m_old, m_in)
    [v_decay] v_old = Mul(v1, mu)
    [square_grad] g2 = Mul(w1_grad, w1_grad)
    [v_part] v_in = Mul(g2, lr)
    [v_add] v1_new = Add(v_old, v_in)
    [correction] c = Pow(mu, t_new)
    [m_hat] mh = Div(m1_new, c)
    [root] r = Sqrt(v1_new)
    [ratio] q = Div(mh, r)
    [weight_decay] wd = Mul(w1, lr)
    [decayed] w_less = Sub(w1, wd)
    [apply] w1_new = Sub(w_less, q)
    """
ADAMW_UPDATE = " ".join(re.findall(r"\[(\w+)\]", ADAMW_NODES))
ADAMW = mlp(
    ", float[4,16] w1_new, float[4,16] m1_new, float[4,16] v1_new, float t_new,"
    " float[16,2] w2_grad",
    ADAMW_NODES,
    ", float[4,16] m1, float[4,16] v1, float t",
).replace(CONSTANTS, CONSTANTS + ", float one = {1}")
METRICS = """
        [top] best = ArgMax<axis = 1>(p)  [hit] hits = Cast<to = 1>(best)
        [mean_hit] accuracy = ReduceMean<keepdims = 0>(hits)
        [size] sparsity = ReduceSum<keepdims = 0>(h)
        [norm] norm = ReduceL2<keepdims = 0>(w2_grad)
    """
MLP_PHASES = {"forward": "fc1 relu fc2", "loss": "diff square mean", "backward": MLP_BACKWARD}
# By name: a step, the nodes of its phases in file order (phases left out are empty), what is
# trained, and its state.
STEPS: dict[str, tuple[str, dict[str, str], str, str]] = {
    "mean squared error": (mlp(GRADIENTS), MLP_PHASES, "w1 w2", ""),
    "cross entropy over a log softmax": (
        """
    g (float[8,4] x, float[8,3] onehot, float[4,3] w, float[3] b)
        => (float loss, float[4,3] w_grad, float[3] b_grad)
        <float minus = {-0.125}, int64[1] zero = {0}>
    {
        [fc] z = Gemm(x, w, b)
        [log_softmax] q = LogSoftmax<axis = 1>(z)
        [pick] t = Mul(q, onehot)
        [sum] s = ReduceSum<keepdims = 0>(t)
        [loss] loss = Mul(s, minus)
        [softmax] e = Exp(q)
        [error] r = Sub(e, onehot)
        [dz] dz = Mul(r, minus)
        [db] b_grad = ReduceSum<keepdims = 0>(dz, zero)
        [dw] w_grad = Gemm<transA = 1>(x, dz)
    }""",
        {
            "forward": "fc",
            "loss": "log_softmax pick sum loss",
            "backward": "softmax error dz db dw",
        },
        "w b",
        "",
    ),
    "momentum": (MOMENTUM, {**MLP_PHASES, "update": "decay velocity step apply"}, "w1 w2", "v1"),
    # The mean is made last, the decay before it: an update all the same.
    "momentum that a rewritten file scales before its loss": (
        MOMENTUM.replace(MEAN, "").replace("[velocity]", f"{MEAN} [velocity]"),
        {**MLP_PHASES, "update": "decay velocity step apply"},
        "w1 w2",
        "v1",
    ),
    "plain SGD scales a gradient in the update": (
        SGD,
        {**MLP_PHASES, "update": "step1 apply1 step2 apply2"},
        "w1 w2",
        "",
    ),
    "AdamW with a step counter": (
        ADAMW,
        {**MLP_PHASES, "update": ADAMW_UPDATE},
        "w1 w2",
        "m1 v1 t",
    ),
    "running statistics of a batch normalization": (
        """
    g (float[8,4] x, float[4] gamma, float[4] run_mean)
        => (float loss, float[4] gamma_grad, float[4] run_mean_new)
        <float keep = {0.9}, float take = {0.1}, int64[1] batch = {0}, float scale = {0.03}>
    {
        [batch_mean] mean = ReduceMean<keepdims = 0>(x, batch)
        [renew_old] old = Mul(run_mean, keep)
        [renew_in] part = Mul(mean, take)
        [renew] run_mean_new = Add(old, part)
        [center] c = Sub(x, mean)
        [affine] n = Mul(c, gamma)
        [square] s = Mul(n, n)
        [loss] loss = ReduceMean<keepdims = 0>(s)
        [head] g = Mul(n, scale)
        [times] gc = Mul(g, c)
        [dgamma] gamma_grad = ReduceSum<keepdims = 0>(gc, batch)
    }""",
        {
            "forward": "batch_mean center affine",
            "loss": "square loss",
            "backward": "head times dgamma",
            "update": "renew_old renew_in renew",
        },
        "gamma",
        "run_mean",
    ),
    "tied weights read through a transpose end the forward there": (
        """
    g (int64[8] ids, float[8,5] onehot, float[5,4] table)
        => (float loss, float[5,4] table_grad) <float scale = {0.1}>
    {
        [embed] e = Gather(table, ids)
        [act] h = Tanh(e)
        [tied] tt = Transpose<perm = [1, 0]>(table)
        [logits] z = MatMul(h, tt)
        [diff] d = Sub(z, onehot)
        [square] s = Mul(d, d)
        [loss] loss = ReduceMean<keepdims = 0>(s)
        [head] g = Mul(d, scale)
        [g_t] gt = Transpose<perm = [1, 0]>(g)
        [dw] table_grad = MatMul(gt, h)
    }""",
        {"forward": "embed act tied logits", "loss": "diff square loss", "backward": "head g_t dw"},
        "table",
        "",
    ),
    "a forward graph with a loss": (
        f"""
    g (float[8,4] x, float[8,2] y, float[4,16] w1, float[16,2] w2) => (float loss)
    {{ {FORWARD} {MSE} }}""",
        {"forward": "fc1 relu fc2", "loss": "diff square mean"},
        "w1 w2",
        "",
    ),
    "a forward graph without a loss": (
        f"""
    g (float[8,4] x, float[4,16] w1, float[16,2] w2) => (float[8,2] p) {{ {FORWARD} }}""",
        {"forward": "fc1 relu fc2"},
        "w1 w2",
        "",
    ),
    "a forward graph whose output has the shape of an input": (
        """
    g (float[8,4] x, float[1,8,16] h0, float[4,16] w1, float[16,2] w2)
        => (float[8,2] p, float[1,8,16] h1) <int64[1] first = {0}>
    {
        [fc1] a = MatMul(x, w1)
        [squeeze] s = Squeeze(h0, first)
        [cell] h = Add(a, s)
        [head] p = MatMul(h, w2)
        [state] h1 = Unsqueeze(h, first)
    }""",
        {"forward": "fc1 squeeze cell head state"},
        "w1 w2",
        "",
    ),
    "YieldOp divides forward and backward": (
        """
    g (float[8,4] x, float[4,16] w, float[16] m) => (float[4,16] w_grad, float[16] m_new)
      <float zero = {0}, float keep = {0.9}, float take = {0.1}, int64[1] batch = {0},
       float[8,16] dh>
    {
        [fc] a = MatMul(x, w)
        [relu] h = Relu(a)
        [boundary] dh = com.microsoft.YieldOp(h)
        [mask] m = Greater(a, zero)
        [mask_f] mf = Cast<to = 1>(m)
        [relu_dx] da = Mul(dh, mf)
        [dw] w_grad = Gemm<transA = 1>(x, da)
        [average] mean = ReduceMean<keepdims = 0>(h, batch)
        [part] part = Mul(mean, take)
        [old] old = Mul(m, keep)
        [renew] m_new = Add(old, part)
    }""",
        {
            "forward": "fc relu boundary",
            "backward": "mask mask_f relu_dx dw",
            "update": "average part old renew",
        },
        "w",
        "m",
    ),
    # They make no gradients; a norm of gradients is backward work.
    "metrics of predictions are forward work": (
        mlp(f"{GRADIENTS}, float accuracy, float sparsity, float norm", METRICS),
        {
            "forward": "fc1 relu fc2 top hit mean_hit size",
            "loss": "diff square mean",
            "backward": f"{MLP_BACKWARD} norm",
        },
        "w1 w2",
        "",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_phases_of_a_step(name: str) -> None:
    text, phases, parameters, state = STEPS[name]
    model = open_text(text)
    check(model, **phases)
    assert named(model, model.phases.parameters) == set(parameters.split())
    assert named(model, model.phases.state) == set(state.split())
    loss = model.graph.tensor_named("loss")
    assert model.phases.loss == (loss.id if loss is not None else None)
    assert count_phases(model.phases)[Phase.FORWARD] == len(phases["forward"].split())


def test_what_only_serves_the_backward_but_runs_early_is_forward_work() -> None:
    early = mlp(GRADIENTS).replace(
        "[fc2] p =", "[early] ht2 = Transpose<perm = [1, 0]>(h)\n[fc2] p ="
    )
    model = open_text(early.replace("MatMul(ht, g)", "MatMul(ht2, g)").replace("[h_t]", "[unused]"))
    assert model.phases.of[2] is Phase.FORWARD
    assert model.graph.nodes[2].name == "early"


def test_cross_entropy_as_one_operator_is_inlined_into_the_loss() -> None:
    model = open_text("""
    g (float[8,4] x, int64[8] labels, float[4,3] w) => (float loss, float[4,3] w_grad)
    {
        [fc] z = MatMul(x, w)
        [ce] loss, q = SoftmaxCrossEntropyLoss(z, labels)
        [p] p = Exp(q)
        [x_t] xt = Transpose<perm = [1, 0]>(x)
        [dw] w_grad = MatMul(xt, p)
    }""")
    assert not any(node.op == "SoftmaxCrossEntropyLoss" for node in model.graph.nodes)
    by_name = {n.name: str(model.phases.of[n.id]) for n in model.graph.nodes}
    ends = {name: by_name.pop(name) for name in ("fc", "p", "x_t", "dw")}
    assert ends == {"fc": "forward", "p": "backward", "x_t": "backward", "dw": "backward"}
    # The rest is the expansion: loss, but for the copy of the log-probabilities, which only the
    # gradient reads.
    copies = [n.name for n in model.graph.nodes if n.op == "Identity"]
    assert len(by_name) > 5
    assert [name for name, phase in by_name.items() if phase != "loss"] == copies


def test_gradients_added_up_are_backward_also_before_an_update() -> None:
    more = """
    [aside] b = MatMul(p, w2t)
    [extra] w1_more = Gemm<transA = 1>(x, b)
    [total] w1_sum = Add(w1_grad, w1_more)
    [step] s1 = Mul(lr, w1_sum)
    [apply] w1_new = Sub(w1, s1)
    """
    model = open_text(mlp(", float[4,16] w1_new, float[16,2] w2_grad", more))
    phase = {n.name: str(model.phases.of[n.id]) for n in model.graph.nodes}
    assert phase["total"] == "backward"
    assert phase["step"] == phase["apply"] == "update"


@pytest.mark.parametrize(
    "grads", [("w1_grad", "w2_grad"), ("w1.grad", "w2.grad"), ("val_30", "val_31")]
)
def test_gradient_outputs_by_suffix_or_by_shape(grads: tuple[str, str]) -> None:
    quoted = (f'"{grads[0]}"', f'"{grads[1]}"')
    model = open_text(mlp(f", float[4,16] {quoted[0]}, float[16,2] {quoted[1]}", grads=quoted))
    check(model, forward="fc1 relu fc2", loss="diff square mean", backward=MLP_BACKWARD)
    assert named(model, model.phases.parameters) == {"w1", "w2"}
    pairs = pair_outputs(model.graph)
    assert {model.graph.tensors[o].name: model.graph.tensors[i].name for o, i in pairs.items()} == {
        grads[0]: "w1",
        grads[1]: "w2",
    }


SUFFIXES = (".grad", "_grad", "_new", ".out", "_grad.accumulation.out")


@pytest.mark.parametrize("outputs", [*(("w2" + end, "w1" + end) for end in SUFFIXES), ("o1", "o2")])
def test_outputs_of_one_shape_are_paired_by_name_else_in_order(outputs: tuple[str, str]) -> None:
    second, first = sorted(outputs, reverse=True)
    model = open_text(f"""
    g (float[8,4] x, float[4,4] w1, float[4,4] w2)
        => (float loss, float[4,4] "{outputs[0]}", float[4,4] "{outputs[1]}")
    {{
        [fc1] a = MatMul(x, w1)
        [fc2] b = MatMul(a, w2)
        [loss] loss = ReduceMean<keepdims = 0>(b)
        [one] g = Shape(b)
        [fill] f = Expand(loss, g)
        [dw2] "{second}" = Gemm<transA = 1>(a, f)
        [dw1] "{first}" = Gemm<transA = 1>(x, f)
    }}""")
    graph = model.graph
    found = {graph.tensors[o].name: graph.tensors[i].name for o, i in pair_outputs(graph).items()}
    assert found == {first: "w1", second: "w2"}
    assert named(model, model.phases.parameters) == {"w1", "w2"}


SCALARS = mlp(
    ", float accuracy, float cost" + GRADIENTS,
    "[wrong] wrong = Abs(d)\n[accuracy] accuracy = ReduceMax<keepdims = 0>(wrong)\n"
    "[cost] cost = ReduceMean<keepdims = 0>(wrong)",
)


def test_of_several_scalars_the_one_called_loss_counts() -> None:
    reordered = SCALARS.replace("(float loss , float accuracy", "(float accuracy, float loss")
    model = open_text(reordered)
    assert tensor(model.graph, "accuracy").id == model.graph.outputs[0]
    assert model.phases.loss == tensor(model.graph, "loss").id


def test_without_a_telling_name_the_first_scalar_counts() -> None:
    plain = SCALARS.replace("loss", "first").replace("cost", "second")
    model = open_text(plain)
    assert model.phases.loss == tensor(model.graph, "first").id


def test_a_scalar_gradient_is_no_loss() -> None:
    model = open_text("""
    g (float[8] x, float b) => (float b_grad, float out)
    {
        [shift] s = Add(x, b)
        [mean] out = ReduceMean<keepdims = 0>(s)
        [db] b_grad = Neg(out)
    }""")
    assert model.phases.loss == tensor(model.graph, "out").id
    assert named(model, model.phases.parameters) == {"b"}


def test_the_loss_can_be_named() -> None:
    model = open_text(SCALARS, loss="cost")
    assert model.phases.loss == tensor(model.graph, "cost").id
    by_name = dict(zip((n.name for n in model.graph.nodes), model.phases.of, strict=True))
    assert by_name["cost"] is Phase.LOSS
    assert by_name["wrong"] is Phase.LOSS
    # The other loss is no part of this one's forward.
    assert by_name["mean"] is not Phase.LOSS


def test_an_unknown_loss_is_an_error_that_lists_the_outputs() -> None:
    with pytest.raises(UsageError, match="--loss p: the graph has no such output") as caught:
        open_text(mlp(GRADIENTS), loss="p")
    assert caught.value.hint == "outputs: loss, w1_grad, w2_grad"


def test_a_weight_that_only_a_body_reads_is_a_weight() -> None:
    """In a forward graph, where nothing else tells: in a branch, in a loop, in a branch in it."""
    model = open_text(
        """
        g (float[8,4] x, float[4,4] a, float[4,4] b, float[4,4] c, float[4,4] k, bool on)
            => (float[8,4] z) <int64 n = {3}, bool yes = {1}>
        {
            y = If (on) <
                then_branch = t () => (float[8,4] u) { u = MatMul(x, a) },
                else_branch = e () => (float[8,4] v) { w1 = Add(k, k)  v = MatMul(x, w1) }>
            z = Loop (n, yes, y) <body = l (int64 i, bool before, float[8,4] s)
                => (bool after, float[8,4] next) {
                    after = Identity(before)
                    m = MatMul(s, b)
                    next = If (on) <
                        then_branch = t2 () => (float[8,4] u2) { u2 = MatMul(m, c) },
                        else_branch = e2 () => (float[8,4] v2) { v2 = Exp(m) }> }>
        }"""
    )
    names = {model.graph.tensors[t].name for t in model.phases.parameters}
    assert names == {"a", "b", "c"}


class _Counted(tuple[int, ...]):
    """Readers of a tensor that count how many of them somebody goes over."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        _Counted.looks += len(self)
        return super().__iter__()


def test_readers_of_one_tensor_are_looked_at_a_few_times() -> None:
    """Not once per reader: that is quadratic for a tensor that all nodes read."""
    readers = 60
    branches = "\n".join(f"e{k} = Exp(y)" for k in range(readers))
    model = open_text(
        f"""<ir_version: 10, opset_import: ["": 20]>
        star (float[4] x) => (float loss) {{
            y = Relu(x)
            {branches}
            z = Sum({", ".join(f"e{k}" for k in range(readers))})
            loss = ReduceMean<keepdims = 0>(z)
        }}"""
    )
    counted = [replace(t, readers=_Counted(t.readers)) for t in model.graph.tensors]
    graph = replace(model.graph, tensors=tuple(counted))
    _Counted.looks = 0
    find_phases(graph)
    assert 0 < _Counted.looks <= 5 * sum(len(node.reads) for node in graph.nodes)
