"""Written-out activation functions: their gradients keep the input alone."""

import numpy as np
import pytest

import memplan
from helpers.gradients import check, draw, reference
from helpers.graphs import parse
from memplan.proto.metadata import node_metadata

WRITTEN = {
    "gelu_div": "u = Div(x, root2) e = Erf(u) t = Add(e, one) h = Mul(half, t) y = Mul(x, h)",
    "gelu_mul": "u = Mul(root, x) e = Erf(u) t = Add(one, e) h = Mul(x, t) y = Mul(h, half)",
    "gelu_left": "u = Mul(x, root) e = Erf(u) t = Add(e, one) h = Mul(x, half) y = Mul(h, t)",
    "gelu_tanh": """p = Pow(x, three) q = Mul(p, small) w = Add(x, q) v = Mul(w, tan)
        e = Tanh(v) t = Add(e, one) h = Mul(x, half) y = Mul(h, t)""",
    "gelu_products": """a = Mul(x, x) b = Mul(a, x) q = Mul(small, b) w = Add(q, x) v = Mul(tan, w)
        e = Tanh(v) t = Add(one, e) h = Mul(half, x) y = Mul(h, t)""",
    "gelu_factored": """a = Mul(x, x) q = Mul(a, small) w = Add(q, one) c = Mul(x, tan)
        v = Mul(c, w) e = Tanh(v) t = Add(e, one) h = Mul(x, t) y = Mul(h, half)""",
    "swish": "s = Sigmoid(x) y = Mul(x, s)",
    "quick_gelu": "u = Mul(x, quick) s = Sigmoid(u) y = Mul(x, s)",
    "mish": "u = Softplus(x) s = Tanh(u) y = Mul(s, x)",
    "hard_swish": "s = HardSigmoid<alpha = 0.16666667>(x) y = Mul(x, s)",
}
CONSTANTS = """double half = {0.5}, double one = {1}, double root = {0.70710678118654752},
    double root2 = {1.41421356237309505}, double three = {3}, double small = {0.044715},
    double tan = {0.79788456080286536}, double quick = {1.702}"""


def model(body: str, inner: str = "") -> str:
    """``x0`` is scaled first: the input of the pattern is itself a product."""
    return f"""g (double[3,4] x0) => (double[3,4] y {inner}) <{CONSTANTS}, double two = {{2}}>
        {{ x = Mul(x0, two) {body} }}"""


@pytest.mark.parametrize("name", WRITTEN)
def test_reads_the_input_alone(name: str) -> None:
    text = parse(model(WRITTEN[name]))
    trained = check((text, {"x0": draw((3, 4))}))
    made = {out for node in text.graph.node for out in node.output if out not in ("x", "y")}
    assert made
    for node in trained.graph.node:
        if node_metadata(node).get("memplan.phase") == "backward":
            assert made.isdisjoint(node.input)


@pytest.mark.parametrize(
    "body",
    [
        WRITTEN["gelu_div"].replace("half, t", "one, t"),
        WRITTEN["gelu_div"].replace("root2", "three"),
        WRITTEN["gelu_tanh"].replace("three", "two"),
        WRITTEN["gelu_tanh"].replace("small", "half"),
        WRITTEN["swish"].replace("Mul(x, s)", "Mul(x0, s)"),
        WRITTEN["mish"].replace("Mul(s, x)", "Mul(s, two)"),
        WRITTEN["hard_swish"].replace("0.16666667", "0.3"),
    ],
)
def test_what_only_looks_like_one(body: str) -> None:
    check((parse(model(body)), {"x0": draw((3, 4))}))


def test_an_inner_tensor_that_is_asked_for() -> None:
    """It is an output, or an x: the function is not taken as one."""
    text = parse(model(WRITTEN["swish"], ", double[3,4] s"))
    check((text, {"x0": draw((3, 4))}), ys=["y"])
    check((text, {"x0": draw((3, 4))}), ys=["y", "s"])
    trained = memplan.gradients(parse(model(WRITTEN["swish"])), "y", ["s"])
    x = draw((3, 4))
    np.testing.assert_allclose(reference(trained, {"x0": x})["s_grad"], 2 * x)


GROUPED = """g (double[2,4,3,2] x0, double[4,1,1] s, double[4,1,1] b) => (double[2,4,3,2] y)
    <int64[3] apart = {0, 2, -1}, int64[4] back = {2, 4, 3, 2}, double[2] one = {1, 1},
     double[2] zero = {0, 0}, double two = {2}>
    { x = Mul(x0, two) u = Reshape(x, apart) n = InstanceNormalization(u, one, zero)
      v = Reshape(n, back) p = Mul(v, s) y = Add(p, b) }"""


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("", "", True),
        ("Mul(v, s)", "Mul(s, v)", True),
        ("Add(p, b)", "Add(b, p)", True),
        ("zero = {0, 0}", "zero = {0, 1}", False),
        ("{0, 2, -1}", "{1, 2, -1}", False),
        ("double[4,1,1] b", "double[2,1,1,2] b", False),
    ],
)
def test_group_norm(old: str, new: str, seen: bool) -> None:
    """The backward part reads x alone."""
    text = parse(GROUPED.replace(old, new, 1))
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in text.graph.input}
    feeds = {name: draw(shape, k) for k, (name, shape) in enumerate(shapes.items())}
    trained = check((text, feeds))
    read = {
        name
        for node in trained.graph.node
        if node_metadata(node).get("memplan.phase") == "backward"
        for name in node.input
    }
    assert read.isdisjoint({"u", "n", "v", "p"}) == seen
