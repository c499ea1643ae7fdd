"""Dropout masks from a counter: the same bits everywhere, and as good as random."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.graphs import parse
from helpers.sessions import session
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions
from memplan.autodiff.counter_dropouts import Counted, CounterDropout, from_counter, parse_dropout
from memplan.errors import UsageError
from memplan.ir.roles import Role
from memplan.ops.kernels import kernels_of, schema_version
from memplan.proto.counter_masks import counter_masks
from memplan.proto.metadata import CHECKPOINT_KEY
from memplan.proto.opset import default_opset
from memplan.shapes.infer import declared_values

Array = np.ndarray[Any, Any]
SHAPE = (6, 48, 80)
RATE, STEPS = 0.25, 24
WORD = (1 << 64) - 1


def two_sites(shape: Sequence[object] = SHAPE, ratio: float = RATE) -> onnx.ModelProto:
    text = ", ".join(map(str, shape))
    model = parse(f"""g (float[{text}] x) => (float[{text}] y, bool[{text}] m, bool[{text}] n)
      <float ratio = {{{ratio}}}, bool on = {{1}}>
      {{ [a] z, m = Dropout <seed = 1> (x, ratio, on)  [b] y, n = Dropout <seed = 2> (z, ratio, on) }}""")  # noqa: E501
    inferred: onnx.ModelProto = onnx.shape_inference.infer_shapes(model)
    return inferred


def masks(model: onnx.ModelProto, steps: Sequence[int], shape: Sequence[int] = SHAPE) -> Array:
    """Kept elements, by step and site."""
    runner, x = session(model), np.ones(shape, np.float32)
    found = [runner.run(["m", "n"], {"x": x, "dropout_step": np.array(k)}) for k in steps]
    return np.array(found)


@pytest.fixture(scope="module")
def kept() -> Array:
    return masks(from_counter(two_sites(), CounterDropout(7)).model, range(1, STEPS + 1))


@pytest.fixture(scope="module")
def even(kept: Array) -> Array:
    """The same with mean 0 and deviation 1."""
    return (kept - (1 - RATE)) / np.sqrt(RATE * (1 - RATE))


# -- the numbers -----------------------------------------------------------------------------------


def split_mix(number: int) -> int:
    number = (number + 0x9E3779B97F4A7C15) & WORD
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & WORD
    return number ^ (number >> 31)


def squares(counter: int, key: int) -> int:
    """As published: four rounds, 32 bits (Widynski 2020)."""
    x = y = counter * key & WORD
    z = (y + key) & WORD
    for more in (y, z, y):
        x = (x * x + more) & WORD
        x = (x >> 32 | x << 32) & WORD
    return ((x * x + z) & WORD) >> 32


def test_a_mask_is_that_of_the_formula(kept: Array) -> None:
    """Site 1 of step 5, by whole numbers of Python."""
    product = np.ones((), np.uint64)
    for axis, size in enumerate(SHAPE):
        key = split_mix(split_mix(7) + len(SHAPE) + axis & WORD) | 1
        odd = [squares((5 << 32) + k, key) | 1 for k in range(size)]
        product = np.multiply.outer(product, np.array(odd, np.uint64)) % np.uint64(1 << 32)
    assert np.array_equal(kept[4, 1], product >= RATE * 2**32)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_masks_do_not_depend_on_threads_or_optimizations(kept: Array, level: str) -> None:
    model = from_counter(two_sites(), CounterDropout(7)).model
    x = np.linspace(-1, 1, kept[0, 0].size, dtype=np.float32).reshape(SHAPE)
    y, m, n = session(model, level, 3).run(["y", "m", "n"], {"x": x, "dropout_step": np.array(2)})
    assert np.array_equal([m, n], kept[1])
    scale = np.float32(1 / (1 - RATE))
    assert np.array_equal(y, np.where(n, np.where(m, x, 0) * scale, 0) * scale)


def test_cuda_has_a_kernel_for_every_node() -> None:
    """By its registry; of numbers of 32 and 64 bits without a sign, it has none that shift."""
    model = from_counter(two_sites(('"batch"', *SHAPE[1:])), CounterDropout()).model
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    types = {v.name: v.type.tensor_type.elem_type for v in declared_values(graph)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        kinds = [[types[name] for name in names] for names in (node.input, node.output)]
        version = schema_version("", node.op_type, default_opset(model))
        assert kernels_of("cuda").has(f":{node.op_type}", version, *kinds), node
    assert not kernels_of("cuda").rows.get(":BitShift")


# -- as good as random: bounds of five deviations or more, and the masks never change ------------


def test_rates_are_binomial(even: Array) -> None:
    whole = even.reshape(STEPS, 2, -1)
    assert np.abs(whole.sum(2)).max() < 4 * np.sqrt(whole.shape[2])
    for axis in (2, 3, 4):  # every slice of every axis, in every step
        others = tuple(k for k in (2, 3, 4) if k != axis)
        sums = even.sum(others) / np.sqrt(np.prod([even.shape[k] for k in others]))
        assert np.abs(sums).max() < 5.5
        assert 0.85 < sums.var() < 1.15
    assert 0.9 < (whole.sum(0) / np.sqrt(STEPS)).var() < 1.1  # every element, over the steps


def test_blocks_of_two_rows_and_columns_are_as_likely_as_they_should_be(kept: Array) -> None:
    rows, columns = kept.shape[-2:]
    blocks = kept.reshape(-1, rows // 2, 2, columns // 2, 2).transpose(0, 1, 3, 2, 4)
    counts = np.bincount(blocks.reshape(-1, 4) @ [1, 2, 4, 8], minlength=16)
    ones = np.array([bin(pattern).count("1") for pattern in range(16)])
    wanted = counts.sum() * (1 - RATE) ** ones * RATE ** (4 - ones)
    assert ((counts - wanted) ** 2 / wanted).sum() < 45  # chi-square of 15, 1 - 1e-4


def test_pairs_are_independent(even: Array) -> None:
    """Rows with rows, columns with columns; the largest singular value is that of noise, so that
    the products of the multipliers leave no trace in what is compared."""
    flat = even.reshape(STEPS, 2, -1, SHAPE[-1])
    for matrix in (flat[0, 0], flat[0, 0].T, flat[3, 1]):
        pairs = (matrix @ matrix.T / np.sqrt(matrix.shape[1]))[np.triu_indices(len(matrix), 1)]
        assert 0.9 < pairs.var() < 1.1
        assert np.abs(pairs).max() < 6.5
        noise = sum(np.sqrt(matrix.shape))
        assert np.linalg.svd(matrix, compute_uv=False)[0] < 1.08 * noise


def test_steps_sites_and_seeds_have_masks_of_their_own(even: Array) -> None:
    other = masks(from_counter(two_sites(), CounterDropout(8)).model, range(1, STEPS + 1))
    for ours, theirs in (
        (even[1:], even[:-1]),
        (even[:, 0], even[:, 1]),
        (even, (other - (1 - RATE)) / np.sqrt(RATE * (1 - RATE))),
    ):
        assert abs((ours * theirs).sum()) < 4 * np.sqrt(ours.size)


# -- what is counted -------------------------------------------------------------------------------


def test_a_size_without_a_number_comes_from_an_input(kept: Array) -> None:
    made = from_counter(two_sites(('"batch"', *SHAPE[1:])), CounterDropout(7))
    assert (made.masks, made.left) == (2, 0)
    assert np.array_equal(masks(made.model, [3]), kept[2:3])
    half = masks(made.model, [3], (3, *SHAPE[1:]))
    assert np.array_equal(half[0], kept[2, :, :3])


@pytest.mark.parametrize("shape", [(9,), (1, 9), (1, 1), (2, 1, 3)])
def test_axes_of_one_index_are_no_trouble(shape: tuple[int, ...]) -> None:
    made = from_counter(two_sites(shape), CounterDropout())
    found = masks(made.model, range(1, 400), shape)
    assert found.shape == (399, 2, *shape)
    assert abs(found.mean() - (1 - RATE)) < 4 * np.sqrt(RATE * (1 - RATE) / found.size)


LEFT = {
    "Dropout (x, some, on)": (0, 1),
    "Dropout (x, ratio, off)": (0, 0),
    "Dropout (x)": (0, 0),
    "RandomUniformLike (x)": (0, 1),
    "Dropout (x, , on)": (1, 0),
}


@pytest.mark.parametrize("node", LEFT)
def test_what_does_not_count_is_left_as_it_is(node: str) -> None:
    model = parse(f"""g (float[4, 4] x, float some) => (float[4, 4] y)
      <float ratio = {{0.25}}, bool on = {{1}}, bool off = {{0}}> {{ y = {node} }}""")
    made = from_counter(model, CounterDropout())
    assert (made.masks, made.left) == LEFT[node]
    assert made.masks or made.model is model
    assert list(made.notes) or LEFT[node] == (0, 0)
    assert from_counter(model, None) == Counted(model)


def test_what_takes_the_place_of_a_dropout_tells_what_that_told() -> None:
    """Its module, of all nodes; a mark as a checkpoint, of the last one."""
    model = two_sites()
    for key in ("memplan.module", CHECKPOINT_KEY):
        model.graph.node[0].metadata_props.add(key=key, value="true")
    nodes = from_counter(model, CounterDropout()).model.graph.node
    told = {n.name: [i.key for i in n.metadata_props] for n in nodes if n.name.startswith("a")}
    assert told.pop("a") == ["memplan.module", CHECKPOINT_KEY]
    assert list(told) == ["a/Mul", "a/Mul_1", "a/Greater", "a/Where"]
    assert all(keys == ["memplan.module"] for keys in told.values())
    assert [n.output[0] for n in nodes if n.name in ("a", "a/Greater")] == ["m", "z"]


def test_options() -> None:
    assert parse_dropout("operator") is None
    assert parse_dropout("counter") == CounterDropout(0)
    assert parse_dropout("counter{seed=7}") == CounterDropout(7)
    assert CounterDropout(7).text == "counter{seed=7}"
    for wrong in ("count", "operator{seed=1}", "counter{seeds=1}", "counter{seed=x}"):
        with pytest.raises(UsageError):
            parse_dropout(wrong)


# -- gradients -------------------------------------------------------------------------------------


def test_forward_and_backward_read_one_mask() -> None:
    forward = parse("""g (float[16, 12] x, float[12, 12] w) => (float loss)
      <float ratio = {0.5}, bool on = {1}>
      { h = MatMul (x, w)  [d] y, m = Dropout (h, ratio, on)  s = Mul (y, y)
        loss = ReduceSum <keepdims = 0> (s) }""")
    numbers = np.random.default_rng(1).normal(size=(28, 12)).astype(np.float32)
    x, w = numbers[:16], numbers[16:]
    made = grad(forward, GradOptions("loss", dropout="counter", wrt=("w",)))
    assert made.contract.roles["dropout_step"] is Role.STEP_COUNTER
    assert made.new_values == {"dropout_step_new": "dropout_step"}
    assert made.as_json()["counted_masks"] == 1
    (mask,) = counter_masks(made.model.graph)
    made.model.graph.output.add(name=mask)
    loss, dw, kept, then = session(made.model).run(
        ["loss", "w_grad", mask, "dropout_step_new"], {"x": x, "w": w, "dropout_step": np.array(4)}
    )
    h = np.where(kept, x @ w, 0) * 2
    assert np.isclose(loss, (h * h).sum(), rtol=1e-5)
    assert np.allclose(dw, x.T @ (4 * h * kept), rtol=1e-4)
    assert 0.35 < kept.mean() < 0.65
    assert then == 5
