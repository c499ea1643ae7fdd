"""What the proof takes for granted of kernels: where the same numbers lead to the same bits,
however the graph hands them over. Tried with special values, one thread and several."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from helpers.effort import THOROUGH
from helpers.sessions import session
from memplan.ops.book import BOOK, operator

Array = np.ndarray[Any, Any]
THREADS = (1, 2, 4)


def numbers(shape: tuple[int, ...], dtype: Any, seed: int) -> Array:
    """Random numbers; from the second seed on with NaN, infinities, both zeros, and denormals among
    them, and in the third draw nothing but minus infinity."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape).astype(dtype)
    if seed == 2:
        x[...] = -np.inf
    elif seed:
        places = generator.integers(0, x.size, (6, max(1, x.size // 40)))
        tiny = np.finfo(dtype).smallest_subnormal
        for value, where in zip((np.nan, np.inf, -np.inf, 0.0, -0.0, tiny), places, strict=True):
            if seed % 3 == 0 or value in (0.0, tiny):
                x.reshape(-1)[where] = value
    return x


def run(model: onnx.ModelProto, feeds: Mapping[str, Array], threads: int) -> list[bytes]:
    opened = session(model, "tuned", threads)
    names = {value.name for value in opened.get_inputs()}
    given = {name: value for name, value in feeds.items() if name in names}
    return [np.asarray(value).tobytes() for value in opened.run(None, given)]


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, int],
    constants: Mapping[str, Array],
) -> onnx.ModelProto:
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    for value, dtype in zip(made, outputs.values(), strict=True):
        value.type.tensor_type.elem_type = dtype
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    stored = [numpy_helper.from_array(x, name) for name, x in constants.items()]
    graph = helper.make_graph(nodes, "g", given, made, stored)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node_of(key: str, *names: list[str], **attributes: Any) -> onnx.NodeProto:
    domain, op = key.split(":")
    return helper.make_node(op, *names, domain=domain, **attributes)


# --- optional outputs --------------------------------------------------------------------------

FLOAT, DOUBLE, HALF, BOOL, INT64 = 1, 11, 10, 9, 7
Reads = Callable[[Any, int], list[Array]]


def normalized(*roles: str) -> Reads:
    """Rows to normalize (``x``), and vectors (``v``)."""

    def reads(dtype: Any, seed: int) -> list[Array]:
        shapes = [(3, 17, 65) if role == "x" else (65,) for role in roles]
        return [numbers(shape, dtype, seed) for shape in shapes]

    return reads


def dropped(dtype: Any, seed: int) -> list[Array]:
    return [numbers((40, 33), dtype, seed), np.asarray(0.1, dtype), np.asarray(True)]


def images(dtype: Any, seed: int) -> list[Array]:
    return [numbers((2, 3, 17, 17), dtype, seed)]


WITH_OUTPUTS: dict[str, tuple[Reads, tuple[int, ...], dict[str, Any]]] = {
    ":LayerNormalization": (normalized("x", "v", "v"), (0, FLOAT, FLOAT), {}),
    ":SimplifiedLayerNormalization": (normalized("x", "v"), (0, FLOAT), {}),
    "com.microsoft:SkipLayerNormalization": (
        normalized("x", "x", "v", "v", "v"),
        (0, FLOAT, FLOAT, 0),
        {},
    ),
    ":Dropout": (dropped, (0, BOOL), {"seed": 3}),
    ":MaxPool": (images, (0, INT64), {"kernel_shape": [3, 3], "strides": [2, 2]}),
}


def with_and_without(
    key: str, reads: list[Array], kinds: tuple[int, ...], left_out: int, attributes: dict[str, Any]
) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, Array]]:
    """A node with all its outputs and without one, of which the others are graph outputs."""
    feeds = {f"i{k}": value for k, value in enumerate(reads)}
    own = helper.np_dtype_to_tensor_dtype(reads[0].dtype)
    made = {f"o{k}": kind or own for k, kind in enumerate(kinds)}
    kept = {name: kind for name, kind in made.items() if name != f"o{left_out}"}
    models = [
        model_of([node_of(key, [*feeds], names, **attributes)], feeds, kept, {})
        for names in ([*made], [name if name in kept else "" for name in made])
    ]
    return models[0], models[1], feeds


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("key", [key for key, entry in BOOK.items() if entry.optional_outputs])
def test_an_output_that_is_left_out_changes_no_other(key: str, dtype: Any) -> None:
    reads, kinds, attributes = WITH_OUTPUTS[key]
    if key == ":MaxPool":
        dtype = {np.float16: np.float64}.get(dtype, dtype)  # there is none of float16
    for seed in range(6):
        for slot in operator(key).optional_outputs:
            whole, less, feeds = with_and_without(key, reads(dtype, seed), kinds, slot, attributes)
            for threads in THREADS:
                assert run(whole, feeds, threads) == run(less, feeds, threads), (seed, slot)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_max_pool_that_does_not_list_its_indices_is_another_kernel(value: float) -> None:
    """Why they stay listed where they are left out."""
    size = 4 if np.isnan(value) else 2
    image = np.full((1, 1, size, size), value, np.float32)
    image[0, 0, 1] = 1.0 if np.isnan(value) else value
    settings = {"kernel_shape": [2, 2]}
    whole, less, feeds = with_and_without(":MaxPool", [image], (0, INT64), 1, settings)
    assert run(whole, feeds, 1) == run(less, feeds, 1)
    del less.graph.node[0].output[1]
    assert run(whole, feeds, 1) != run(less, feeds, 1)


