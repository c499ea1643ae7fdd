"""Elementwise, comparison, logic and type operators."""

from __future__ import annotations

import numpy as np
from cases import Catalogue, Const, f32, given, scalar, typed

FLOAT_UNARY = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Celu",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsNaN",
    "IsInf",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
]
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "Max", "Min", "Sum", "Mean"]
COMPARE = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
LOGIC = ["And", "Or", "Xor"]
BITWISE = ["BitwiseAnd", "BitwiseOr", "BitwiseXor"]
DTYPES = ["float16", "float64", "int32", "int64", "uint8", "bool"]


def _unary(book: Catalogue) -> None:
    for op in FLOAT_UNARY:
        book.add(op, "float32", f32(5, 17, 24))
        for dtype in ("float16", "float64") if op != "Celu" else ():
            book.add(op, dtype, typed(dtype, 5, 17, 24))
    for op in ["Abs", "Identity", "Neg", "Relu", "Sign"]:
        for dtype in ("int8", "int32", "int64"):
            book.add(op, dtype, typed(dtype, 5, 17, 24))
    book.add("Not", "bool", typed("bool", 5, 17, 24))
    book.add("Identity", "bool", typed("bool", 5, 17, 24))
    book.add("BitwiseNot", "int32", typed("int32", 5, 17, 24))
    book.add("Gelu", "tanh", f32(5, 17, 24), approximate="tanh")
    book.add("Gelu", "tanh large", f32(16, 64, 256), approximate="tanh")
    book.add("Gelu", "none large", f32(16, 64, 256))
    book.add("Swish", "float32", f32(5, 17, 24), opset=24)
    for dtype in ("float32", "int64", "float16"):
        like = np.array(0.25 if dtype != "int64" else 2, dtype)
        book.add("Clip", f"{dtype} min max", typed(dtype, 5, 17, 24), Const(like), Const(like * 2))
        book.add("Clip", f"{dtype} max only", typed(dtype, 5, 17, 24), None, Const(like))


def _binary(book: Catalogue) -> None:
    for op in BINARY:
        extra = {"fmod": 1} if op == "Mod" else {}
        book.add(op, "same", f32(5, 17, 24), f32(5, 17, 24), **extra)
        book.add(op, "row", f32(5, 17, 24), f32(24), **extra)
        book.add(op, "scalar", f32(5, 17, 24), f32(), **extra)
        if op == "PRelu":
            continue
        book.add(op, "both broadcast", f32(5, 1, 24), f32(17, 1), **extra)
        book.add(op, "first broadcast", f32(24), f32(5, 17, 24), **extra)
        book.add(op, "const scalar", f32(5, 17, 24), scalar(2.0), **extra)
        for dtype in ("float16", "float64", "int32", "int64"):
            if op in ("Sum", "Mean") and dtype.startswith("int"):
                continue
            book.add(op, dtype, typed(dtype, 5, 17, 24), typed(dtype, 5, 17, 24), **extra)
    book.add("Pow", "square", f32(5, 17, 24), scalar(2.0))
    book.add("Pow", "int exponent", f32(5, 17, 24), scalar(3, "int64"))
    for op in ("Max", "Min", "Sum", "Mean"):
        for count in (1, 3, 4, 5, 6):
            book.add(op, f"{count} inputs", *[f32(5, 17, 24)] * count)
        book.add(op, "3 broadcast", f32(5, 17, 24), f32(24), f32(17, 1))
        book.add(op, "3 growing", f32(24), f32(17, 1), f32(5, 1, 1))
        book.add(op, "4 growing", f32(24), f32(17, 1), f32(5, 1, 1), f32(5, 17, 24))
        book.add(op, "5 mixed", f32(24), f32(17, 24), f32(1), f32(9, 5, 17, 1), f32(9, 1, 1, 1))
        book.add(op, "4 shrinking", f32(5, 17, 24), f32(24), f32(1), f32(17, 1))
        book.add(op, "3 float64", *[typed("float64", 5, 17, 24)] * 3)
    for op in ("Max", "Min"):
        book.add(op, "3 int64", *[typed("int64", 5, 17, 24)] * 3)
        book.add(op, "3 float16", *[typed("float16", 5, 17, 24)] * 3)


def _compare(book: Catalogue) -> None:
    for op in COMPARE:
        for dtype in ("float32", "float64", "int64", "int32", "float16"):
            book.add(op, dtype, typed(dtype, 5, 17, 24), typed(dtype, 5, 17, 24))
        book.add(op, "broadcast", f32(5, 1, 24), f32(17, 1))
    book.add("Equal", "bool", typed("bool", 5, 17, 24), typed("bool", 5, 17, 24))
    for op in LOGIC:
        book.add(op, "bool", typed("bool", 5, 17, 24), typed("bool", 5, 17, 24))
        book.add(op, "broadcast", typed("bool", 5, 1, 24), typed("bool", 17, 1))
    for op in BITWISE:
        book.add(op, "int32", typed("int32", 5, 17, 24), typed("int32", 5, 17, 24))
    book.add(
        "BitShift",
        "uint32",
        typed("uint32", 5, 17, 24),
        typed("uint32", 5, 17, 24),
        direction="LEFT",
    )


