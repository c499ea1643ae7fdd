"""Random ONNX graphs with everything that ONNX Runtime's allocator treats specially."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]
_SIZES = (2, 4, 6)
_UNARY = ("Relu", "Tanh", "Sigmoid", "Neg", "Exp", "Erf", "Softplus", "Abs", "Sqrt", "Softsign")
_BINARY = ("Add", "Mul", "Sub", "Max")


@dataclass
class Value:
    """A float tensor made so far."""

    name: str
    shape: Shape


@dataclass
class Draft:
    """A graph under construction."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def constant(self, array: np.ndarray) -> str:
        name = self.fresh()
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: list[str], outputs: int = 1, **attributes: object) -> list[str]:
        names = [self.fresh() for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", **attributes)
        )
        return names

    def value(self, name: str, shape: Shape) -> None:
        self.values.append(Value(name, shape))


@st.composite
def models(draw: st.DrawFn, *, symbolic: bool = False, longest: int = 24) -> onnx.ModelProto:
    """A model of up to ``longest`` operators; ``symbolic``: the first dimension is ``N``."""
    draft = Draft()
    width = draw(st.sampled_from(_SIZES))
    inputs = []
    for index in range(draw(st.integers(1, 2))):
        shape = (4, width, draw(st.sampled_from(_SIZES)))
        dims = ["N", *shape[1:]] if symbolic else list(shape)
        inputs.append(helper.make_tensor_value_info(f"x{index}", TensorProto.FLOAT, dims))
        draft.value(f"x{index}", shape)
    for _ in range(draw(st.integers(3, longest))):
        _STEPS[draw(st.sampled_from(sorted(_STEPS)))](draw, draft, symbolic)
    made = {name for node in draft.nodes for name in node.output if name}
    float_names = [v.name for v in draft.values if v.name in made]
    chosen = draw(st.lists(st.sampled_from(float_names), min_size=1, max_size=4, unique=True))
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in chosen]
    graph = helper.make_graph(draft.nodes, "random", inputs, outputs, draft.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    del inferred.graph.value_info[:]
    return inferred


def _pick(draw: st.DrawFn, draft: Draft) -> Value:
    # Recent values more often, so that chains (in-place, views) arise.
    recent = draft.values[-4:]
    return draw(st.sampled_from(recent if draw(st.booleans()) else draft.values))


def _unary(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    draft.value(draft.add(draw(st.sampled_from(_UNARY)), [x.name])[0], x.shape)


def _binary(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    same = [v for v in draft.values if v.shape == x.shape]
    y = draw(st.sampled_from(same))
    draft.value(draft.add(draw(st.sampled_from(_BINARY)), [x.name, y.name])[0], x.shape)


def _scale(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    factor = draft.constant(np.float32(draw(st.sampled_from((0.5, 2.0)))))
    draft.value(draft.add("Mul", [x.name, factor])[0], x.shape)


def _view(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    kind = draw(st.sampled_from(("Unsqueeze", "Identity", "Flatten", "Reshape")))
    if kind == "Unsqueeze" and len(x.shape) < 5:
        axes = draft.constant(np.array([1], dtype=np.int64))
        name = draft.add("Unsqueeze", [x.name, axes])[0]
        draft.value(name, (x.shape[0], 1, *x.shape[1:]))
    elif kind == "Flatten":
        rest = int(np.prod(x.shape[1:]))
        draft.value(draft.add("Flatten", [x.name], axis=1)[0], (x.shape[0], rest))
    elif kind == "Reshape":
        rest = int(np.prod(x.shape[1:]))
        target = draft.constant(np.array([0, rest], dtype=np.int64))
        draft.value(draft.add("Reshape", [x.name, target])[0], (x.shape[0], rest))
    else:
        draft.value(draft.add("Identity", [x.name])[0], x.shape)


def _split(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    if x.shape[-1] % 2:
        return
    half = (*x.shape[:-1], x.shape[-1] // 2)
    # Some of the parts stay unread: their buffers are held to the end.
    for name in draft.add("Split", [x.name], 2, axis=-1, num_outputs=2):
        draft.value(name, half)


def _layer_norm(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    scale = draft.constant(np.ones(x.shape[-1], dtype=np.float32))
    outputs = draft.add("LayerNormalization", [x.name, scale], draw(st.sampled_from((1, 3))))
    draft.value(outputs[0], x.shape)
    for name in outputs[1:]:
        draft.value(name, (*x.shape[:-1], 1))


def _cast(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    there = draw(st.sampled_from((TensorProto.INT32, TensorProto.DOUBLE, TensorProto.BOOL)))
    middle = draft.add("Cast", [x.name], to=there)[0]
    if there == TensorProto.DOUBLE:
        # A pair of Casts without loss would be removed at load, whatever the session options.
        middle = draft.add("Neg", [middle])[0]
    back = draft.add("Cast", [middle], to=TensorProto.FLOAT)[0]
    # Nor may the next step cast right again.
    draft.value(draft.add("Neg", [back])[0], x.shape)


def _scratch(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    kind = draw(st.sampled_from(("Where", "Sum", "Softmax")))
    if kind == "Where":
        zero = draft.constant(np.float32(0))
        mask = draft.add("Greater", [x.name, zero])[0]
        draft.value(draft.add("Where", [mask, x.name, zero])[0], x.shape)
    elif kind == "Sum":
        draft.value(draft.add("Sum", [x.name, x.name, x.name])[0], x.shape)
    else:
        axis = draw(st.sampled_from((1, -1)))
        draft.value(draft.add("Softmax", [x.name], axis=axis)[0], x.shape)


def _transpose(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    if len(x.shape) != 3:
        return
    name = draft.add("Transpose", [x.name], perm=[0, 2, 1])[0]
    draft.value(name, (x.shape[0], x.shape[2], x.shape[1]))
    product = draft.add("MatMul", [x.name, name])[0]
    draft.value(product, (x.shape[0], x.shape[1], x.shape[1]))


def _reduce(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    axes = draft.constant(np.array([-1], dtype=np.int64))
    draft.value(draft.add("ReduceSum", [x.name, axes], keepdims=1)[0], (*x.shape[:-1], 1))


def _shape(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    if draw(st.booleans()):
        shape = draft.add("Shape", [x.name])[0]
        filled = draft.add("Expand", [draft.constant(np.float32(1)), shape])[0]
        if not symbolic:  # data-dependent: the runtime cannot tell the shape
            draft.value(filled, x.shape)
    else:
        size = draft.add("Size", [x.name])[0]
        as_float = draft.add("Cast", [size], to=TensorProto.FLOAT)[0]
        draft.value(draft.add("Mul", [x.name, as_float])[0], x.shape)


def _concat(draw: st.DrawFn, draft: Draft, symbolic: bool) -> None:
    x = _pick(draw, draft)
    if x.shape[-1] > 64:
        return
    name = draft.add("Concat", [x.name, x.name], axis=-1)[0]
    draft.value(name, (*x.shape[:-1], 2 * x.shape[-1]))


_STEPS = {
    step.__name__: step
    for step in (
        _unary,
        _unary,
        _binary,
        _scale,
        _view,
        _split,
        _layer_norm,
        _cast,
        _scratch,
        _transpose,
        _reduce,
        _shape,
        _concat,
    )
}
