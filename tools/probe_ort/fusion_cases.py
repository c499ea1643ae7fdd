"""Graphs that ONNX Runtime's optimizers look for, at the edges of shapes and ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A graph that gives ``y``: its nodes as ONNX text, and type and shape of what it reads."""

    label: str
    body: str
    inputs: Mapping[str, tuple[str, Shape]] = field(default_factory=dict)
    opset: int = 18


def _case(body: str, opset: int = 18, **shapes: Shape) -> Case:
    inputs = {name: ("float", tuple(sizes)) for name, sizes in shapes.items()}
    shown = " ".join(f"{name}{list(sizes)}" for name, sizes in shapes.items())
    return Case(f"{body} | {shown}", body, inputs, opset)


def _scalar(name: str, value: float) -> str:
    return f"{name} = Constant<value = float {{{value}}}>() "


def _ints(name: str, *values: int) -> str:
    listed = ", ".join(map(str, values))
    return f"{name} = Constant<value = int64[{len(values)}] {{{listed}}}>() "


def _perms(rank: int) -> list[list[int]]:
    last = list(range(rank))
    found = [last]
    if rank >= 2:
        found += [[*last[:-2], rank - 1, rank - 2], last[::-1]]
    if rank >= 3:
        found += [[*last[1:], 0], [1, 0, *last[2:]]]
    if rank == 4:
        found += [[0, 2, 1, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
    return [list(p) for p in dict.fromkeys(map(tuple, found))]


MATRICES: list[tuple[Shape, Shape]] = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((4, 3), (3,)),
    ((3,), (2, 3, 4)),
    ((2, 4, 3), (3,)),
    ((4, 3), (3, 5)),
    ((3, 3), (3, 3)),
    ((1, 3), (3, 1)),
    ((4, 1), (1, 5)),
    ((1, 1), (1, 1)),
    ((2, 4, 3), (3, 5)),
    ((4, 3), (2, 3, 5)),
    ((2, 4, 3), (2, 3, 5)),
    ((1, 4, 3), (2, 3, 5)),
    ((2, 4, 3), (1, 3, 5)),
    ((2, 2, 4, 3), (2, 3, 5)),
    ((2, 1, 4, 3), (1, 3, 3, 5)),
    ((2, 1, 3), (2, 3, 1)),
    ((3, 3, 3), (3, 3, 3)),
    ((3, 3, 3), (3,)),
    ((3,), (3, 3, 3)),
]


def _before(shape: Shape, perm: list[int]) -> Shape:
    """The shape that the permutation makes ``shape`` of."""
    sizes = [0] * len(shape)
    for place, source in enumerate(perm):
        sizes[source] = shape[place]
    return tuple(sizes)


def _matmul() -> Iterator[Case]:
    for left, right in MATRICES:
        for p, q in product([None, *_perms(len(left))], [None, *_perms(len(right))]):
            given = {"a": _before(left, p) if p else left, "b": _before(right, q) if q else right}
            first = f"s = Transpose<perm = {p}>(a) " if p else "s = Identity(a) "
            second = f"t = Transpose<perm = {q}>(b) " if q else "t = Identity(b) "
            core = first + second
            yield _case(core + "y = MatMul(s, t)", **given)
            scale = _scalar("c", 3.0)
            yield _case(core + scale + "m = MatMul(s, t) y = Mul(m, c)", **given)
            yield _case(core + scale + "u = Div(s, c) y = MatMul(u, t)", **given)
            yield _case(core + scale + "u = Mul(c, t) y = MatMul(s, u)", **given)
            yield _case(
                "e = Neg(a) f = Neg(b) "
                + core.replace("(a)", "(e)").replace("(b)", "(f)")
                + "m = MatMul(s, t) y = Neg(m)",
                **given,
            )


def _after_matmul() -> Iterator[Case]:
    biases: list[Shape] = [(), (1,), (5,), (1, 5), (4, 1), (4, 5), (1, 1), (1, 4, 5), (2, 1, 5)]
    for (left, right), bias, name in product(MATRICES, biases, ("bias", "BIAS")):
        for body in ("m = MatMul(a, b) y = Add(m, X)", "m = MatMul(a, b) y = Add(X, m)"):
            yield _case(body.replace("X", name), a=left, b=right, **{name: bias})
        yield _case(
            f"m = MatMul(a, B) n = Add(m, {name}) y = Relu(n)", a=left, B=right, **{name: bias}
        )
    for act in (
        "Relu",
        "Sigmoid",
        "Tanh",
        "LeakyRelu<alpha = 0.3>",
        "Softplus",
        "Elu",
        "HardSigmoid",
        "Selu",
        "ThresholdedRelu",
        "Softsign",
        "ParametricSoftplus",
    ):
        yield _case(f"m = Gemm(a, b, c) y = {act}(m)", a=(4, 3), b=(3, 5), c=(5,))
    for (left, right), perm in product(MATRICES, ([0, 1], [1, 0])):
        for bias in ((5,), (4, 5), (1, 5)):
            for text in (
                f"t = Transpose<perm = {perm}>(a) m = MatMul(t, b) y = Add(m, c)",
                f"t = Transpose<perm = {perm}>(b) m = MatMul(a, t) y = Add(m, c)",
                f"m = MatMul(a, b) n = Add(m, c) y = Transpose<perm = {perm}>(n)",
            ):
                yield _case(text, a=left, b=right, c=bias)
                yield _case(text, a=(4, 4), b=(4, 4), c=(4,))


def _gemm() -> Iterator[Case]:
    biases: list[Shape] = [(), (1,), (4,), (1, 4), (4, 1), (4, 4)]
    for perm, bias, ta, tb in product(([0, 1], [1, 0], None), biases, (0, 1), (0, 1)):
        attributes = f"<transA = {ta}, transB = {tb}, alpha = 0.5, beta = 2.0>"
        t = f"Transpose<perm = {perm}>" if perm else "Transpose"
        square = {"a": (4, 4), "b": (4, 4), "c": bias}
        for e in ("", "e = Neg(a) f = Neg(b) "):
            a, b = ("e", "f") if e else ("a", "b")
            yield _case(f"{e}t = {t}({a}) y = Gemm{attributes}(t, {b}, c)", **square)
            yield _case(f"{e}t = {t}({b}) y = Gemm{attributes}({a}, t, c)", **square)
            yield _case(f"{e}g = Gemm{attributes}({a}, {b}, c) y = {t}(g)", **square)
            yield _case(
                f"{e}s = {t}({a}) t = {t}({b}) g = Gemm{attributes}(s, t, c) y = {t}(g)", **square
            )
    for extra, bias in product(biases, biases):
        yield _case("g = Gemm(a, b) y = Add(g, d)", a=(4, 3), b=(3, 4), d=extra)
        yield _case("g = Gemm(a, b) y = Sum(g, d)", a=(4, 3), b=(3, 4), d=extra)
        yield _case("g = Gemm(a, b, c) y = Sum(g, d)", a=(4, 3), b=(3, 4), c=bias, d=extra)
        yield _case(
            "g = Gemm<beta = 0.5>(a, b, c) y = Add(g, d)", a=(4, 3), b=(3, 4), c=bias, d=extra
        )
    for alpha, beta in product((1.0, 0.5), (1.0, 0.5, 0.0)):
        for cut in ("m = Gemm<alpha = A0, beta = B0>(a, B, C)", "m = Gemm<alpha = A0>(a, B)"):
            text = cut.replace("A0", str(alpha)).replace("B0", str(beta))
            norm = "y = BatchNormalization(m, SC, SH, MU, VA)"
            yield _case(
                f"{text} {norm}", a=(4, 3), B=(3, 5), C=(5,), SC=(5,), SH=(5,), MU=(5,), VA=(5,)
            )
    for shape in ((4, 3), (2, 4, 3)):
        yield _case(
            "m = MatMul(a, B) y = BatchNormalization(m, SC, SH, MU, VA)",
            a=shape,
            B=(3, 4),
            SC=(4,),
            SH=(4,),
            MU=(4,),
            VA=(4,),
        )


def _conv() -> Iterator[Case]:
    added: list[Shape] = [
        (),
        (1,),
        (6, 1, 1),
        (1, 6, 1, 1),
        (1, 1, 1, 1),
        (1, 1, 1, 4),
        (4, 4),
        (1, 6, 4, 4),
        (2, 6, 4, 4),
        (1, 1, 4, 1),
        (6, 4, 4),
        (2, 1, 1, 1),
    ]
    for shape, op, bias, g in product(added, ("Add", "Mul", "Sub", "Div"), ("", ", C"), (1, 2)):
        given = {"x": (2, 4, 6, 6), "W": (6, 4 // g, 3, 3)} | ({"C": (6,)} if bias else {})
        core = f"m = Conv<group = {g}>(x, W{bias}) "
        yield _case(core + f"y = {op}(m, S)", **given, S=shape)
        yield _case(core + f"y = {op}(S, m)", **given, S=shape)
        if op == "Add":
            yield _case(core + "n = Add(m, s) y = Relu(n)", **given, s=shape)
    norms = {"SC": (6,), "SH": (6,), "MU": (6,), "VA": (6,)}
    for act in (
        "Relu",
        "Sigmoid",
        "Tanh",
        "LeakyRelu<alpha = 0.3>",
        "HardSigmoid<alpha = 0.3>",
        "HardSwish",
    ):
        yield _case(f"m = Conv(x, W) y = {act}(m)", x=(2, 4, 6, 6), W=(6, 4, 3, 3))
        yield _case(
            f"m = Conv(x, W) n = BatchNormalization(m, SC, SH, MU, VA) y = {act}(n)",
            x=(2, 4, 6, 6),
            W=(6, 4, 3, 3),
            **norms,
        )
    for low, high in ((0.0, 6.0), (-1.0, 1.0), (0.5, 0.25)):
        clip = _scalar("lo", low) + _scalar("hi", high)
        yield _case(clip + "m = Conv(x, W) y = Clip(m, lo, hi)", x=(2, 4, 6, 6), W=(6, 4, 3, 3))
        yield _case(clip + "m = Relu(x) y = Clip(m, lo, hi)", x=(2, 4))
        yield _case(clip + "m = Clip(x, lo, hi) y = Relu(m)", x=(2, 4))
        yield _case(clip + "m = Relu(x) y = Clip(m, lo)", x=(2, 4))
    pads = (
        (0, 0, 1, 1, 0, 0, 1, 1),
        (0, 0, 0, 2, 0, 0, 1, 0),
        (0, 1, 0, 0, 0, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0, 0),
        (0, 0, 0, 0, 0, 0, 0, 0),
    )
    for pad, mode, value in product(pads, ("constant", "reflect", "edge"), (None, 0.0, 1.5, -9.0)):
        c = _scalar("v", value) if value is not None else ""
        core = _ints("p", *pad) + c + f'q = Pad<mode = "{mode}">(x, p{", v" if c else ""}) '
        given = {"x": (2, 4, 6, 6)}
        channels = 4 + pad[1]
        yield _case(core + "y = Conv(q, W)", **given, W=(6, channels, 3, 3))
        yield _case(core + "y = Conv<pads = [1, 1, 1, 1]>(q, W)", **given, W=(6, channels, 3, 3))
        for include, kept, ceil in product((0, 1), ([0, 0, 0, 0], [1, 1, 1, 1]), (0, 1)):
            yield _case(
                core + f"y = AveragePool<kernel_shape = [3, 3], count_include_pad = "
                f"{include}, pads = {kept}, ceil_mode = {ceil}, strides = [2, 2]>(q)",
                **given,
            )
            if include:
                yield _case(
                    core + f"y = MaxPool<kernel_shape = [3, 3], pads = {kept}, "
                    f"ceil_mode = {ceil}, strides = [2, 2]>(q)",
                    **given,
                )


def _norms() -> Iterator[Case]:
    scales: list[Shape] = [(), (1,), (8,), (1, 8), (1, 1, 8), (4, 8), (4, 1), (2, 4, 8), (2, 1, 8)]
    half = _scalar("two", 2.0) + _scalar("eps", 1e-5)
    for scale, axes, cast in product(scales, ([-1], [2], [1], [1, 2], [0]), ("Pow", "Mul")):
        square = "q = Pow(d, two)" if cast == "Pow" else "q = Mul(d, d)"
        core = half + _ints("ax", *axes) + f"m = ReduceMean(x, ax) d = Sub(x, m) {square} "
        core += "v = ReduceMean(q, ax) e = Add(v, eps) r = Sqrt(e) n = Div(d, r) "
        shapes = {"x": (2, 4, 8), "S": scale, "B": scale}
        yield _case(core + "s = Mul(n, S) y = Add(s, B)", **shapes)
        yield _case(core + "s = Mul(n, S) y = Add(s, B)", **{**shapes, "B": (8,)})
        yield _case(core + "s = Mul(n, S) y = Add(s, B)", **{**shapes, "S": (8,)})
        yield _case(core + "s = Mul(n, g) y = Add(s, b)", x=(2, 4, 8), g=scale, b=scale)
        simple = half + _ints("ax", *axes) + "q = Pow(x, two) v = ReduceMean(q, ax) "
        simple += "e = Add(v, eps) r = Sqrt(e) n = Div(x, r) y = Mul(n, S)"
        yield _case(simple, x=(2, 4, 8), S=scale)
    added: list[Shape] = [(), (8,), (1, 8), (4, 8), (1, 4, 8), (2, 4, 8), (2, 1, 8), (1, 1, 8)]
    for one, two in product(added, added):
        for norm in (
            "LayerNormalization<axis = -1>(s, G, B)",
            "LayerNormalization<axis = 1>(s, G)",
            "LayerNormalization<axis = 2>(s, G, B)",
        ):
            g = (4, 8) if "axis = 1" in norm else (8,)
            for third in (
                "s = Add(a, b) ",
                "t = Add(a, b) s = Add(t, C) ",
                "t = Add(a, C) s = Add(t, b) ",
            ):
                given = {"a": one, "b": two, "G": g} | ({"B": (8,)} if ", B" in norm else {})
                given |= {"C": (8,)} if "C" in third else {}
                yield _case(third + f"y = {norm}", **given)
    for op, scale in product(("LayerNormalization", "RMSNormalization"), scales):
        yield _case(f"y = {op}<axis = -1>(x, S)", opset=23, x=(2, 4, 8), S=scale)


def _gelus() -> Iterator[Case]:
    biases: list[Shape] = [(), (1,), (8,), (1, 8), (4, 8), (2, 4, 8), (4, 1)]
    for shape, root, one, half in product(
        [None, *biases], (1.4142135, 1.5), (1.0, 2.0), (0.5, 1.0)
    ):
        first = "b = Add(x, BIAS) " if shape is not None else "b = Identity(x) "
        constants = _scalar("r", root) + _scalar("o", one) + _scalar("h", half)
        given = {"x": (2, 4, 8)} | ({"BIAS": shape} if shape is not None else {})
        core = constants + first + "d = Div(b, r) e = Erf(d) p = Add(e, o) "
        yield _case(core + "m = Mul(b, p) y = Mul(m, h)", **given)
        yield _case(core + "m = Mul(p, h) y = Mul(b, m)", **given)
        yield _case(core + "m = Mul(x, p) y = Mul(m, h)", **given)
        tail = (
            constants + first + f'g = Gelu<approximate = "{"tanh" if half == 1 else "none"}">(b) '
        )
        yield _case(tail + "y = Neg(g)", opset=20, **given)
    for alpha in (1.702, 1.0, 2.5):
        yield _case(_scalar("c", alpha) + "m = Mul(x, c) s = Sigmoid(m) y = Mul(x, s)", x=(2, 8))
        yield _case(_scalar("c", alpha) + "m = Mul(x, c) s = Sigmoid(m) y = Mul(m, s)", x=(2, 8))
    for k, c, three in product((0.044715, 0.5), (0.7978845, 0.5), (3.0, 2.0)):
        text = _scalar("k", k) + _scalar("c", c) + _scalar("t", three) + _scalar("o", 1.0)
        text += _scalar("h", 0.5) + "p = Pow(x, t) q = Mul(p, k) a = Add(x, q) s = Mul(a, c) "
        yield _case(text + "w = Tanh(s) u = Add(w, o) m = Mul(x, u) y = Mul(m, h)", x=(2, 8))
        yield _case(text + "w = Tanh(s) u = Add(w, o) m = Mul(u, h) y = Mul(x, m)", x=(2, 8))


def _no_ops() -> Iterator[Case]:
    shapes: list[Shape] = [(), (1,), (8,), (1, 8), (4, 1), (4, 8), (2, 4, 8), (1, 1, 8)]
    for x, c in product(shapes, shapes):
        zero = f"c = ConstantOfShape<value = float[1] {{{0}}}>(sh) "
        one = zero.replace("{0}", "{1}")
        sizes = _ints("sh", *c) if c else "sh = Constant<value = int64[0] {}>() "
        for op in ("Add(x, c)", "Add(c, x)", "Sub(x, c)", "Sub(c, x)"):
            yield _case(f"{sizes}{zero}r = {op} y = Neg(r)", x=x)
        for op in ("Mul(x, c)", "Mul(c, x)", "Div(x, c)", "Div(c, x)", "Pow(x, c)"):
            yield _case(f"{sizes}{one}r = {op} y = Neg(r)", x=x)
        yield _case(f"{sizes}r = Expand(x, sh) y = Neg(r)", x=x)
        yield _case(f"{sizes}{one}d = Div(c, x) y = Mul(d, z)", x=x, z=(4, 8))
        yield _case(f"{sizes}{one}d = Div(c, x) y = Mul(z, d)", x=x, z=(8,))
    for x, z in product(shapes, shapes):
        yield _case(_scalar("o", 1.0) + "d = Div(o, x) y = Mul(d, z)", x=x, z=z)
        yield _case("s = Sum(x, z) y = Sum(s, x)", x=x, z=z)
        yield _case(_scalar("o", 0.0) + "b = Greater(x, o) n = Not(b) y = Where(n, x, z)", x=x, z=z)
        yield _case(_scalar("o", 2.0) + "d = Mul(x, o) e = Mul(z, o) y = Add(d, e)", x=x, z=z)
    for exponent in (0.0, 0.5, 1.0, 2.0, 3.0, -1.0):
        for shape in ((), (1,), (1, 1, 1), (8,)):
            yield _case(
                "c = ConstantOfShape<value = float[1] "
                f"{{{exponent}}}>(sh) a = Abs(x) y = Pow(a, c)".replace("(sh)", "(SH)").replace(
                    "c = ",
                    _ints("SH", *shape) + "c = "
                    if shape
                    else "SH = Constant<value = int64[0] {}>() c = ",
                ),
                x=(4, 8),
            )
    for chain in ("float16", "int32", "int64", "bool", "double", "bfloat16", "uint8"):
        code = {
            "float16": 10,
            "int32": 6,
            "int64": 7,
            "bool": 9,
            "double": 11,
            "bfloat16": 16,
            "uint8": 2,
        }[chain]
        yield _case(f"m = Abs(x) a = Cast<to = {code}>(m) y = Cast<to = 1>(a)", x=(4, 8))
        yield _case(
            f"m = Abs(x) a = Cast<to = {code}>(m) b = Cast<to = 11>(a) y = Cast<to = 1>(b)",
            x=(4, 8),
        )
        yield _case(
            f"m = Abs(x) a = Cast<to = 11>(m) b = Cast<to = {code}>(a) y = Cast<to = 1>(b)",
            x=(4, 8),
        )


def _views() -> Iterator[Case]:
    yield from _slices()
    for x, target in product(
        ((2, 3, 4), (1, 3, 4), (6, 4), (24,)),
        ((0, -1), (-1, 4), (1, -1, 1), (24,), (2, 3, 4), (0, 0, -1), (4, 0, -1)),
    ):
        for second in ((-1,), (0, -1), (4, -1), (2, 3, 4)):
            yield _case(
                _ints("s", *target)
                + _ints("t", *second)
                + "a = Reshape(x, s) b = Reshape(a, t) y = Neg(b)",
                x=x,
            )
    for perm, other in product(_perms(3), _perms(3)):
        core = f"t = Transpose<perm = {perm}>(x) "
        for op in (
            "Relu(t)",
            "Softmax<axis = 1>(t)",
            "Softmax<axis = -1>(t)",
            "Add(t, z)",
            "Mul(z, t)",
            "Concat<axis = 1>(t, t)",
            "Concat<axis = -1>(t, t)",
            "Pad(t, P)",
            "Where(m, t, z)",
            "LeakyRelu(t)",
            "LogSoftmax<axis = 0>(t)",
            "CumSum(t, AX)",
            "Tile(t, RE)",
            "Expand(t, EX)",
            "Gather<axis = 1>(t, IX)",
            "Slice(t, S0, E0, A0)",
            "Unsqueeze(t, U0)",
            "ReduceSum(t, A0)",
            "ReduceMean<keepdims = 0>(t, A0)",
            "ReduceMax(t, A1)",
            "LayerNormalization<axis = -1>(t, G)",
            "MatMul(t, z)",
            "Flatten<axis = 1>(t)",
        ):
            constants = {
                "P": (0, 1, 0, 0, 0, 2),
                "RE": (1, 2, 1),
                "EX": (2, 3, 3, 3),
                "S0": (0,),
                "E0": (2,),
                "A0": (1,),
                "A1": (-1,),
                "U0": (1,),
                "IX": (2, 0),
            }
            text = "".join(_ints(n, *v) for n, v in constants.items() if f" {n}" in op)
            text += "AX = Constant<value = int64 {1}>() " if "AX" in op else ""
            text += "o = Constant<value = float {0.5}>() m = Greater(z, o) " if "(m" in op else ""
            given = {"x": (3, 3, 3)} | ({"z": (3, 3, 3)} if "z" in op or "(m" in op else {})
            given |= {"G": (3,)} if "G)" in op else {}
            yield _case(f"{text}{core}u = {op} y = Identity(u)", **given)
            if "Unsq" not in op and "keepdims" not in op and "Flatten" not in op and "EX" not in op:
                yield _case(f"{text}{core}u = {op} y = Transpose<perm = {other}>(u)", **given)


def _slices() -> Iterator[Case]:
    for start, end, axis, step in product(
        (0, 1, -1, -9), (0, 2, 9, -1, 9223372036854775807), (0, -1), (1, 2, -1)
    ):
        core = _ints("s", start) + _ints("e", end) + _ints("a", axis) + _ints("t", step)
        yield _case(core + "r = Slice(x, s, e, a, t) y = Neg(r)", x=(4, 3))
        yield _case(core + "r = Slice(x, s, e, a, t) q = Slice(r, s, e, a, t) y = Neg(q)", x=(4, 3))
    for axis, index in product((0, 1, -1), (0, 1, 2, -1)):
        text = f"i = Constant<value = int64 {{{index}}}>() j = Constant<value = int64 {{0}}>() "
        text += "k = Constant<value = int64 {1}>() "
        yield _case(
            text + f"a = Gather<axis = {axis}>(x, i) b = Gather<axis = {axis}>(x, j) "
            f"c = Gather<axis = {axis}>(x, k) d = Sub(a, b) y = Sub(d, c)",
            x=(3, 3, 3),
        )
        text = _ints("i", index) + _ints("j", 0) + _ints("k", 1)
        yield _case(
            text + f"a = Gather<axis = {axis}>(x, i) b = Gather<axis = {axis}>(x, j) "
            f"c = Gather<axis = {axis}>(x, k) d = Sub(a, b) y = Sub(d, c)",
            x=(3, 3, 3),
        )
    for axes in ((0,), (1,), (-1,), (0, 2)):
        a = _ints("a", *axes)
        yield _case(a + "u = Unsqueeze(x, a) v = Squeeze(u, a) y = Neg(v)", x=(3, 4))
        yield _case(a + "u = Unsqueeze(X, a) y = Add(u, z)", X=(3, 4), z=(4,))


def families() -> dict[str, list[Case]]:
    """All cases, by what they try."""
    makers = {
        "matmul": _matmul,
        "after matmul": _after_matmul,
        "gemm": _gemm,
        "conv": _conv,
        "norms": _norms,
        "gelu": _gelus,
        "no-ops": _no_ops,
        "views": _views,
    }
    found = {}
    for name, make in makers.items():
        found[name] = list({case.label: case for case in make()}.values())
    return found
