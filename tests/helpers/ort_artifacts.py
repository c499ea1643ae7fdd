"""Files as onnxruntime-training 1.19 wrote them, made by hand: artifacts, optimizer models, and
graphs of ORTModule."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from helpers.lowering import MICROSOFT, node, onnx_node

SIZES = {"fc1.weight": (6, 4), "fc1.bias": (6,), "fc1.gate": (6,), "fc2.weight": (3, 6)}
SIZES["fc2.bias"] = (3,)
TRAINED = tuple(name for name in SIZES if name != "fc1.gate")
"""All parameters but one, which is frozen."""
LOSS, LOSS_GRAD = "onnx::loss::2", "onnx::loss::2_grad"
_FLOAT, _INT64, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_IMPORTS = (("", 17), (MICROSOFT, 1), ("ai.onnx.ml", 5), ("com.ms.internal.nhwc", 19))


def _value(name: str, shape: Any, dtype: int = _FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    imports = [helper.make_opsetid(domain, version) for domain, version in _IMPORTS]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="pytorch")


def _forward() -> list[onnx.NodeProto]:
    return [
        onnx_node("Gemm", "x fc1.weight fc1.bias", "a", "/fc1/Gemm", transB=1),
        onnx_node("Mul", "a fc1.gate", "s", "/fc1/Mul"),
        onnx_node("Relu", "s", "h", "/Relu"),
        onnx_node("Gemm", "h fc2.weight fc2.bias", "output", "/fc2/Gemm", transB=1),
    ]


def _backward() -> list[onnx.NodeProto]:
    """From ``output_grad``."""
    return [
        onnx_node("Gemm", "output_grad h", "fc2.weight_grad", "/fc2/Gemm_Grad/Gemm_1", transA=1),
        onnx_node("ReduceSum", "output_grad zero", "dC", "/fc2/Gemm_Grad/ReduceSum_3", keepdims=0),
        onnx_node("Identity", "dC", "fc2.bias_grad", "/fc2/Gemm_Grad/Identity_4"),
        onnx_node("Gemm", "output_grad fc2.weight", "h_grad", "/fc2/Gemm_Grad/Gemm_0"),
        node("ReluGrad", "h_grad h", "s_grad", name="/Relu_Grad/ReluGrad_0"),
        onnx_node("Mul", "s_grad fc1.gate", "a_grad", "/fc1/Mul_Grad/Mul_0"),
        onnx_node("Gemm", "a_grad x", "fc1.weight_grad", "/fc1/Gemm_Grad/Gemm_1", transA=1),
        onnx_node(
            "ReduceSum", "a_grad zero", "fc1.bias_grad", "/fc1/Gemm_Grad/ReduceSum_3", keepdims=0
        ),
    ]


def training_model() -> onnx.ModelProto:
    """``training_model.onnx``: a network of two layers, cross-entropy, gradients in place."""
    loss = [
        onnx_node("SoftmaxCrossEntropyLoss", "output labels", f"{LOSS} log_prob", "loss"),
        node(
            "SoftmaxCrossEntropyLossGrad",
            f"{LOSS_GRAD} log_prob labels",
            "output_grad",
            name="loss_Grad/SoftmaxCrossEntropyLossGrad_0",
            reduction="mean",
        ),
    ]
    sums = [
        node(
            "InPlaceAccumulatorV2",
            f"{name}_grad.accumulation.buffer {name}_grad lazy_reset_grad",
            f"{name}_grad.accumulation.out",
            name=f"GradientAccumulator{k}",
        )
        for k, name in enumerate(TRAINED)
    ]
    buffers = [_value(f"{n}_grad.accumulation.buffer", SIZES[n]) for n in TRAINED]
    flags = [_value(f"{n}_grad.accumulation.out", [1], _BOOL) for n in TRAINED]
    return _model(
        helper.make_graph(
            [*_forward(), *loss, *_backward(), *sums],
            "training",
            [
                _value("x", ["N", 4]),
                _value("labels", ["N"], _INT64),
                *(_value(name, shape) for name, shape in SIZES.items()),
                *buffers,
                _value("lazy_reset_grad", [1], _BOOL),
            ],
            [_value(LOSS, []), _value("output", ["N", 3]), *flags],
            [
                numpy_helper.from_array(np.asarray(1, np.float32), LOSS_GRAD),
                numpy_helper.from_array(np.asarray([0]), "zero"),
            ],
        )
    )


def module_graph(*, alone: bool = False) -> onnx.ModelProto:
    """What ORTModule saved: the loss, or scores and a sum of squares, handed to PyTorch."""
    loss = [
        node("SoftmaxCrossEntropyLossInternal", "output labels _ ignored", "total log_prob"),
        onnx_node("Identity", "total", "loss"),
        node("YieldOp", "loss", "loss_grad", full_shape_outputs=[0]),
        node(
            "SoftmaxCrossEntropyLossInternalGrad",
            "loss_grad log_prob labels _ ignored",
            "output_grad",
        ),
    ]
    several = [
        onnx_node("ReduceSumSquare", "output", "squares", keepdims=0),
        onnx_node("ArgMax", "output", "best", axis=1),
        node(
            "YieldOp",
            "best output squares",
            "output_grad_external squares_grad",
            full_shape_outputs=[1],
            non_differentiable_outputs=[0],
        ),
        onnx_node("Mul", "output two", "slope", "squares_Grad/Mul_0"),
        onnx_node("Mul", "slope squares_grad", "output_grad_0", "squares_Grad/Mul_1"),
        onnx_node("Add", "output_grad_external output_grad_0", "output_grad", "sum_Grad"),
    ]
    inputs = [_value("x", ["N", 4])]
    constants = [numpy_helper.from_array(np.asarray([0]), "zero")]
    if alone:
        inputs.append(_value("labels", ["N"], _INT64))
        constants.append(numpy_helper.from_array(np.asarray(-100), "ignored"))
    else:
        constants.append(numpy_helper.from_array(np.asarray(2, np.float32), "two"))
    return _model(
        helper.make_graph(
            [*_forward(), *(loss if alone else several), *_backward()],
            "module",
            [*inputs, *(_value(name, shape) for name, shape in SIZES.items())],
            [_value(f"{name}_grad", SIZES[name]) for name in TRAINED],
            constants,
        )
    )


def optimizer_model(
    op: str = "AdamWOptimizer", clip: float | None = None, **attributes: Any
) -> onnx.ModelProto:
    """``optimizer_model.onnx``: one operator on sequences of tensors."""
    moments = ["first_order_moments", "second_order_moments"] if op == "AdamWOptimizer" else []
    sequences = ["params", "gradients", *moments]
    nodes = []
    gradients = "gradients"
    if clip is not None:
        nodes.append(node("InplaceClipGradNorm", "gradients", "clipped", max_norm=clip))
        gradients = "clipped"
    step = " step" if moments else ""
    given = f"learning_rate{step} params {gradients} {' '.join(moments)}"
    nodes.append(node(op, given, "update_completed", **attributes))
    return _model(
        helper.make_graph(
            nodes,
            "optimizer",
            [
                _value("learning_rate", [1]),
                *([_value("step", [1], _INT64)] if moments else []),
                *(helper.make_tensor_sequence_value_info(s, _FLOAT, None) for s in sequences),
            ],
            [_value("update_completed", [1], _INT64)],
        )
    )


def feeds(count: int = 5, seed: int = 0) -> dict[str, Any]:
    """Inputs of :func:`training_model` but for buffers."""
    draw = np.random.default_rng(seed)
    found: dict[str, Any] = {
        name: draw.standard_normal(shape).astype(np.float32) for name, shape in SIZES.items()
    }
    found["x"] = draw.standard_normal((count, 4)).astype(np.float32)
    found["labels"] = draw.integers(0, 3, count)
    return found
