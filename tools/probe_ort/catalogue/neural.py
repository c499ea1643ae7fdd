"""Convolution, pooling, normalization, products, recurrence, attention, resizing."""

from __future__ import annotations

import numpy as np
from cases import Catalogue, Const, f32, given, ints, scalar, typed


def _conv(book: Catalogue) -> None:
    add = book.add
    add("Conv", "3x3", f32(2, 8, 14, 15), f32(12, 8, 3, 3))
    add("Conv", "3x3 pad bias", f32(2, 8, 14, 15), f32(12, 8, 3, 3), f32(12), pads=[1] * 4)
    add("Conv", "3x3 same shape", f32(2, 8, 14, 15), f32(8, 8, 3, 3), pads=[1] * 4)
    add("Conv", "3x3 stride", f32(2, 8, 14, 15), f32(12, 8, 3, 3), pads=[1] * 4, strides=[2, 2])
    add("Conv", "3x3 dilated", f32(2, 8, 14, 15), f32(12, 8, 3, 3), dilations=[2, 2])
    add("Conv", "1x1", f32(2, 8, 14, 15), f32(12, 8, 1, 1))
    add("Conv", "1x1 stride", f32(2, 8, 14, 15), f32(12, 8, 1, 1), strides=[2, 2])
    add("Conv", "1x1 pad", f32(2, 8, 14, 15), f32(12, 8, 1, 1), pads=[1] * 4)
    add("Conv", "grouped", f32(2, 8, 14, 15), f32(12, 4, 3, 3), group=2, pads=[1] * 4)
    add("Conv", "depthwise", f32(2, 8, 14, 15), f32(8, 1, 3, 3), group=8, pads=[1] * 4)
    add(
        "Conv",
        "depthwise stride",
        f32(2, 8, 14, 15),
        f32(8, 1, 3, 3),
        group=8,
        pads=[1] * 4,
        strides=[2, 2],
    )
    add("Conv", "depthwise 5x5", f32(2, 8, 14, 15), f32(8, 1, 5, 5), group=8, pads=[2] * 4)
    add("Conv", "depthwise multiplier", f32(2, 8, 14, 15), f32(16, 1, 3, 3), group=8)
    add("Conv", "1D", f32(2, 8, 40), f32(12, 8, 3), pads=[1, 1])
    add("Conv", "1D large kernel", f32(2, 8, 400), f32(12, 8, 31))
    add("Conv", "1D depthwise", f32(2, 8, 40), f32(8, 1, 3), pads=[1, 1], group=8)
    add("Conv", "3D", f32(2, 4, 6, 7, 8), f32(6, 4, 3, 3, 3), pads=[1] * 6)
    add("Conv", "3D 1x1", f32(2, 4, 6, 7, 8), f32(6, 4, 1, 1, 1))
    add("Conv", "image out", f32(2, 8, 14, 15), f32(1, 8, 3, 3), pads=[1] * 4)
    add("Conv", "one channel", f32(2, 1, 28, 28), f32(12, 1, 5, 5))
    add("Conv", "float64", typed("float64", 2, 8, 14, 15), typed("float64", 12, 8, 3, 3))
    add("Conv", "weight gradient", f32(8, 2, 16, 16), f32(12, 2, 14, 14))
    add("Conv", "weight gradient dilated", f32(8, 2, 17, 17), f32(12, 2, 8, 8), dilations=[2, 2])
    add("Conv", "medium", f32(4, 32, 32, 32), f32(48, 32, 3, 3), pads=[1] * 4)
    add("Conv", "wide", f32(1, 64, 56, 56), f32(64, 64, 3, 3), pads=[1] * 4)
    add("Conv", "stem", f32(1, 3, 64, 64), f32(32, 3, 7, 7), pads=[3] * 4, strides=[2, 2])
    add("Conv", "same upper", f32(2, 8, 14, 15), f32(12, 8, 3, 3), auto_pad="SAME_UPPER")
    add("Conv", "valid 1x1", f32(2, 8, 14, 15), f32(12, 8, 1, 1), auto_pad="VALID")
    add(
        "Conv",
        "constant weight",
        f32(2, 8, 14, 15),
        Const(np.ones((12, 8, 3, 3), np.float32)),
        pads=[1] * 4,
    )
    add(
        "Conv",
        "constant depthwise",
        f32(2, 8, 14, 15),
        Const(np.ones((8, 1, 3, 3), np.float32)),
        pads=[1] * 4,
        group=8,
    )


