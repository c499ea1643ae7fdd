"""Cross-entropy and its gradient, in all forms that onnxruntime-training writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.lowering import Array, Case, check_gradients, node, onnx_node, outputs_of, some

pytestmark = pytest.mark.ort
LABELS = np.asarray([2, 0, 1, 2])
PIXELS = np.asarray([[2, 0, 1], [1, 1, 0]])
WEIGHTS = np.asarray([0.5, 2.0, 1.5])


def scores(labels: Array) -> Array:
    """Three classes."""
    return some(labels.shape[0], 3, *labels.shape[1:])


def gradient_of(reduction: str, labels: Array) -> Array:
    """Of the loss: a number, or one of each label."""
    return some(*labels.shape, seed=1) if reduction == "none" else np.asarray(1.7)


@pytest.mark.parametrize("labels", [LABELS, LABELS.astype(np.int32), PIXELS], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 0, -100])
def test_loss(labels: Array, reduction: str, weighted: bool, ignored: int | None) -> None:
    attributes: dict[str, Any] = {"reduction": reduction}
    if ignored is not None:
        attributes["ignore_index"] = ignored
        labels = np.where(labels == 0, ignored, labels).astype(labels.dtype)
    extra = "w" if weighted else ""
    nodes = [
        onnx_node("SoftmaxCrossEntropyLoss", f"x l {extra}", "y log", **attributes),
        node("SoftmaxCrossEntropyLossGrad", f"y_grad log l {extra}", "x_grad", **attributes),
    ]
    feeds = {"x": scores(labels), "l": labels, "y_grad": gradient_of(reduction, labels)}
    check_gradients(Case(nodes, feeds, ["y", "x_grad"], {"w": WEIGHTS} if weighted else {}))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_loss_with_the_ignored_label_as_an_input(
    reduction: str, weighted: bool, bias: bool
) -> None:
    labels = np.asarray([2, -100, 1, 0])
    extra = "w" if weighted else "_"
    nodes = [
        node("SoftmaxCrossEntropyLossInternal", f"x l {extra} i", "y log", reduction=reduction),
        node(
            "SoftmaxCrossEntropyLossInternalGrad",
            f"y_grad log l {extra} i" + (" more" if bias else ""),
            "x_grad",
            reduction=reduction,
        ),
    ]
    feeds = {"x": scores(labels), "l": labels, "y_grad": gradient_of(reduction, labels)}
    constants = {"i": np.asarray(-100), "w": WEIGHTS}
    constants = {k: v for k, v in constants.items() if k != "w" or weighted}
    plain = Case(nodes, feeds, ["y", "x_grad"], constants)
    if not bias:
        check_gradients(plain)
        return
    more = some(4, 3, seed=9)
    both = Case(nodes, feeds, ["x_grad"], {**constants, "more": more})
    without = node(
        "SoftmaxCrossEntropyLossInternalGrad",
        f"y_grad log l {extra} i",
        "x_grad",
        reduction=reduction,
    )
    alone = Case([nodes[0], without], feeds, ["x_grad"], constants)
    found = outputs_of(both)["x_grad"] - more
    np.testing.assert_allclose(found, outputs_of(alone)["x_grad"], atol=1e-12)


def test_no_label_is_ignored() -> None:
    nodes = [
        node("SoftmaxCrossEntropyLossInternal", "x l", "y log"),
        node("SoftmaxCrossEntropyLossInternalGrad", "y_grad log l", "x_grad"),
    ]
    feeds = {"x": scores(LABELS), "l": LABELS, "y_grad": np.asarray(1.0)}
    check_gradients(Case(nodes, feeds, ["y", "x_grad"]))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_loss(reduction: str, weighted: bool) -> None:
    """Of an older runtime: classes last, a weight for each label."""
    x, weights = some(2, 3, 4), np.abs(some(2, 3, seed=3)) + 0.1
    labels = np.asarray([[0, 1, 3], [2, 2, 0]])
    extra = " w" if weighted else ""
    nodes = [
        onnx_node("LogSoftmax", "x", "log"),
        onnx_node("Unsqueeze", "l last", "places"),
        onnx_node("GatherElements", "log places", "picked", axis=2),
        onnx_node("Squeeze", "picked last", "flat"),
        onnx_node("Mul", "flat share", "losses"),
        onnx_node("ReduceSum", "losses", "total", keepdims=0),
        onnx_node("Neg", "total", "y"),
        node(
            "SparseSoftmaxCrossEntropyGrad",
            f"y_grad log l{extra}",
            "x_grad",
            "",
            reduction=reduction,
        ),
    ]
    share = weights if weighted else np.ones((2, 3))
    share = share / share.sum() if reduction == "mean" else share
    feeds = {"x": x, "l": labels, "y_grad": np.asarray(1.7)}
    constants = {"last": np.asarray([2]), "share": share}
    constants |= {"w": weights} if weighted else {}
    check_gradients(Case(nodes, feeds, ["y", "x_grad"], constants))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_of_probabilities(reduction: str) -> None:
    x, labels = some(4, 3), np.abs(some(4, 3, seed=2))
    labels /= labels.sum(1, keepdims=True)
    nodes = [
        onnx_node("LogSoftmax", "x", "log"),
        onnx_node("Mul", "log l", "product"),
        onnx_node("ReduceSum", "product", "total", keepdims=0),
        onnx_node("Mul", "total share", "y"),
        node("SoftmaxCrossEntropyGrad", "y_grad log l", "x_grad", reduction=reduction),
    ]
    share = np.asarray(-0.25 if reduction == "mean" else -1.0)
    feeds = {"x": x, "y_grad": np.asarray(1.7)}
    check_gradients(Case(nodes, feeds, ["y", "x_grad"], {"l": labels, "share": share}))


def test_half_precision_outputs() -> None:
    """``output_type`` names the type of loss and gradient."""
    nodes = [
        node("SoftmaxCrossEntropyLossInternal", "x l", "y log", output_type=10),
        node("SoftmaxCrossEntropyLossInternalGrad", "y_grad log l", "x_grad", output_type=10),
    ]
    feeds = {"x": scores(LABELS), "l": LABELS, "y_grad": np.asarray(1.0, np.float16)}
    case = Case(nodes, feeds, ["y", "x_grad"], types={"y": 10, "x_grad": 10})
    found = outputs_of(case)
    assert found["y"].dtype == found["x_grad"].dtype == np.float16
    shifted = np.exp(feeds["x"])
    wanted = shifted / shifted.sum(1, keepdims=True)
    wanted[np.arange(4), LABELS] -= 1
    np.testing.assert_allclose(found["x_grad"], wanted / 4, atol=1e-3)


def test_softmax_of_a_sum() -> None:
    x, bias = some(2, 3, 4), some(2, 1, 4, seed=1)
    nodes = [node("BiasSoftmax", "x b", "y", axis=2, is_inner_broadcast=1)]
    found = outputs_of(Case(nodes, {"x": x, "b": bias}, ["y"]))["y"]
    wanted = np.exp(x + bias)
    np.testing.assert_allclose(found, wanted / wanted.sum(2, keepdims=True), atol=1e-12)