# --- constants that are packed -----------------------------------------------------------------

Shapes = tuple[tuple[int, ...], ...]
# Operators that multiply: shapes that they read, the constant's slot, and settings.
MULTIPLIED: dict[str, tuple[str, Shapes, int, dict[str, Any]]] = {
    "MatMul": (":MatMul", ((1, 300), (300, 64)), 1, {}),
    "MatMul, rows": (":MatMul", ((16, 1000), (1000, 64)), 1, {}),
    "Gemm": (":Gemm", ((16, 1000), (64, 1000), (64,)), 1, {"transB": 1}),
    "FusedMatMul": ("com.microsoft:FusedMatMul", ((16, 1000), (1000, 64)), 1, {}),
    "FusedGemm": (
        "com.microsoft:FusedGemm",
        ((16, 1000), (1000, 64), (64,)),
        1,
        {"activation": "Relu"},
    ),
    "LSTM": (":LSTM", ((3, 2, 300), (1, 512, 300), (1, 512, 128)), 1, {"hidden_size": 128}),
    "LSTM, state": (":LSTM", ((3, 2, 8), (1, 800, 8), (1, 800, 200)), 2, {"hidden_size": 200}),
    "GRU": (":GRU", ((3, 2, 300), (1, 384, 300), (1, 384, 128)), 1, {"hidden_size": 128}),
    "GRU, state": (":GRU", ((3, 2, 8), (1, 600, 8), (1, 600, 200)), 2, {"hidden_size": 200}),
    "Attention": (
        "com.microsoft:Attention",
        ((2, 3, 320), (320, 960), (960,)),
        1,
        {"num_heads": 4},
    ),
    "MatMul, first": (":MatMul", ((16, 1000), (1000, 64)), 0, {}),
    "Gemm, first": (":Gemm", ((16, 1000), (1000, 64), (64,)), 0, {}),
    "Gemm, added": (":Gemm", ((16, 1000), (1000, 64), (64,)), 2, {}),
    "Einsum": (":Einsum", ((16, 1000), (1000, 64)), 1, {"equation": "ij,jk->ik"}),
    "Conv": (":Conv", ((2, 16, 12, 12), (32, 16, 3, 3), (32,)), 1, {}),
    "Conv, 1 x 1": (":Conv", ((2, 300, 9, 9), (32, 300, 1, 1), (32,)), 1, {}),
    "Conv, each channel": (":Conv", ((2, 16, 9, 9), (16, 1, 3, 3), (16,)), 1, {"group": 16}),
    "Conv, 3-d": (":Conv", ((1, 16, 5, 9, 9), (32, 16, 3, 3, 3)), 1, {}),
    "FusedConv": (
        "com.microsoft:FusedConv",
        ((2, 16, 12, 12), (32, 16, 3, 3), (32,)),
        1,
        {"activation": "Relu"},
    ),
    "ConvTranspose": (":ConvTranspose", ((2, 16, 9, 9), (16, 32, 3, 3)), 1, {}),
    "RNN": (":RNN", ((3, 2, 300), (1, 200, 300), (1, 200, 200)), 1, {"hidden_size": 200}),
    "RNN, state": (":RNN", ((3, 2, 300), (1, 200, 300), (1, 200, 200)), 2, {"hidden_size": 200}),
    "MultiHeadAttention": (
        "com.microsoft:MultiHeadAttention",
        ((2, 5, 320), (2, 5, 320), (2, 5, 320)),
        1,
        {"num_heads": 4},
    ),
    "LayerNormalization": (":LayerNormalization", ((9, 300), (300,), (300,)), 1, {}),
    "BatchNormalization": (":BatchNormalization", ((2, 4, 9), (4,), (4,), (4,), (4,)), 1, {}),
}