def _conv_threads(book: Catalogue) -> None:
    """Sizes around the borders of the thread rule and of the choice of algorithm."""
    add = book.add
    for batch in (1, 3):
        for label, filters, size in (
            ("tiny", 2, 6),
            ("narrow", 4, 5),
            ("small", 12, 12),
            ("square", 32, 24),
            ("few pixels", 8, 3),
        ):
            add(
                "Conv",
                f"{label} batch {batch}",
                f32(batch, 8, size, size),
                f32(filters, 8, 3, 3),
                pads=[1] * 4,
            )
        add("Conv", f"depthwise batch {batch}", f32(batch, 3, 14, 14), f32(3, 1, 3, 3), group=3)
        add("Conv", f"full width batch {batch}", f32(batch, 1, 14, 15), f32(7, 1, 3, 15))
        add("Conv", f"full height batch {batch}", f32(batch, 1, 14, 15), f32(7, 1, 14, 1))
        add(
            "Conv",
            f"grouped weight gradient batch {batch}",
            f32(batch, 8, 16, 16),
            f32(36, 2, 14, 14),
            group=4,
        )


def _conv_transpose(book: Catalogue) -> None:
    add = book.add
    x = f32(2, 8, 7, 9)
    add("ConvTranspose", "3x3", x, f32(8, 12, 3, 3))
    add("ConvTranspose", "3x3 bias", x, f32(8, 12, 3, 3), f32(12))
    add("ConvTranspose", "stride", x, f32(8, 12, 3, 3), strides=[2, 2], pads=[1] * 4)
    add("ConvTranspose", "grouped", x, f32(8, 6, 3, 3), group=2)
    add("ConvTranspose", "depthwise", x, f32(8, 1, 3, 3), group=8)
    add("ConvTranspose", "1x1", x, f32(8, 12, 1, 1))
    add("ConvTranspose", "dilated", x, f32(8, 12, 3, 3), dilations=[2, 2])
    add("ConvTranspose", "2x2 stride 2", x, f32(8, 12, 2, 2), strides=[2, 2])
    add("ConvTranspose", "1D", f32(2, 8, 40), f32(8, 12, 3))
    add("ConvTranspose", "3D", f32(2, 4, 5, 6, 7), f32(4, 6, 3, 3, 3))
    add("ConvTranspose", "same shape", x, f32(8, 8, 3, 3), pads=[1] * 4)
    add("ConvTranspose", "output shape", x, f32(8, 12, 3, 3), strides=[2, 2], output_shape=[14, 18])
    add("ConvTranspose", "float64", typed("float64", 2, 8, 7, 9), typed("float64", 8, 12, 3, 3))
    add("ConvTranspose", "one image", f32(1, 8, 7, 9), f32(8, 12, 3, 3))
    add("ConvTranspose", "constant weight", x, Const(np.ones((8, 12, 3, 3), np.float32)))
    add("ConvTranspose", "large", f32(4, 32, 28, 28), f32(32, 24, 3, 3), pads=[1] * 4)
    add("ConvInteger", "3x3", typed("uint8", 2, 8, 14, 15), typed("uint8", 12, 8, 3, 3))
    add("DeformConv", "3x3", f32(1, 4, 8, 8), f32(6, 4, 3, 3), f32(1, 18, 6, 6))
    add("Col2Im", "plain", f32(1, 5 * 4, 9), ints(4, 4), ints(2, 2))


