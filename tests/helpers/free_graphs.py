"""Random training-like graphs with what free passes look for: results that nobody reads, masks of
activations, pools as exporters write them, whole numbers kept for later."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
_TESTS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
_SHAPE = (2, 3, 8, 8)


@dataclass
class _Draft:
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    count: int = 0

    def add(self, op: str, reads: list[str], outputs: int = 1, **attributes: object) -> list[str]:
        names = [f"t{self.count + k}" for k in range(outputs)]
        self.count += outputs
        node = helper.make_node(op, reads, names, name=f"n{len(self.nodes)}", **attributes)
        self.nodes.append(node)
        return names

    def one(self, op: str, reads: list[str], **attributes: object) -> str:
        return self.add(op, reads, **attributes)[0]

    def constant(self, value: object, dtype: type = np.float32) -> str:
        array = np.array(value, dtype)
        name = f"c{array.dtype}_{array.tolist()}".replace(" ", "")
        self.constants[name] = numpy_helper.from_array(array, name)
        return name


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """A forward chain of up to five layers over images, and its masks and indices read behind."""
    draft, value = _Draft(), "x"
    later: list[tuple[str, list[str]]] = []
    for _ in range(draw(st.integers(1, 4))):
        value = draft.one(draw(st.sampled_from(("Neg", "Sin", "Softsign"))), [value])
        kind = draw(st.sampled_from(sorted(_LAYERS)))
        value, kept = _LAYERS[kind](draw, draft, value)
        later.append((kind, kept))
    gradient = draft.one("Neg", [value])
    outputs = [value]
    for kind, kept in reversed(later):
        gradient, more = _BACK[kind](draw, draft, gradient, kept)
        outputs += more
    shape = list(_SHAPE)
    given = [helper.make_tensor_value_info("x", FLOAT, shape)]
    wanted = [
        helper.make_tensor_value_info(name, FLOAT, shape)
        for name in dict.fromkeys([*outputs, gradient])
    ]
    graph = helper.make_graph(draft.nodes, "free", given, wanted, list(draft.constants.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _activation(draw: st.DrawFn, draft: _Draft, x: str) -> tuple[str, list[str]]:
    zero, six = draft.constant(0.0), draft.constant(0.5)
    op = draw(st.sampled_from(("Relu", "Clip", "LeakyRelu", "Max", "Min", "Abs")))
    reads = {"Clip": [x, zero, six], "Max": [x, zero], "Min": [x, six]}.get(op, [x])
    return draft.one(op, reads), [x]


def _masked(
    draw: st.DrawFn, draft: _Draft, gradient: str, kept: list[str]
) -> tuple[str, list[str]]:
    """One or two comparisons of what an activation read."""
    for _ in range(draw(st.integers(1, 2))):
        pair = [kept[0], draft.constant(draw(st.sampled_from((0.0, 0.5, 0.25, -0.0))))]
        mask = draft.one(draw(st.sampled_from(_TESTS)), pair[:: draw(st.sampled_from((1, -1)))])
        gradient = draft.one("Where", [mask, gradient, draft.constant(0.0)])
    return gradient, []


def _pool(draw: st.DrawFn, draft: _Draft, x: str) -> tuple[str, list[str]]:
    """As PyTorch exports it, of 3x3 windows with padding or of 2x2 ones; the size stays."""
    wide = draw(st.booleans())
    window = {
        "kernel_shape": [3, 3] if wide else [2, 2],
        "pads": [1, 1, 1, 1] if wide else [1, 1, 0, 0],
    }
    value, found = draft.add("MaxPool", [x], 2, **window)
    _, own = draft.add("MaxPool", [x], 2, kernel_shape=[1, 1])
    bounds = [draft.constant(v, np.int64) for v in ([0, 0], [1, 1], [2, 3])]
    within = draft.one("Sub", [found, draft.one("Slice", [own, *bounds])])
    return value, [draw(st.sampled_from((within, found)))]


def _scattered(
    draw: st.DrawFn, draft: _Draft, gradient: str, kept: list[str]
) -> tuple[str, list[str]]:
    """The indices as numbers, so that every bit of them shows."""
    flat = draft.one("Cast", kept, to=FLOAT)
    return draft.one("Add", [gradient, draft.one("Sin", [flat])]), []


def _split(draw: st.DrawFn, draft: _Draft, x: str) -> tuple[str, list[str]]:
    """A split of which only one part is read."""
    parts = draft.add("Split", [draft.one("Concat", [x, x], axis=1)], 2, axis=1, num_outputs=2)
    return parts[draw(st.integers(0, 1))], []


def _place(draw: st.DrawFn, draft: _Draft, x: str) -> tuple[str, list[str]]:
    """Places of the largest, and the largest, of which nobody may read anything."""
    count = draft.constant([8], np.int64)
    values, places = draft.add("TopK", [x, count], 2)
    return (values if draw(st.booleans()) else x), [places]


def _through(
    draw: st.DrawFn, draft: _Draft, gradient: str, kept: list[str]
) -> tuple[str, list[str]]:
    return draft.one("Tanh", [gradient]), []


_LAYERS = {"activation": _activation, "pool": _pool, "split": _split, "place": _place}
_BACK = {"activation": _masked, "pool": _scattered, "split": _through, "place": _scattered}
SPECIALS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 0.25, -1.5, 1e-45, 3e38], np.float32)


def feeds(seed: int) -> dict[str, np.ndarray]:
    """Numbers, with NaN, infinities, both zeros and ties among them."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(_SHAPE).astype(np.float32)
    places = random.random(_SHAPE) < 0.3
    x[places] = random.choice(SPECIALS, places.sum())
    return {"x": x}
