"""Checks gradient rules by finite differences in float64.

``check(single("Relu", x))`` differentiates a model of one node, runs the training graph, and
compares each gradient with central differences of the forward graph; ``model_of`` makes larger
models.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from helpers.float64_ops import OPS
from memplan.autodiff.backward import Request, build_gradients
from memplan.proto.nodes import all_graphs

Array = npt.NDArray[Any]
Run = Any
STEP = 1e-5
TOLERANCE = 1e-6
"""Of central differences with that step: rounding about 1e-11, truncation about 1e-10."""
_ALL_ELEMENTS = 12
_DIRECTIONS = 4


def draw(shape: Sequence[int], seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    """Float64 numbers, evenly spread and shuffled: none close to another, nor to a multiple of the
    step, so that no comparison is a tie within the differences."""
    count = int(np.prod(shape))
    spread = low + (high - low) * (np.arange(count) + 0.3711) / max(count, 1)
    return np.random.default_rng(seed).permutation(spread).reshape(tuple(shape))


def single(
    op: str,
    *inputs: Array | None,
    opset: int = 20,
    outputs: int = 1,
    out_dtypes: Sequence[int] | None = None,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node ``op`` with inputs x0, x1, ... (None: left out) and outputs y0, y1, ...

    Integer inputs become initializers, as indices and axes mostly are; float64 ones graph inputs.
    """
    feeds = {f"x{k}": np.asarray(array) for k, array in enumerate(inputs) if array is not None}
    names = [f"x{k}" if array is not None else "" for k, array in enumerate(inputs)]
    outs = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, outs, name="node", **attributes)
    kinds = out_dtypes or [onnx.TensorProto.DOUBLE] * outputs
    return model_of([node], feeds, dict(zip(outs, kinds, strict=True)), opset)


def frozen(
    made: tuple[onnx.ModelProto, dict[str, Array]], *names: str
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Some inputs as initializers."""
    model, feeds = made
    kept = [value for value in model.graph.input if value.name not in names]
    copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del model.graph.input[:]
    model.graph.input.extend(copies)
    for name in names:
        model.graph.initializer.append(onnx.numpy_helper.from_array(feeds[name], name))
    rest = {name: array for name, array in feeds.items() if name not in names}
    return onnx.shape_inference.infer_shapes(model), rest


def model_of(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Mapping[str, int],
    opset: int = 20,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of some nodes; what is not float among ``feeds`` becomes an initializer."""
    floats = {name: array for name, array in feeds.items() if array.dtype.kind == "f"}
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in floats.items()}
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in floats.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [onnx.numpy_helper.from_array(a, n) for n, a in feeds.items() if n not in floats],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model), floats


def with_symbols(
    model: onnx.ModelProto, dims: Mapping[str, Sequence[str | int]]
) -> onnx.ModelProto:
    """The same model with symbolic input dimensions, and no other shapes stated."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.value_info[:]
    for value in (*result.graph.input, *result.graph.output):
        if value.name in dims:
            value.CopyFrom(
                helper.make_tensor_value_info(
                    value.name, value.type.tensor_type.elem_type, list(dims[value.name])
                )
            )
        elif value in result.graph.output:
            value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(result)


def reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs by ONNX's own evaluator."""
    names = [value.name for value in model.graph.output]
    evaluator = ReferenceEvaluator(model, new_ops=OPS)
    return dict(zip(names, evaluator.run(None, dict(feeds)), strict=True))


