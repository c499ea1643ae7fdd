"""The com.microsoft operators that ONNX Runtime's own optimizer creates, where the CPU has them."""

from __future__ import annotations

import numpy as np
from cases import Catalogue, Const, f32, given, typed

MS = "com.microsoft"
UNARY = "Gelu FastGelu QuickGelu"


def _elementwise(book: Catalogue) -> None:
    for op in UNARY.split():
        for label, shape in (("plain", (5, 17, 24)), ("large", (16, 64, 256))):
            book.add(op, label, f32(*shape), domain=MS)
        book.add(op, "float16", typed("float16", 5, 17, 24), domain=MS)
    for op in ("BiasGelu", "FastGelu"):
        book.add(op, "bias", f32(5, 17, 24), f32(24), domain=MS)
        book.add(op, "bias large", f32(16, 64, 256), f32(256), domain=MS)
    book.add(
        "BiasGelu", "bias float16", typed("float16", 5, 17, 24), typed("float16", 24), domain=MS
    )
    book.add("QuickGelu", "alpha 1", f32(5, 17, 24), domain=MS, alpha=1.0)
    book.add("BiasAdd", "plain", f32(5, 17, 24), f32(24), f32(5, 17, 24), domain=MS)
    book.add(
        "BiasSoftmax",
        "plain",
        f32(5, 17, 24),
        f32(5, 1, 24),
        domain=MS,
        axis=2,
        is_inner_broadcast=0,
    )
    book.add("BiasDropout", "plain", f32(5, 17, 24), f32(24), domain=MS, outputs=2)
    book.add("BitmaskDropout", "plain", f32(5, 17, 24), domain=MS, outputs=2)
    book.add("ExpandDims", "plain", f32(5, 17, 24), Const(np.array(0, np.int32)), domain=MS)
    book.add("Inverse", "plain", f32(3, 5, 5), domain=MS)
    book.add("Trilu", "plain", f32(5, 17, 24), domain=MS)
    book.add("Rfft", "plain", f32(2, 16), domain=MS, signal_ndim=1, normalized=0, onesided=1)
    book.add("ScaledTanh", "plain", f32(5, 17, 24), opset=8, alpha=1.0, beta=2.0)
    book.add(
        "QuantizeLinear",
        "ms",
        f32(5, 17, 24),
        Const(np.array(0.1, np.float32)),
        Const(np.array(3, np.uint8)),
        domain=MS,
    )


def _norms(book: Catalogue) -> None:
    h, g = f32(5, 17, 24), f32(24)
    for outputs in (1, 4):
        absent = [1, 2] if outputs == 4 else []
        book.add(
            "SkipLayerNormalization",
            f"{outputs} outputs",
            h,
            h,
            g,
            g,
            g,
            domain=MS,
            outputs=outputs,
            absent=absent,
        )
        book.add(
            "SkipSimplifiedLayerNormalization",
            f"{outputs} outputs",
            h,
            h,
            g,
            domain=MS,
            outputs=outputs,
            absent=absent,
        )
    half, scale = typed("float16", 5, 17, 24), typed("float16", 24)
    book.add("SkipLayerNormalization", "float16", half, half, scale, scale, scale, domain=MS)
    book.add("SkipSimplifiedLayerNormalization", "float16", half, half, scale, domain=MS)
    one_row = typed("float16", 17, 24)
    book.add("SkipLayerNormalization", "float16 row skip", half, one_row, scale, scale, domain=MS)
    tokens = given(np.arange(32).reshape(4, 8), "int32")
    book.add(
        "EmbedLayerNormalization",
        "plain",
        tokens,
        tokens,
        f32(40, 16),
        f32(40, 16),
        f32(40, 16),
        f32(16),
        f32(16),
        domain=MS,
        outputs=2,
    )
    book.add(
        "GroupNorm", "plain", f32(2, 7, 9, 8), f32(8), f32(8), domain=MS, groups=2, activation=0
    )