def _where(book: Catalogue) -> None:
    mask = typed("bool", 5, 17, 24)
    for dtype in ("float32", "float16", "float64", "int64", "int32", "uint8", "bool"):
        book.add("Where", dtype, mask, typed(dtype, 5, 17, 24), typed(dtype, 5, 17, 24))
    book.add("Where", "scalar y", mask, f32(5, 17, 24), f32())
    book.add("Where", "scalar x", mask, f32(), f32(5, 17, 24))
    book.add("Where", "both scalar", mask, f32(), f32())
    book.add("Where", "const scalar", mask, f32(5, 17, 24), scalar(0.0))
    book.add("Where", "mask row", typed("bool", 24), f32(5, 17, 24), f32(5, 17, 24))
    book.add("Where", "mask row, row", typed("bool", 17, 1), f32(24), f32(5, 1, 1))
    book.add("Where", "x smaller", mask, f32(24), f32(5, 17, 24))
    book.add("Where", "mask smaller, x smaller", typed("bool", 17, 24), f32(17, 24), f32(5, 17, 24))
    book.add("Where", "mask scalar", typed("bool"), f32(5, 17, 24), f32(5, 17, 24))
    book.add("Where", "causal", typed("bool", 1, 1, 16, 16), f32(2, 3, 16, 16), f32(1))
    book.add("Where", "scalars", typed("bool"), f32(), f32())


def _cast(book: Catalogue) -> None:
    codes = {
        "float32": 1,
        "float16": 10,
        "float64": 11,
        "int32": 6,
        "int64": 7,
        "bool": 9,
        "uint8": 2,
        "bfloat16": 16,
    }
    for source in ("float32", "float16", "float64", "int32", "int64", "bool", "uint8"):
        for target in codes:
            book.add("Cast", f"{source} to {target}", typed(source, 5, 17, 24), to=codes[target])
    book.add("CastLike", "same size", f32(5, 17, 24), typed("int32", 1))


def _dropout(book: Catalogue) -> None:
    on, off = Const(np.array(True)), Const(np.array(False))
    for name, flag in (("training", on), ("inference", off)):
        book.add("Dropout", f"{name} mask", f32(5, 17, 24), scalar(0.3), flag, outputs=2)
        book.add("Dropout", f"{name} no mask", f32(5, 17, 24), scalar(0.3), flag)
    book.add("Dropout", "seed", f32(5, 17, 24), scalar(0.3), on, outputs=2, seed=7)
    book.add(
        "Dropout", "float64", typed("float64", 5, 17, 24), scalar(0.3, "float64"), on, outputs=2
    )
    book.add(
        "Dropout", "float16", typed("float16", 5, 17, 24), scalar(0.3, "float16"), on, outputs=2
    )
    book.add("Dropout", "opset 10", f32(5, 17, 24), outputs=2, opset=10, ratio=0.3)
    book.add("Dropout", "large", f32(64, 64, 33), scalar(0.1), on, outputs=2)
    book.add("Dropout", "large no mask", f32(64, 64, 33), scalar(0.1), on)
    book.add("Bernoulli", "float32", f32(5, 17, 24))
    book.add("RandomNormalLike", "float32", f32(5, 17, 24))
    book.add("RandomUniformLike", "float32", f32(5, 17, 24))
    book.add("RandomNormal", "shape", shape=[5, 17, 24])
    book.add("RandomUniform", "shape", shape=[5, 17, 24])
    book.add("Multinomial", "float32", f32(5, 24), sample_size=9)
    book.add("OptionalGetElement", "tensor", f32(5, 17, 24))
    book.add("OptionalHasElement", "tensor", f32(5, 17, 24))
    book.add("QuantizeLinear", "uint8", f32(5, 17, 24), scalar(0.1), Const(np.array(3, np.uint8)))
    book.add(
        "DequantizeLinear",
        "uint8",
        typed("uint8", 5, 17, 24),
        scalar(0.1),
        Const(np.array(3, np.uint8)),
    )
    book.add("DequantizeLinear", "int32", typed("int32", 5, 17, 24), scalar(0.1))
    book.add("DynamicQuantizeLinear", "float32", f32(5, 17, 24), outputs=3)
    book.add("HannWindow", "17", given(17))
    book.add("HammingWindow", "17", given(17))
    book.add("BlackmanWindow", "17", given(17))


def fill(book: Catalogue) -> None:
    """Add this module's cases."""
    for part in (_unary, _binary, _compare, _where, _cast, _dropout):
        part(book)
