"""Operators of ONNX Runtime's own, written by ONNX's: against NumPy and stock ONNX Runtime, and
their gradients against central differences."""

import math
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import memplan
from helpers.gradients import check, in_float32, runtime
from helpers.lowering import (
    ATEN,
    MICROSOFT,
    Array,
    evaluate,
    foreign_model,
    node,
    onnx_node,
    some,
)
from memplan.autodiff.emit.gradient_registry import registered
from memplan.autodiff.forward.foreign import opened, written_out
from memplan.errors import ModelError

Feeds = dict[str, Array]


def result(
    op: str, feeds: Feeds, constants: Feeds | None = None, domain: str = MICROSOFT, **options: Any
) -> Array:
    """The one output of a node that reads all that is given, in order; its gradients are right."""
    names = " ".join([*feeds, *(constants or {})])
    model = foreign_model([node(op, names, "y", domain, **options)], feeds, ["y"], constants)
    return checked(model, feeds)["y"]


def checked(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """All outputs in float64."""
    own = written_out(model)
    assert {item.domain for item in own.opset_import} == {""}
    onnx.checker.check_model(own, full_check=True)
    floats = [name for name, array in feeds.items() if array.dtype.kind == "f"]
    check((own, feeds), xs=floats, run=evaluate, ys=[own.graph.output[0].name])
    return evaluate(own, feeds)


def on_runtime(model: onnx.ModelProto, feeds: Feeds) -> None:
    """What stock ONNX Runtime has a kernel for computes the same."""
    single = in_float32(model)
    given = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    wanted, found = runtime(single, given), runtime(written_out(single), given)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


# -- activations -------------------------------------------------------------------------------


def gelu(x: Array) -> Array:
    """x·Φ(x)."""
    return np.vectorize(lambda n: n / 2 * (1 + math.erf(n / math.sqrt(2))))(x)


def fast_gelu(z: Array) -> Array:
    return z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def rms_norm(x: Array, scale: Array) -> Array:
    return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * scale


X, B, R = some(3, 4), some(4, seed=1), some(3, 4, seed=2)
FORMULAS: list[tuple[str, Feeds, dict[str, float], Array]] = [
    ("Gelu", {"x": X}, {}, gelu(X)),
    ("BiasGelu", {"x": X, "b": B}, {}, gelu(X + B)),
    ("QuickGelu", {"x": X}, {"alpha": 1.3}, X / (1 + np.exp(-np.float32(1.3) * X))),
    ("FastGelu", {"x": X, "b": B}, {}, fast_gelu(X + B)),
    ("SimplifiedLayerNormalization", {"x": X, "s": B}, {}, rms_norm(X, B)),
]


@pytest.mark.parametrize(("op", "feeds", "options", "wanted"), FORMULAS)
def test_formulas(op: str, feeds: Feeds, options: dict[str, float], wanted: Array) -> None:
    np.testing.assert_allclose(result(op, feeds, **options), wanted, atol=1e-7)


def test_softmax_of_a_sum() -> None:
    x, bias = some(3, 4), some(1, 4, seed=1)
    wanted = np.exp(x + bias) / np.exp(x + bias).sum(1, keepdims=True)
    found = result("BiasSoftmax", {"x": x, "b": bias}, axis=1, is_inner_broadcast=1)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    with pytest.raises(ModelError, match="BiasSoftmax 'BiasSoftmax_0' over several axes"):
        result("BiasSoftmax", {"x": x, "b": bias}, axis=0, is_inner_broadcast=1)


# -- products and pieces -----------------------------------------------------------------------


@pytest.mark.parametrize("turned_a", [0, 1])
@pytest.mark.parametrize("turned_b", [0, 1])
def test_product(turned_a: int, turned_b: int) -> None:
    a = some(2, 4, 3) if turned_a else some(2, 3, 4)
    b = some(5, 4, seed=1) if turned_b else some(4, 5, seed=1)
    found = result("FusedMatMul", {"a": a, "b": b}, transA=turned_a, transB=turned_b, alpha=0.5)
    left, right = (np.swapaxes(m, -1, -2) if t else m for m, t in ((a, turned_a), (b, turned_b)))
    np.testing.assert_allclose(found, 0.5 * left @ right, atol=1e-12)


@pytest.mark.parametrize("turned", [0, 1])
def test_product_with_the_first_axis_behind_the_batch(turned: int) -> None:
    """``transBatchA``: (M, B1, B2, K) stands for (B1, B2, M, K); transposed, for (B1, B2, K, M)."""
    a, b = some(4, 2, 3, 5), some(2, 3, 4 if turned else 5, 6, seed=1)
    found = result("FusedMatMul", {"a": a, "b": b}, transBatchA=1, transA=turned)
    left = np.moveaxis(a, 0, 2)
    np.testing.assert_allclose(
        found, (np.swapaxes(left, -1, -2) if turned else left) @ b, atol=1e-12
    )


def test_concat_with_lengths() -> None:
    feeds = {"a": some(2, 3), "b": some(2, 4, seed=1)}
    nodes = [
        node("ConcatTraining", "a b", "y sizes", axis=-1),
        onnx_node("Cast", "sizes", "lengths", to=onnx.TensorProto.DOUBLE),
    ]
    found = checked(foreign_model(nodes, feeds, ["y", "lengths"]), feeds)
    np.testing.assert_array_equal(found["y"], np.concatenate([feeds["a"], feeds["b"]], 1))
    assert found["lengths"].tolist() == [3, 4]


def test_embedding() -> None:
    weight, places = some(5, 3), np.asarray([[4, 1], [0, 4]])
    rest = {"padding": np.asarray(-1), "scaled": np.asarray(False), "sparse": np.asarray(False)}
    given = {"i": places, **rest}
    found = result("ATen", {"w": weight}, given, ATEN, operator="embedding")
    np.testing.assert_array_equal(found, weight[places])
    for name, value in (("padding", np.asarray(1)), ("scaled", np.asarray(True))):
        with pytest.raises(ModelError, match="embedding 'ATen_0'"):
            result("ATen", {"w": weight}, {**given, name: value}, ATEN, operator="embedding")


# -- losses, normalizations and dropout --------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, -100])
def test_cross_entropy(reduction: str, weighted: bool, ignored: int | None) -> None:
    labels = np.asarray([2, 1 if ignored is None else ignored, 1, 0])
    scores, weights = some(4, 3), np.asarray([0.5, 2.0, 1.5])
    constants: Feeds = {"l": labels} | ({"w": weights} if weighted else {})
    name = "_"
    if ignored is not None:
        constants["i"], name = np.asarray(ignored), "i"
    names = f"x l {'w' if weighted else '_'} {name}"
    loss = node("SoftmaxCrossEntropyLossInternal", names, "y log", reduction=reduction)
    found = checked(foreign_model([loss], {"x": scores}, ["y"], constants), {"x": scores})["y"]
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    picked = np.where(labels == ignored, 0, labels)
    share = (weights[picked] if weighted else np.ones(4)) * (labels != ignored)
    each = -share * logs[np.arange(4), picked]
    wanted = {"none": each, "sum": each.sum(), "mean": each.sum() / share.sum()}[reduction]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_ignored_labels_that_are_computed() -> None:
    feeds = {"x": some(4, 3), "i": np.asarray(1)}
    nodes = [node("SoftmaxCrossEntropyLossInternal", "x l _ i", "y")]
    model = foreign_model(nodes, feeds, ["y"], {"l": np.asarray([2, 0, 1, 2])})
    with pytest.raises(ModelError, match="ignore_index is computed at run time"):
        written_out(model)


def test_layer_norm_of_an_opset_that_has_none() -> None:
    x, scale, bias = some(3, 4), some(4, seed=1), some(4, seed=2)
    feeds = {"x": x, "s": scale, "b": bias}
    nodes = [onnx_node("LayerNormalization", "x s b", "y", axis=-1)]
    model = foreign_model(nodes, feeds, ["y"], opset=14)
    on_runtime(model, feeds)
    found = evaluate(memplan.gradients(model, "y", ["x", "s", "b"], check=False), feeds)
    np.testing.assert_allclose(found["b_grad"], np.full(4, 3.0), atol=1e-12)


def test_batch_norm() -> None:
    feeds = {"x": some(4, 3, 2)} | {n: some(3, seed=k) for k, n in enumerate("sbm", 2)}
    feeds["v"] = np.ones(3)
    nodes = [node("BatchNormInternal", "x s b m v", "y mean var", momentum=0.8)]
    own = written_out(foreign_model(nodes, feeds, ["y", "mean"]))
    check((own, feeds), xs=["x", "s", "b"], ys=["y"], run=evaluate)
    wanted = feeds["m"] * np.float32(0.8) + feeds["x"].mean((0, 2)) * (1 - np.float32(0.8))
    np.testing.assert_allclose(evaluate(own, feeds)["mean"], wanted, rtol=1e-6)


def test_statistics_that_only_a_gradient_reads() -> None:
    feeds = {"x": some(4, 3)} | {n: some(3, seed=k) for k, n in enumerate("sbm", 2)}
    feeds["v"] = np.ones(3)
    nodes = [node("BatchNormInternal", "x s b m v", "y _ _ saved inv", name="norm")]
    with pytest.raises(ModelError, match="'norm': nothing of ONNX computes its output 'inv'"):
        written_out(foreign_model(nodes, feeds, ["y", "inv"]))


def test_dropout_of_a_sum() -> None:
    """Outside of training nothing is dropped."""
    constants = {"ratio": np.asarray(0.5, np.float32), "mode": np.asarray(False)}
    found = result("BiasDropout", {"x": X, "b": B, "r": R}, constants)
    np.testing.assert_allclose(found, X + B + R, atol=1e-12)


# -- graphs that ONNX Runtime's optimizer wrote ------------------------------------------------


def test_a_fused_graph_is_differentiated(tmp_path: Any) -> None:
    """As ``grad`` differentiates the graph before: what the optimizer of a session made of it."""
    import onnxruntime

    feeds = {"x": some(3, 5), "b": some(5, seed=2), "s": some(5, seed=3), "c": some(5, seed=4)}
    nodes = [
        onnx_node("Add", "x b", "z"),
        onnx_node("Div", "z root", "u"),
        onnx_node("Erf", "u", "e"),
        onnx_node("Add", "e one", "f"),
        onnx_node("Mul", "z f", "g"),
        onnx_node("Mul", "g half", "h"),
        onnx_node("Transpose", "h", "t", perm=[1, 0]),
        onnx_node("MatMul", "t h", "q"),
        onnx_node("LayerNormalization", "q s c", "y", axis=-1),
        onnx_node("ReduceMean", "y", "loss", keepdims=0),
    ]
    numbers = {"root": math.sqrt(2), "one": 1.0, "half": 0.5}
    constants = {name: np.asarray(number) for name, number in numbers.items()}
    for k, item in enumerate(nodes):
        item.name = f"node{k}"
    model = in_float32(foreign_model(nodes, feeds, ["y", "loss"], constants, 17))
    session = onnxruntime.SessionOptions()
    session.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session.optimized_model_filepath = str(tmp_path / "fused.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), session, ["CPUExecutionProvider"])
    fused = onnx.load(tmp_path / "fused.onnx")
    assert {"BiasGelu", "FusedMatMul"} <= {item.op_type for item in fused.graph.node}
    single = {name: array.astype(np.float32) for name, array in feeds.items()}
    xs = ["x", "b", "s"]
    wanted = runtime(memplan.gradients(model, "y", xs), single)
    found = runtime(memplan.gradients(fused, "y", xs), single)
    for name in xs:
        np.testing.assert_allclose(
            found[f"{name}_grad"], wanted[f"{name}_grad"], rtol=1e-3, atol=1e-4
        )
    options = memplan.GradOptions("loss", wrt=tuple(xs))
    step = memplan.grad(tmp_path / "fused.onnx", options, tmp_path / "step.onnx")
    assert step.check.verdict == "equal"


def test_other_graphs_are_left_alone() -> None:
    feeds = {"x": some(3)}
    model = foreign_model([onnx_node("Relu", "x", "y")], feeds, ["y"])
    assert opened(model) is model
    strange = foreign_model([node("MoE", "x", "y")], feeds, ["y"])
    assert opened(strange) is strange
    with pytest.raises(ModelError, match=r"no gradient is known for com\.microsoft:MoE"):
        memplan.gradients(strange, "y", "x")


# -- nodes that do not fit ---------------------------------------------------------------------

FOREIGN = sorted((domain, op) for domain, op in registered() if domain in (MICROSOFT, ATEN))


@pytest.mark.parametrize(("domain", "op"), FOREIGN)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (1, 2, 3, 4)], ids=str)
def test_nodes_that_do_not_fit_are_errors_of_the_model(
    domain: str, op: str, shape: tuple[int, ...]
) -> None:
    """Nobody has checked them before: any number of inputs of any shape."""
    attributes = {"operator": "embedding"} if domain == ATEN else {}
    for count in range(8):
        item = node(op, " ".join(["x"] * count), "p q", domain, **attributes)
        with suppress(ModelError):
            written_out(foreign_model([item], {"x": some(*shape)}, ["p"]))


@pytest.mark.parametrize("value", ["text", 7, [1, 2, 3], 0.5], ids=str)
@pytest.mark.parametrize("name", ["axis", "reduction", "transA", "alpha", "epsilon", "perm"])
def test_attributes_that_do_not_fit_are_errors_of_the_model(name: str, value: Any) -> None:
    for domain, op in FOREIGN:
        nodes = [node(op, "x x x x x", "p q", domain, **{name: value})]
        with suppress(ModelError):
            written_out(foreign_model(nodes, {"x": some(2, 3, 4)}, ["p"]))


def test_an_embedding_that_names_a_number() -> None:
    item = node("ATen", "w i", "y", ATEN, operator=7)
    model = foreign_model([item], {"w": some(5, 3)}, ["y"], {"i": np.asarray([1])})
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() == [1]
    assert opened(model) is model