def _products(book: Catalogue) -> None:
    for label, a, b, attributes in (
        ("2D", (17, 24), (24, 9), {}),
        ("transB", (3, 17, 24), (3, 9, 24), {"transB": 1, "alpha": 0.125}),
        ("transA", (3, 24, 17), (3, 24, 9), {"transA": 1}),
        ("batch transA", (3, 24, 17), (24, 3, 9), {"transBatchA": 0, "transBatchB": 1}),
        ("square", (24, 24), (24, 24), {"alpha": 2.0}),
    ):
        first = (3, 17, 24) if label == "batch transA" else a
        book.add("FusedMatMul", label, f32(*first), f32(*b), domain=MS, **attributes)
    book.add("TransposeMatMul", "plain", f32(17, 24), f32(24, 9), domain=MS)
    book.add(
        "FusedGemm",
        "LeakyRelu",
        f32(17, 24),
        f32(24, 9),
        domain=MS,
        activation="LeakyRelu",
        activation_alpha=0.1,
    )
    book.add(
        "FusedConv",
        "LeakyRelu",
        f32(2, 8, 14, 15),
        f32(12, 8, 3, 3),
        domain=MS,
        activation="LeakyRelu",
        activation_params=[0.1],
    )
    for activation in ("Relu", "Tanh", "Sigmoid"):
        book.add(
            "FusedGemm",
            activation,
            f32(17, 24),
            f32(24, 9),
            f32(9),
            domain=MS,
            activation=activation,
        )
        book.add(
            "FusedConv",
            activation,
            f32(2, 8, 14, 15),
            f32(12, 8, 3, 3),
            f32(12),
            domain=MS,
            activation=activation,
            pads=[1] * 4,
        )
    book.add(
        "FusedGemm", "square", f32(24, 24), f32(24, 24), f32(24, 24), domain=MS, activation="Relu"
    )
    z = f32(2, 12, 14, 15)
    book.add(
        "FusedConv",
        "sum",
        f32(2, 8, 14, 15),
        f32(12, 8, 3, 3),
        f32(12),
        z,
        domain=MS,
        activation="Relu",
        pads=[1] * 4,
    )
    book.add(
        "FusedConv",
        "1x1",
        f32(2, 8, 14, 15),
        f32(12, 8, 1, 1),
        f32(12),
        domain=MS,
        activation="Relu",
    )
    book.add("FusedConv", "1x1 sum", f32(2, 8, 14, 15), f32(12, 8, 1, 1), f32(12), z, domain=MS)
    book.add(
        "FusedConv",
        "depthwise",
        f32(2, 8, 14, 15),
        f32(8, 1, 3, 3),
        f32(8),
        domain=MS,
        activation="Relu",
        group=8,
        pads=[1] * 4,
    )
    book.add("GemmFloat8", "plain", f32(17, 24), f32(24, 9), domain=MS)
    book.add(
        "MatMulNBits",
        "plain",
        f32(17, 32),
        typed("uint8", 9, 1, 16),
        f32(9),
        domain=MS,
        K=32,
        N=9,
        bits=4,
        block_size=32,
    )
    book.add("NhwcMaxPool", "plain", typed("uint8", 2, 14, 15, 8), domain=MS, kernel_shape=[2, 2])


def _attention(book: Catalogue) -> None:
    hidden = f32(2, 16, 24)
    book.add("Attention", "plain", hidden, f32(24, 72), f32(72), domain=MS, num_heads=3)
    book.add(
        "Attention",
        "causal",
        hidden,
        f32(24, 72),
        f32(72),
        domain=MS,
        num_heads=3,
        unidirectional=1,
    )
    book.add("Attention", "large", f32(2, 64, 48), f32(48, 144), f32(144), domain=MS, num_heads=4)
    book.add(
        "MultiHeadAttention",
        "plain",
        hidden,
        f32(2, 20, 24),
        f32(2, 20, 24),
        domain=MS,
        num_heads=3,
    )
    book.add(
        "MultiHeadAttention",
        "bias",
        hidden,
        f32(2, 20, 24),
        f32(2, 20, 24),
        f32(72),
        domain=MS,
        num_heads=3,
    )
    book.add(
        "MultiHeadAttention",
        "large",
        f32(2, 64, 48),
        f32(2, 64, 48),
        f32(2, 64, 48),
        domain=MS,
        num_heads=4,
    )
    book.add(
        "RotaryEmbedding",
        "4D",
        f32(2, 3, 16, 8),
        given(np.tile(np.arange(16), (2, 1))),
        f32(50, 4),
        f32(50, 4),
        domain=MS,
    )
    book.add(
        "Attention",
        "causal mask",
        hidden,
        f32(24, 72),
        f32(72),
        given(np.ones((2, 16)), "int32"),
        domain=MS,
        num_heads=3,
        unidirectional=1,
    )
    for label, b, s, h, heads in (("a", 1, 16, 24, 3), ("b", 3, 7, 40, 5), ("c", 2, 33, 24, 1)):
        book.add(
            "Attention",
            f"shape {label}",
            f32(b, s, h),
            f32(h, 3 * h),
            f32(3 * h),
            domain=MS,
            num_heads=heads,
        )
        book.add(
            "Attention",
            f"shape {label} mask",
            f32(b, s, h),
            f32(h, 3 * h),
            f32(3 * h),
            given(np.ones((b, s)), "int32"),
            domain=MS,
            num_heads=heads,
        )
        book.add(
            "MultiHeadAttention", f"shape {label}", *[f32(b, s, h)] * 3, domain=MS, num_heads=heads
        )
    book.add(
        "MultiHeadAttention",
        "mask",
        *[hidden] * 3,
        None,
        given(np.ones((2, 16)), "int32"),
        domain=MS,
        num_heads=3,
    )


def fill(book: Catalogue) -> None:
    """Add this module's cases."""
    for part in (_elementwise, _norms, _products, _attention):
        part(book)