def _pool(book: Catalogue) -> None:
    x = f32(2, 8, 14, 15)
    for op in ("MaxPool", "AveragePool", "LpPool"):
        book.add(op, "2x2", x, kernel_shape=[2, 2], strides=[2, 2])
        book.add(op, "3x3 pad", x, kernel_shape=[3, 3], pads=[1] * 4)
        book.add(op, "1D", f32(2, 8, 40), kernel_shape=[3])
        book.add(op, "3D", f32(2, 4, 6, 7, 8), kernel_shape=[2, 2, 2])
        book.add(op, "unit", x, kernel_shape=[1, 1])
    book.add("MaxPool", "indices", x, kernel_shape=[2, 2], strides=[2, 2], outputs=2)
    book.add("MaxPool", "indices 3x3", x, kernel_shape=[3, 3], pads=[1] * 4, outputs=2)
    book.add("MaxPool", "dilated", x, kernel_shape=[3, 3], dilations=[2, 2])
    book.add("MaxPool", "float64", typed("float64", 2, 8, 14, 15), kernel_shape=[2, 2])
    book.add(
        "AveragePool", "include pad", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1
    )
    for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        book.add(op, "2D", x)
        book.add(op, "unit", f32(2, 8, 1, 1))
    where = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5) * 4
    book.add("MaxUnpool", "2x2", f32(2, 3, 4, 5), given(where), kernel_shape=[2, 2], strides=[2, 2])
    rois = Const(np.array([[0, 0, 0, 7, 7], [1, 2, 2, 9, 9]], np.float32))
    book.add("MaxRoiPool", "plain", x, rois, pooled_shape=[2, 2])
    book.add("RoiAlign", "plain", x, Const(rois.value[:, 1:]), given([0, 1]))


def _normalize(book: Catalogue) -> None:
    x, c, e = f32(2, 8, 7, 9), f32(8), 1e-5
    book.add("BatchNormalization", "inference", x, c, c, c, c)
    book.add("BatchNormalization", "training", x, c, c, c, c, outputs=3, training_mode=1)
    book.add(
        "BatchNormalization",
        "training large",
        f32(16, 24, 20, 21),
        f32(24),
        f32(24),
        f32(24),
        f32(24),
        outputs=3,
        training_mode=1,
    )
    book.add(
        "BatchNormalization",
        "training 2D",
        f32(16, 24),
        f32(24),
        f32(24),
        f32(24),
        f32(24),
        outputs=3,
        training_mode=1,
    )
    book.add("BatchNormalization", "inference 2D", f32(16, 24), f32(24), f32(24), f32(24), f32(24))
    d = typed("float64", 8)
    book.add(
        "BatchNormalization",
        "training float64",
        typed("float64", 2, 8, 7, 9),
        d,
        d,
        d,
        d,
        outputs=3,
        training_mode=1,
    )
    book.add("BatchNormalization", "inference float64", typed("float64", 2, 8, 7, 9), d, d, d, d)
    book.add("BatchNormalization", "opset 9", x, c, c, c, c, opset=9)
    book.add("InstanceNormalization", "2D", x, c, c)
    book.add("InstanceNormalization", "large", f32(4, 24, 20, 21), f32(24), f32(24))
    book.add("GroupNormalization", "21", x, c, c, num_groups=2, opset=21)
    book.add("LRN", "plain", x, size=3)
    book.add("LRN", "large", f32(4, 24, 20, 21), size=5)
    for dtype in ("float32", "float64", "float16"):
        for outputs in (1, 2, 3):
            h, g = typed(dtype, 5, 17, 24), typed(dtype, 24)
            book.add(
                "LayerNormalization",
                f"{dtype} {outputs} outputs",
                h,
                g,
                g,
                outputs=outputs,
                axis=-1,
            )
        book.add("LayerNormalization", f"{dtype} no bias", h, g, axis=-1)
        book.add(
            "LayerNormalization",
            f"{dtype} axis 1",
            h,
            typed(dtype, 17, 24),
            typed(dtype, 17, 24),
            axis=1,
            outputs=3,
        )
        book.add("RMSNormalization", dtype, h, g, axis=-1, opset=23)
        book.add("SimplifiedLayerNormalization", dtype, h, g, axis=-1)
        book.add("SimplifiedLayerNormalization", f"{dtype} 2 outputs", h, g, axis=-1, outputs=2)
    book.add(
        "LayerNormalization",
        "broadcast scale",
        f32(5, 17, 24),
        f32(17, 24),
        f32(17, 24),
        axis=-1,
        outputs=3,
    )
    book.add(
        "LayerNormalization", "large", f32(16, 64, 128), f32(128), f32(128), outputs=3, epsilon=e
    )


