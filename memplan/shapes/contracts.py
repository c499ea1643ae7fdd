"""What operators demand of the shapes of their inputs, and ONNX's shape inference does not check.

The demands are those of ONNX's operator documentation; every kernel has them. Whoever comes after
this look (gradient rules above all) may rely on them. Dimensions that are not numbers fit anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import onnx
from onnx import helper

from memplan.errors import ModelError
from memplan.proto.nodes import is_standard
from memplan.shapes.tensor_type import Dim, Shape

Shapes = Sequence[Shape | None]
"""Of a node's inputs, by slot; None where it is absent or not known."""


class _Call:
    """A node with the shapes of its inputs."""

    def __init__(self, node: onnx.NodeProto, shapes: Shapes, made: Shapes) -> None:
        self.node = node
        self.shapes = shapes
        self.made = made

    @cached_property
    def attributes(self) -> Mapping[str, object]:
        """Values by name; most operators have none that matters."""
        references = (item for item in self.node.attribute if not item.ref_attr_name)
        return {item.name: helper.get_attribute_value(item) for item in references}

    def shape(self, slot: int) -> Shape | None:
        return self.shapes[slot] if slot < len(self.shapes) else None

    def number(self, name: str, default: int) -> int:
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def fits(self, slot: int, wanted: Sequence[Dim]) -> bool:
        """Whether an input is absent, unknown, or of this shape."""
        found = self.shape(slot)
        return found is None or (len(found) == len(wanted) and all(map(_equal, found, wanted)))

    def broadcasts(self, slot: int, to: Sequence[Dim]) -> bool:
        """Whether an input is absent, unknown, or broadcasts to this shape."""
        found = self.shape(slot)
        if found is None:
            return True
        ends = to[len(to) - len(found) :]
        return len(found) <= len(to) and all(
            size == 1 or _equal(size, other) for size, other in zip(found, ends, strict=True)
        )


def _equal(one: Dim, other: Dim) -> bool:
    return one == other or isinstance(one, str) or isinstance(other, str)


def _normalization(call: _Call, x: Shape) -> bool:
    return call.broadcasts(1, x) and call.broadcasts(2, x)


def _channels(slots: range) -> Callable[[_Call, Shape], bool]:
    """One number per channel, which is axis 1."""
    return lambda call, x: len(x) > 1 and all(call.fits(slot, x[1:2]) for slot in slots)


def _group_norm(call: _Call, x: Shape) -> bool:
    groups, sizes = call.number("num_groups", 1), (x[1:2], (call.number("num_groups", 1),))
    whole = isinstance(x[1], str) or (groups > 0 and x[1] % groups == 0) if len(x) > 1 else False
    return whole and all(any(call.fits(slot, size) for size in sizes) for slot in (1, 2))


def _prelu(call: _Call, x: Shape) -> bool:
    return call.broadcasts(1, x)


def _clip(call: _Call, x: Shape) -> bool:
    return all(call.fits(slot, ()) or call.fits(slot, (1,)) for slot in (1, 2))


def _gemm(call: _Call, a: Shape) -> bool:
    b = call.shape(1)
    if b is None or len(a) != 2 or len(b) != 2:
        return b is None
    rows, inner = a[::-1] if call.number("transA", 0) else a
    other, columns = b[::-1] if call.number("transB", 0) else b
    return _equal(inner, other) and call.broadcasts(2, (rows, columns))


def _scatter_elements(call: _Call, data: Shape) -> bool:
    indices = call.shape(1)
    return indices is None or (len(indices) == len(data) and call.fits(2, indices))


def _gather_elements(call: _Call, data: Shape) -> bool:
    indices = call.shape(1)
    return indices is None or len(indices) == len(data)


def _scatter_nd(call: _Call, data: Shape) -> bool:
    indices = call.shape(1)
    if indices is None or (indices and isinstance(indices[-1], str)):
        return True
    depth = indices[-1] if indices else 0
    assert isinstance(depth, int)
    inside = bool(indices) and depth <= len(data)
    return inside and call.fits(2, (*indices[:-1], *data[depth:]))


def _classes(call: _Call, scores: Shape) -> bool:
    """Losses over classes, along axis 1."""
    if len(scores) < 2:
        return False
    return call.fits(1, (scores[0], *scores[2:])) and call.fits(2, scores[1:2])