def runtime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs by ONNX Runtime on the CPU, as anyone would run the file."""
    from helpers.sessions import outputs

    return outputs(model, feeds, threads=0)


def check(
    made: tuple[onnx.ModelProto, dict[str, Array]],
    *,
    xs: Sequence[str] | None = None,
    ys: Sequence[str] | None = None,
    run: Run = reference,
    tolerance: float = TOLERANCE,
    step: float = STEP,
) -> onnx.ModelProto:
    """Compare the gradients of Σ y·w by each x with finite differences; the training graph.

    Args:
        made: a model and its float64 inputs (:func:`single`, :func:`model_of`).
        xs: inputs to differentiate by; default: all.
        ys: outputs that bring gradients in; default: all float ones. Each w is random.
        run: evaluates a model (:func:`reference` or :func:`runtime`).
        tolerance: of differences, relative to the largest gradient (at least 1).
        step: of the central differences. Operators that are defined for float32 only need a larger
            step and tolerance, such as 1e-2 and 1e-3.
    """
    model, feeds = made
    values = run(model, feeds)
    ys = list(ys or [name for name, value in values.items() if value.dtype.kind == "f"])
    xs = list(xs or feeds)
    weights = {
        y: draw(values[y].shape, seed=7 + k).astype(values[y].dtype) for k, y in enumerate(ys)
    }
    # Weights come in as graph inputs, so that no constant folds away what is to be tested.
    seeds = tuple(f"seed_{y}" for y in ys)
    trained = build_gradients(model, Request(tuple(ys), tuple(xs), seeds))
    onnx.checker.check_model(trained, full_check=True)
    found = run(trained, {**feeds, **{f"seed_{y}": w for y, w in weights.items()}})
    for x in xs:
        _compare(model, feeds, x, found[f"{x}_grad"], weights, run, tolerance, step)
    return trained


def check_on_runtime(
    made: tuple[onnx.ModelProto, dict[str, Array]],
    *,
    xs: Sequence[str] | None = None,
    ys: Sequence[str] | None = None,
    tolerance: float = 1e-4,
) -> None:
    """:func:`check`; then the same in float32 on ONNX Runtime, whose outputs and gradients must be
    those of the float64 evaluator (errors relative to the largest entry, at least 1)."""
    model, feeds = made
    check(made, xs=xs, ys=ys)
    values = reference(model, feeds)
    ys = list(ys or [name for name, value in values.items() if value.dtype.kind == "f"])
    request = Request(tuple(ys), tuple(xs or feeds), tuple(f"seed_{y}" for y in ys))
    given = feeds | {f"seed_{y}": draw(values[y].shape, 7 + k) for k, y in enumerate(ys)}
    single = {name: array.astype(np.float32) for name, array in given.items()}
    wanted = reference(build_gradients(model, request), given)
    found = runtime(build_gradients(in_float32(model), request), single)
    for name, value in wanted.items():
        scale = max(1.0, float(np.abs(value).max(initial=0.0)))
        error = np.abs(found[name].astype(np.float64) - value).max(initial=0.0)
        assert found[name].shape == value.shape, name
        assert error <= tolerance * scale, (name, error, found[name], value)


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """A float64 model in float32."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    double, single = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT
    del result.graph.value_info[:]
    for graph in all_graphs(result.graph):
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == double:
                value.type.tensor_type.elem_type = single
        given = [item for node in graph.node for item in node.attribute]
        for tensor in (*graph.initializer, *(item.t for item in given if item.HasField("t"))):
            if tensor.data_type == double:
                array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        for item in given:
            if item.name == "to" and item.i == double:
                item.i = single
    return onnx.shape_inference.infer_shapes(result)


def _compare(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    x: str,
    grad: Array,
    weights: Mapping[str, Array],
    run: Run,
    tolerance: float,
    step: float,
) -> None:
    assert grad.shape == feeds[x].shape, (x, grad.shape, feeds[x].shape)

    def objective(moved: Array) -> float:
        values = run(model, {**feeds, x: moved.astype(feeds[x].dtype)})
        return float(sum((values[y] * weight).sum() for y, weight in weights.items()))

    scale = max(1.0, float(np.abs(grad).max(initial=0.0)))
    for direction in _directions(feeds[x].shape):
        ahead = objective(feeds[x] + step * direction)
        behind = objective(feeds[x] - step * direction)
        wanted, given = (ahead - behind) / (2 * step), float((grad * direction).sum())
        assert abs(wanted - given) <= tolerance * scale, f"{x}: {given} is not {wanted}\n{grad}"


def _directions(shape: tuple[int, ...]) -> list[Array]:
    """Every element on its own if they are few, else random directions."""
    count = int(np.prod(shape))
    if count <= _ALL_ELEMENTS:
        return list(np.eye(count).reshape(count, *shape))
    random = np.random.default_rng(3)
    return [random.choice([-1.0, 1.0], shape) for _ in range(_DIRECTIONS)]