def _product(book: Catalogue) -> None:
    add = book.add
    shapes = {
        "2D": ((17, 24), (24, 9)),
        "square": ((24, 24), (24, 24)),
        "batched": ((3, 4, 17, 24), (3, 4, 24, 9)),
        "3D by 2D": ((5, 17, 24), (24, 9)),
        "2D by 3D": ((17, 24), (5, 24, 9)),
        "broadcast": ((3, 1, 17, 24), (4, 24, 9)),
        "vector": ((24,), (24, 9)),
        "by vector": ((5, 17, 24), (24,)),
        "dot": ((24,), (24,)),
        "large": ((256, 192), (192, 320)),
        "outer": ((17, 1), (1, 24)),
        "batched square": ((3, 24, 24), (3, 24, 24)),
    }
    for name, (a, b) in shapes.items():
        add("MatMul", name, f32(*a), f32(*b))
    for dtype in ("float64", "int64", "int32", "float16"):
        add("MatMul", dtype, typed(dtype, 3, 17, 24), typed(dtype, 3, 24, 9))
        if dtype[0] == "f":
            add("Gemm", dtype, typed(dtype, 17, 24), typed(dtype, 24, 9), typed(dtype, 9))
    add("MatMul", "constant weight", f32(5, 17, 24), Const(np.ones((24, 9), np.float32)))
    add("Gemm", "plain", f32(17, 24), f32(24, 9))
    add("Gemm", "square with c", f32(24, 24), f32(24, 24), f32(24, 24))
    add("Gemm", "row", f32(17, 24), f32(24, 9), f32(9))
    add("Gemm", "column", f32(17, 24), f32(24, 9), f32(17, 1))
    add("Gemm", "scalar", f32(17, 24), f32(24, 9), f32())
    add("Gemm", "transposed", f32(24, 17), f32(9, 24), f32(9), transA=1, transB=1)
    add("Gemm", "beta 0", f32(17, 24), f32(24, 9), f32(9), beta=0.0)
    add("Gemm", "alpha beta", f32(17, 24), f32(24, 9), f32(9), alpha=0.5, beta=2.0)
    add("Gemm", "transB", f32(17, 24), f32(9, 24), transB=1)
    add("Gemm", "transA", f32(24, 17), f32(24, 9), transA=1)
    add(
        "Gemm",
        "constant weight",
        f32(17, 24),
        Const(np.ones((9, 24), np.float32)),
        f32(9),
        transB=1,
    )
    add("Gemm", "large", f32(256, 192), f32(192, 320), f32(320))
    add("MatMulInteger", "2D", typed("uint8", 17, 24), typed("uint8", 24, 9))
    add("Det", "plain", f32(3, 5, 5))


def _einsum(book: Catalogue) -> None:
    add = book.add
    for text, shapes_ in (
        ("ij,jk->ik", ((17, 24), (24, 9))),
        ("bij,bjk->bik", ((3, 17, 24), (3, 24, 9))),
        ("bhid,bhjd->bhij", ((2, 3, 7, 8), (2, 3, 9, 8))),
        ("bij,kj->bik", ((3, 17, 24), (9, 24))),
        ("bhij,bhjd->bhid", ((2, 3, 7, 9), (2, 3, 9, 8))),
        ("ij->ji", ((17, 24),)),
        ("bihd,bjhd->bhij", ((2, 7, 3, 8), (2, 9, 3, 8))),
        ("ij->i", ((17, 24),)),
        ("ij,ij->ij", ((17, 24), (17, 24))),
        ("i,j->ij", ((17,), (24,))),
        ("ij,ij->", ((17, 24), (17, 24))),
        ("ij->ij", ((17, 24),)),
        ("bhij,bjhd->bihd", ((2, 3, 7, 9), (2, 9, 3, 8))),
        ("ijk->", ((3, 17, 24),)),
        ("ijk->ki", ((3, 17, 24),)),
        ("ijk,kl->lji", ((3, 17, 24), (24, 9))),
        ("bid,bjd->bji", ((3, 7, 8), (3, 9, 8))),
        ("bijk,bijl->bkl", ((2, 3, 5, 7), (2, 3, 5, 4))),
        ("ij,jk,kl->il", ((5, 6), (6, 7), (7, 8))),
        ("ii->i", ((7, 7),)),
    ):
        add("Einsum", text, *[f32(*s) for s in shapes_], equation=text)
    add("Einsum", "large bij,bjk->bik", f32(8, 64, 32), f32(8, 32, 48), equation="bij,bjk->bik")
    add(
        "Einsum",
        "float64",
        typed("float64", 3, 17, 24),
        typed("float64", 3, 24, 9),
        equation="bij,bjk->bik",
    )