@pytest.mark.parametrize("name", MULTIPLIED)
def test_a_weight_that_a_node_makes_is_multiplied_as_the_table_says(name: str) -> None:
    """Those of the table to other bits than the same numbers as a constant, for some sizes and
    numbers of threads; others to the same."""
    key, shapes, slot, attributes = MULTIPLIED[name]
    reads = [numbers(shape, np.float32, 0) for shape in shapes]
    if name == "BatchNormalization":
        reads[4] = np.abs(reads[4])
    names = [f"i{k}" for k in range(len(reads))]
    feeds = {n: x for n, x in zip(names, reads, strict=True) if n != names[slot]}
    constants, made = {names[slot]: reads[slot]}, {"o": FLOAT}
    copied = [n if n != names[slot] else "copy" for n in names]
    stored = model_of([node_of(key, names, ["o"], **attributes)], feeds, made, constants)
    copy = helper.make_node("Identity", [names[slot]], ["copy"])
    computed = model_of([copy, node_of(key, copied, ["o"], **attributes)], feeds, made, constants)
    same = [run(stored, feeds, count) == run(computed, feeds, count) for count in THREADS]
    assert all(same) == (slot not in operator(key).packed_inputs), same


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("inner", [1, 33, 127, 128])
def test_a_short_product_is_the_same_packed_or_not(inner: int, turned: int) -> None:
    """With two rows and columns at least."""
    for rows, columns in ((2, 2), (3, 17), (5, 300), (100, 3), (33, 128), (12, 1000)):
        feeds = {"x": numbers((rows, inner), np.float32, 1)}
        weights = {"w": numbers((columns, inner) if turned else (inner, columns), np.float32, 0)}
        stored, computed = (
            model_of(
                [*copies, node_of(":Gemm", ["x", read], ["o"], transB=turned)],
                feeds,
                {"o": FLOAT},
                weights,
            )
            for copies, read in (([], "w"), ([node_of(":Identity", ["w"], ["v"])], "v"))
        )
        for threads in THREADS:
            assert run(stored, feeds, threads) == run(computed, feeds, threads), (rows, columns)


# --- rows of a product -------------------------------------------------------------------------


def in_rows(
    inner: int, columns: int, threads: int, *, constant: bool, steps: int = 12, rows: int = 3
) -> bool:
    """Whether a product of all rows has the bits of products of some at a time."""
    x = numbers((steps * rows, inner), np.float32, 1)
    w = {"w": numbers((inner, columns), np.float32, 0)}

    def product(part: Array) -> onnx.ModelProto:
        feeds = {"x": part} if constant else {"x": part, **w}
        node = helper.make_node("MatMul", ["x", "w"], ["o"])
        return model_of([node], feeds, {"o": FLOAT}, w if constant else {})

    whole = run(product(x), {"x": x, **w}, threads)[0]
    few = session(product(x[:rows]), "tuned", threads)
    given = {} if constant else w
    parts = [few.run(None, {"x": x[k * rows : (k + 1) * rows], **given}) for k in range(steps)]
    return whole == b"".join(np.asarray(part[0]).tobytes() for part in parts)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("inner", [1, 16, 100, 127, 128])
def test_rows_of_a_product_of_few_terms_are_those_of_any_other_rows(
    inner: int, constant: bool
) -> None:
    few = (2, 16, 1000) if not THOROUGH else (2, 3, 8, 16, 24, 48, 64, 96, 256, 1000)
    for columns in few:
        for threads in (*THREADS, 7):
            for rows in (2, 3, 17):
                assert in_rows(inner, columns, threads, constant=constant, rows=rows)


def test_rows_of_a_product_of_many_terms_are_not() -> None:
    assert not in_rows(512, 64, 2, constant=False, steps=35, rows=4)
    assert not in_rows(100, 1, 1, constant=False)  # nor those of a single column