def _recurrent(gates: int) -> Callable[[_Call, Shape], bool]:
    def fits(call: _Call, x: Shape) -> bool:
        r = call.shape(2)
        if len(x) != 3 or (r is not None and len(r) != 3):
            return False
        both = call.attributes.get("direction") == b"bidirectional"
        directions, hidden = 1 + both, r[2] if r is not None else ""
        steps, batch, size = x
        if call.number("layout", 0):
            steps, batch = batch, steps
        stated = call.number("hidden_size", 0)
        width: Dim = gates * hidden if isinstance(hidden, int) else ""
        biases: Dim = 2 * width if isinstance(width, int) else ""
        state: Shape = (directions, batch, hidden)
        if call.number("layout", 0):
            state = (batch, directions, hidden)
        peepholes: Dim = 3 * hidden if isinstance(hidden, int) else ""
        wanted: dict[int, Shape] = {
            1: (directions, width, size),
            2: (directions, width, hidden),
            3: (directions, biases),
            4: (batch,),
            5: state,
            6: state,
            7: (directions, peepholes),
        }
        sized = not stated or isinstance(hidden, str) or stated == hidden
        return sized and all(call.fits(slot, shape) for slot, shape in wanted.items())

    return fits


def _convolution(call: _Call, x: Shape) -> bool:
    w, group = call.shape(1), call.number("group", 1)
    if w is None:
        return True
    if len(w) != len(x) or len(x) < 3 or group < 1:
        return False
    wanted = w[1] * group if isinstance(w[1], int) else w[1]
    return _equal(wanted, x[1]) and call.fits(2, w[:1])


def _transposed_convolution(call: _Call, x: Shape) -> bool:
    w, group = call.shape(1), call.number("group", 1)
    if w is None:
        return True
    if len(w) != len(x) or len(x) < 3 or group < 1:
        return False
    made: Dim = w[1] * group if isinstance(w[1], int) else ""
    return _equal(w[0], x[1]) and call.fits(2, (made,))


def _transpose(call: _Call, x: Shape) -> bool:
    perm = call.attributes.get("perm")
    return not isinstance(perm, Sequence) or sorted(perm) == list(range(len(x)))


def _split(call: _Call, x: Shape) -> bool:
    """The parts are the whole."""
    axis = call.number("axis", 0)
    parts = [shape[axis] for shape in call.made if shape is not None and len(shape) == len(x)]
    known = [size for size in (*parts, x[axis]) if isinstance(size, int)] if x else []
    return len(parts) < len(call.made) or len(known) <= len(parts) or sum(known[:-1]) == known[-1]


def _tile(call: _Call, x: Shape) -> bool:
    """One number per axis."""
    return call.fits(1, (len(x),))


def _pad(call: _Call, x: Shape) -> bool:
    """Two numbers per axis, of all or of those that are named."""
    axes = call.shape(3)
    count: Dim = len(x) if axes is None else axes[0] if len(axes) == 1 else ""
    if len(call.shapes) > 3 and axes is None:  # there may be axes of unknown number
        return True
    sides: Dim = 2 * count if isinstance(count, int) else ""
    return call.fits(1, (sides,)) or call.fits(1, (1, sides))


def _slice(call: _Call, x: Shape) -> bool:
    """Starts, ends, axes and steps are as many, at most one of each per axis."""
    shapes = [shape for shape in map(call.shape, range(1, 5)) if shape is not None]
    counts = {shape[0] for shape in shapes if len(shape) == 1 and isinstance(shape[0], int)}
    flat = all(len(shape) == 1 for shape in shapes)
    return flat and len(counts) <= 1 and all(count <= len(x) for count in counts)


def _resize(call: _Call, x: Shape) -> bool:
    """One scale or size per axis, of all or of those that are named; the rank stays."""
    axes = call.attributes.get("axes")
    count = len(axes) if isinstance(axes, Sequence) else len(x)
    sized = all(call.fits(slot, (count,)) or call.fits(slot, (0,)) for slot in (2, 3))
    return sized and all(made is None or len(made) == len(x) for made in call.made)


def _norm(call: _Call, x: Shape) -> bool:
    return call.number("p", 2) in (1, 2)


def _einsum(call: _Call, x: Shape) -> bool:
    text = call.attributes.get("equation")
    terms = (
        text.decode().replace(" ", "").split("->")[0].split(",") if isinstance(text, bytes) else []
    )
    ranks = [None if shape is None else len(shape) for shape in call.shapes]
    return len(terms) == len(ranks) and all(
        rank is None or "..." in term or len(term) == rank
        for term, rank in zip(terms, ranks, strict=True)
    )