def _recurrent(book: Catalogue) -> None:
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        states = 2 if op == "LSTM" else 1
        for label, t, b, i, h, d in (
            ("plain", 7, 3, 10, 12, 1),
            ("bidirectional", 7, 3, 10, 12, 2),
            ("one row", 7, 1, 10, 12, 1),
            ("large", 20, 16, 32, 64, 1),
            ("same", 7, 3, 12, 12, 1),
            ("wide batch", 5, 40, 8, 6, 1),
        ):
            weights = [f32(d, gates * h, i), f32(d, gates * h, h), f32(d, 2 * gates * h)]
            direction = "bidirectional" if d == 2 else "forward"
            start = [f32(d, b, h)] * states
            extra = {} if d == 1 else {"direction": direction}
            book.add(op, label, f32(t, b, i), *weights, outputs=1 + states, hidden_size=h, **extra)
            book.add(
                op,
                f"{label} initial",
                f32(t, b, i),
                *weights,
                None,
                *start,
                outputs=1 + states,
                hidden_size=h,
                **extra,
            )
        weights = [f32(1, gates * 12, 10), f32(1, gates * 12, 12)]
        book.add(op, "no bias", f32(7, 3, 10), *weights, outputs=1, hidden_size=12)
        book.add(
            op,
            "lengths",
            f32(7, 3, 10),
            *weights,
            None,
            given([7, 5, 6], "int32"),
            outputs=1 + states,
            hidden_size=12,
        )
        book.add(
            op,
            "reverse",
            f32(7, 3, 10),
            *weights,
            outputs=1 + states,
            hidden_size=12,
            direction="reverse",
        )
        book.add(
            op, "last state only", f32(7, 3, 10), *weights, outputs=2, absent=[0], hidden_size=12
        )
        weights.append(f32(1, 2 * gates * 12))
        book.add(
            op,
            "reverse bias lengths",
            f32(7, 3, 10),
            *weights,
            given([7, 5, 6], "int32"),
            outputs=1 + states,
            hidden_size=12,
            direction="reverse",
        )
        book.add(op, "nothing but Y", f32(7, 3, 10), *weights, outputs=1, hidden_size=12)
        if op == "LSTM":
            book.add(
                op,
                "peepholes",
                f32(7, 3, 10),
                *weights,
                None,
                None,
                None,
                f32(1, 36),
                outputs=3,
                hidden_size=12,
            )
        if op == "GRU":
            book.add(
                op,
                "linear before reset bias",
                f32(7, 3, 10),
                *weights,
                outputs=2,
                hidden_size=12,
                linear_before_reset=1,
            )
            book.add(
                op,
                "linear before reset",
                f32(7, 3, 10),
                *weights,
                outputs=2,
                hidden_size=12,
                linear_before_reset=1,
            )