def _attention(call: _Call, q: Shape) -> bool:
    k, v = call.shape(1), call.shape(2)
    heads, others = call.number("q_num_heads", 0), call.number("kv_num_heads", 0)
    if k is None or v is None:
        return True
    if len({len(q), len(k), len(v)}) != 1 or len(q) not in (3, 4):
        return False
    if len(q) == 4:
        sized = all(map(_equal, (k[0], k[1], k[2], k[3]), (v[0], v[1], v[2], q[3])))
        heads, others = (size if isinstance(size, int) else 1 for size in (q[1], k[1]))
    else:
        counts = ((q, heads), (k, others), (v, others))
        if heads < 1 or others < 1:
            return False
        if any(isinstance(s[2], int) and s[2] % count for s, count in counts):
            return False
        widths = [s[2] // count if isinstance(s[2], int) else "" for s, count in counts[:2]]
        sized = _equal(widths[0], widths[1]) and _equal(k[1], v[1]) and _equal(k[0], v[0])
    grouped = heads == others or (others > 0 and heads % others == 0)
    return sized and grouped and _equal(q[0], k[0]) and _masked(call, q, k, heads)


def _masked(call: _Call, q: Shape, k: Shape, heads: int) -> bool:
    mask, past = call.shape(3), call.shape(4)
    if past is not None and len(past) != 4:
        return False
    if mask is None or not 1 <= len(mask) <= 4:
        return mask is None
    before = past[2] if past is not None else 0
    rows, columns = q[-2], k[-2]
    whole: Dim = ""
    if isinstance(columns, int) and isinstance(before, int):
        whole = columns + before
        if isinstance(mask[-1], int) and 1 < mask[-1] < whole:
            whole = mask[-1]  # a shorter mask is padded
    return call.broadcasts(3, (q[0], heads, rows, whole))


def _together(inputs: Shapes) -> bool:
    """Inputs that broadcast to one shape: along each axis all sizes but 1 are equal."""
    if inputs.count(inputs[0]) == len(inputs):
        return True
    shapes = [shape for shape in inputs if shape is not None]
    for axis in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-axis] for shape in shapes if len(shape) >= axis}
        if len({size for size in sizes if isinstance(size, int) and size != 1}) > 1:
            return False
    return True


_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean", "Where", "BitShift"}
    | {"And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
)
_RULES: dict[str, Callable[[_Call, Shape], bool]] = {
    "LayerNormalization": _normalization,
    "RMSNormalization": _normalization,
    "SimplifiedLayerNormalization": _normalization,
    "BatchNormalization": _channels(range(1, 5)),
    "InstanceNormalization": _channels(range(1, 3)),
    "GroupNormalization": _group_norm,
    "PRelu": _prelu,
    "Clip": _clip,
    "Gemm": _gemm,
    "ScatterElements": _scatter_elements,
    "GatherElements": _gather_elements,
    "ScatterND": _scatter_nd,
    "SoftmaxCrossEntropyLoss": _classes,
    "NegativeLogLikelihoodLoss": _classes,
    "RNN": _recurrent(1),
    "GRU": _recurrent(3),
    "LSTM": _recurrent(4),
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Transpose": _transpose,
    "Split": _split,
    "Tile": _tile,
    "Pad": _pad,
    "Slice": _slice,
    "Resize": _resize,
    "LpNormalization": _norm,
    "Einsum": _einsum,
    "Attention": _attention,
}
# Operators whose attribute axis counts the axes of their first input.
_AXIS = frozenset(
    {"Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "Gather", "GatherElements", "Split"}
    | {"ScatterElements", "Concat", "TopK", "ArgMax", "ArgMin", "LayerNormalization"}
    | {"RMSNormalization", "SimplifiedLayerNormalization"}
)


CONTRACT_OPS = _AXIS.union(_RULES, _ELEMENTWISE)
"""Operators of ONNX's domain that :func:`check_contract` looks at."""
OUTPUTS_MATTER = frozenset({"Split", "Resize"})
"""Those of them whose outputs it looks at, too."""


def check_contract(node: onnx.NodeProto, shapes: Shapes, made: Shapes = ()) -> None:
    """Check that the inputs of a standard operator fit each other and its attributes.

    Args:
        node: a node that has passed :func:`memplan.proto.model_checks.check_operator`.
        shapes: of its inputs.
        made: of its outputs, for the operators of :data:`OUTPUTS_MATTER`.

    Raises:
        ModelError: with the node and the shapes.
    """
    op = node.op_type
    first = shapes[0] if shapes else None
    if first is None or op not in CONTRACT_OPS or not is_standard(node.domain):
        return
    what = "its inputs and attributes do not fit each other"
    if op in _ELEMENTWISE:
        fits = _together(shapes)
    else:
        call, rule = _Call(node, shapes, made), _RULES.get(op)
        axis = call.number("axis", 0) if op in _AXIS else 0
        fits = -len(first) <= axis < max(len(first), 1)
        if not fits:
            what = f"attribute axis is {axis}"
        elif rule is not None:
            fits = rule(call, first)
    if fits:
        return
    known = ", ".join("?" if shape is None else str(list(shape)) for shape in shapes)
    raise ModelError(
        f"{node.op_type} '{node.name}' has inputs of shapes {known}: {what}",
        "ONNX Runtime would refuse the model too; check the sizes given with --dim",
    )