def _attention(book: Catalogue) -> None:
    q, k = f32(2, 3, 16, 8), f32(2, 3, 20, 8)
    book.add("Attention", "4D", q, k, k, opset=23)
    book.add("Attention", "4D causal", q, q, q, opset=23, is_causal=1)
    book.add("Attention", "4D mask", q, k, k, f32(16, 20), opset=23)
    book.add("Attention", "4D bool mask", q, k, k, typed("bool", 16, 20), opset=23)
    book.add("Attention", "grouped", f32(2, 6, 16, 8), k, k, opset=23)
    book.add("Attention", "softcap", q, k, k, opset=23, softcap=2.0)
    book.add(
        "Attention",
        "3D",
        f32(2, 16, 24),
        f32(2, 20, 24),
        f32(2, 20, 24),
        opset=23,
        q_num_heads=3,
        kv_num_heads=3,
    )
    book.add("Attention", "qk output", q, k, k, opset=23, outputs=4, absent=[1, 2])
    half = typed("float16", 2, 3, 16, 8)
    book.add("Attention", "float16", half, half, half, opset=23)
    book.add(
        "Attention", "causal bool mask", q, q, q, typed("bool", 2, 1, 16, 16), opset=23, is_causal=1
    )
    book.add("Attention", "causal mask", q, q, q, f32(16, 16), opset=23, is_causal=1)
    book.add("Attention", "4D mask batch", q, k, k, f32(2, 3, 16, 20), opset=23)
    book.add(
        "Attention", "past", q, k, k, None, f32(2, 3, 4, 8), f32(2, 3, 4, 8), opset=23, outputs=3
    )
    book.add(
        "Attention", "large", f32(2, 4, 64, 16), f32(2, 4, 64, 16), f32(2, 4, 64, 16), opset=23
    )
    book.add(
        "RotaryEmbedding",
        "4D",
        f32(2, 3, 16, 8),
        f32(50, 4),
        f32(50, 4),
        given(np.arange(32).reshape(2, 16)),
        opset=23,
    )


def _resize(book: Catalogue) -> None:
    none = Const(np.array([], np.float32))
    for mode in ("nearest", "linear", "cubic"):
        for label, factor in (("up", 2.0), ("down", 0.5), ("same", 1.0), ("fraction", 1.5)):
            scales = Const(np.array([1, 1, factor, factor], np.float32))
            book.add("Resize", f"{mode} {label}", f32(2, 3, 10, 12), None, scales, mode=mode)
    book.add("Resize", "sizes", f32(2, 3, 10, 12), None, None, ints(2, 3, 25, 30), mode="linear")
    book.add(
        "Resize",
        "linear 3D",
        f32(2, 3, 4, 5, 6),
        None,
        Const(np.array([1, 1, 2, 2, 2], np.float32)),
        mode="linear",
    )
    book.add(
        "Resize", "nearest roi", f32(2, 3, 10, 12), none, Const(np.array([1, 1, 2, 2], np.float32))
    )
    book.add(
        "Resize",
        "antialias",
        f32(2, 3, 10, 12),
        None,
        Const(np.array([1, 1, 0.5, 0.5], np.float32)),
        mode="linear",
        antialias=1,
    )
    book.add(
        "Resize", "linear 2D", f32(10, 12), None, Const(np.array([2, 2], np.float32)), mode="linear"
    )
    book.add(
        "Resize",
        "linear channels last",
        f32(2, 10, 12, 3),
        None,
        Const(np.array([1, 2, 2, 1], np.float32)),
        mode="linear",
    )
    book.add(
        "Upsample",
        "opset 9 linear",
        f32(2, 3, 10, 12),
        Const(np.array([1, 1, 2, 2], np.float32)),
        opset=9,
        mode="linear",
    )
    book.add(
        "Upsample", "opset 9", f32(2, 3, 10, 12), Const(np.array([1, 1, 2, 2], np.float32)), opset=9
    )
    book.add("GridSample", "plain", f32(2, 3, 10, 12), f32(2, 5, 6, 2))
    book.add("AffineGrid", "plain", f32(2, 2, 3), ints(2, 3, 5, 6))
    book.add("DFT", "plain", f32(2, 16, 1), None, scalar(1, "int64"))


def fill(book: Catalogue) -> None:
    """Add this module's cases."""
    for part in (
        _conv,
        _conv_threads,
        _conv_transpose,
        _pool,
        _normalize,
        _product,
        _einsum,
        _recurrent,
        _attention,
        _resize,
    ):
        part(book)
