"""Why a node may stand for another: each rule names operators and gives the reason in a sentence.

A rule looks at an operator, its attributes and the terms that it reads, and says which term its
first output is. A rule that does not apply says None. Facts of shapes are only there where they
hold in every run, so what a rule concludes from them does too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from memplan.equivalence.either import either_mask
from memplan.equivalence.loop_call import Call, attributes_of
from memplan.equivalence.normal_forms import Broadcast, Converted, SizeOf, Transposed, View
from memplan.equivalence.packed import unpacked
from memplan.equivalence.terms import ABSENT, INT64, Fact, Terms
from memplan.ops.book import ALONE, VIEWS, operator
from memplan.shapes.tensor_type import FLOATS

FLOAT = 1
_DROPOUT_HAS_MODE = 12
_UNSQUEEZE_BY_INPUT = 13
_T = onnx.TensorProto
_WITHOUT_ATTRIBUTES = FLOATS | {_T.BOOL, _T.INT8, _T.INT16, _T.INT32, _T.INT64}
_WITHOUT_ATTRIBUTES |= {_T.UINT8, _T.UINT16, _T.UINT32, _T.UINT64}


Rule = Callable[[Call], int | None]


def same_as(call: Call) -> int | None:
    """The term of the first output by the rules, or None if none applies."""
    rule = _RULES.get(call.op)
    if rule is None or call.read(0) == ABSENT:
        return None
    found = rule(call)
    if found is not None or call.result.shape is None:
        return found
    if f":{call.op}" in VIEWS:
        return view(call.terms, call.read(0), call.result.shape)
    if operator(f":{call.op}").stays and call.result.shape == call.fact().shape:
        return call.read(0)
    return None


def _identity(call: Call) -> int | None:
    """Identity hands its input on; so does a copy between device and host, bit for bit."""
    return call.read(0)


def _cast(call: Call) -> int | None:
    """A cast to the type that is there converts nothing, whatever it says of saturation."""
    wanted, fact = call.attributes.get("to"), call.fact()
    if fact.dtype == wanted:
        return call.read(0)
    if not isinstance(wanted, int) or _rounds_by_attribute(call):
        return None
    if (mask := _unpacked(call)) is not None:
        return mask
    free = call.terms.free[call.read(0)]
    return call.terms.of(Converted(call.read(0), wanted), Fact(wanted, fact.shape), free)


def _rounds_by_attribute(call: Call) -> bool:
    """Whether attributes beside the type count: they say how types of eight bits are rounded to,
    and the runtime writes them with any."""
    wanted = call.attributes["to"]
    return set(call.attributes) != {"to"} and wanted not in _WITHOUT_ATTRIBUTES


def _unpacked(call: Call) -> int | None:
    """A mask that was packed (:mod:`memplan.equivalence.packed`)."""
    found = unpacked(call)
    return None if found is None else view(call.terms, found.source, found.shape)


def _of_one(call: Call) -> int | None:
    """Of a single input, these give that input."""
    return call.read(0) if len(call.reads) == 1 else None


def _reshape(call: Call) -> int | None:
    """The bits of a view are those of what it is a view of; the last shape alone counts. In the
    shape that it has, a tensor is itself, whatever that is (so memplan writes a fence on a GPU)."""
    own, source = call.terms.made_by(call.read(1), 0), call.reads[:1]
    if own is not None and own.key == ":Shape" and own.reads == source and not attributes_of(own):
        return call.read(0)
    shape = call.ints(1, "shape")
    if shape is None:
        return None
    if 0 in shape and not call.attributes.get("allowzero", 0):
        known = call.fact().shape
        if known is None or any(d == 0 and i >= len(known) for i, d in enumerate(shape)):
            return None
        shape = [known[i] if d == 0 else d for i, d in enumerate(shape)]
    return view(call.terms, call.read(0), shape)


def view(terms: Terms, source: int, shape: Sequence[int]) -> int:
    """The term of ``source``'s elements in ``shape`` (one entry may be -1)."""
    root = view_root(terms, source)
    fact = terms.fact(root)
    if -1 in shape and fact.elements:
        rest = math.prod(d for d in shape if d != -1)
        shape = [fact.elements // rest if d == -1 else d for d in shape] if rest else shape
    settled = tuple(shape)
    if fact.shape == settled:
        return root
    made = Fact(fact.dtype, None if -1 in settled else settled)
    return terms.of(View(root, settled), made, terms.free[root])


def view_root(terms: Terms, term: int) -> int:
    """What a view shows, through views of views, also of those whose shape is not known."""
    form = terms.forms[term]
    while (made := terms.made_by(term, 0)) is not None and made.key in VIEWS:
        term = made.reads[0]
        form = terms.forms[term]
    return form.root if isinstance(form, View) else term


def _squeeze(call: Call) -> int | None:
    """Squeeze is a view without dimensions of size 1."""
    shape = call.fact().shape
    if shape is None:
        return None
    axes = call.ints(1, "axes")
    if axes is None and (call.read(1) != ABSENT or "axes" in call.attributes):
        return None
    if axes is None:
        return view(call.terms, call.read(0), [d for d in shape if d != 1])
    dropped = {axis % len(shape) for axis in axes} if shape else set()
    return view(call.terms, call.read(0), [d for i, d in enumerate(shape) if i not in dropped])


def _unsqueeze(call: Call) -> int | None:
    """Unsqueeze is a view with dimensions of size 1. Without axes (how memplan writes a fence: the
    axes are computed, and have no elements) it is its input, whatever its shape."""
    if call.opset >= _UNSQUEEZE_BY_INPUT and call.fact(1).elements == 0:
        return call.read(0)
    shape, axes = call.fact().shape, call.ints(1, "axes")
    if shape is None or axes is None:
        return None
    rank = len(shape) + len(axes)
    added = {axis % rank for axis in axes}
    if len(added) < len(axes):  # one twice: no runtime takes that
        return None
    rest = iter(shape)
    return view(call.terms, call.read(0), [1 if i in added else next(rest) for i in range(rank)])


def _concat(call: Call) -> int | None:
    """Of one vector, and vectors without elements beside it, that vector (the shapes of fences)."""
    rest = [term for term in call.reads if call.terms.fact(term).shape != (0,)]
    return rest[0] if len(rest) == 1 else _of_one(call)


def _flatten(call: Call) -> int | None:
    """Flatten is a view as a matrix."""
    shape = call.fact().shape
    if shape is None:
        return None
    axis = int(call.attributes.get("axis", 1))
    axis += len(shape) if axis < 0 else 0
    return view(call.terms, call.read(0), [math.prod(shape[:axis]), math.prod(shape[axis:])])


def _transpose(call: Call) -> int | None:
    """A transposed transpose is one transpose, or none."""
    perm = call.attributes.get("perm")
    shape = call.fact().shape
    if perm is None:
        if shape is None:
            return None
        perm = tuple(reversed(range(len(shape))))
    if not isinstance(perm, list | tuple):
        return None  # no session opens such a file
    perm = tuple(int(axis) for axis in perm)
    root, form = call.read(0), call.terms.forms[call.read(0)]
    known = form.perm if isinstance(form, Transposed) else shape
    if known is not None and sorted(perm) != list(range(len(known))):
        return None
    if isinstance(form, Transposed):
        root, perm = form.root, tuple(form.perm[axis] for axis in perm)
    if perm == tuple(range(len(perm))):
        return root
    fact = call.terms.fact(root)
    after = None if fact.shape is None else tuple(fact.shape[axis] for axis in perm)
    free = call.terms.free[root]
    return call.terms.of(Transposed(root, perm), Fact(fact.dtype, after), free)


def _expand(call: Call) -> int | None:
    """Expanding to a shape that broadcasts to what is there repeats nothing. Else it is known by
    what is repeated and the shape of the result, however that is written."""
    shape, wanted = call.fact().shape, call.ints(1)
    result = call.result.shape
    if shape is not None and result is None and wanted is not None and 0 not in wanted:
        try:
            result = tuple(np.broadcast_shapes(shape, tuple(wanted)))
        except ValueError:
            return None
    if shape is None or result is None:
        return None
    if shape == result:
        return call.read(0)
    free = call.terms.free[call.read(0)]
    fact = Fact(call.fact().dtype, result)
    return call.terms.of(Broadcast(call.read(0), result), fact, free)


def _tile(call: Call) -> int | None:
    """Once is not repeated."""
    repeats = call.ints(1)
    return call.read(0) if repeats is not None and all(r == 1 for r in repeats) else None


def _slice(call: Call) -> int | None:
    """All elements, forwards."""
    shape = call.fact().shape
    starts, ends = call.ints(1, "starts"), call.ints(2, "ends")
    axes, steps = call.ints(3, "axes"), call.ints(4, "steps")
    if not shape or (steps is None and call.read(4) != ABSENT):
        return None
    if shape == call.result.shape and all(step > 0 for step in steps or ()):
        return call.read(0)
    if starts is None or ends is None or (axes is None and call.read(3) != ABSENT):
        return None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = shape[axis % len(shape)]
        begun = start if start >= 0 else start + size
        ended = end if end >= 0 else end + size
        if not (begun <= 0 and ended >= size and (step == 1 or (step > 1 and size <= 1))):
            return None
    return call.read(0)


def _split(call: Call) -> int | None:
    """A split into one part."""
    sizes = call.ints(1, "split")
    one = call.attributes.get("num_outputs") == 1 or (sizes is not None and len(sizes) == 1)
    return call.read(0) if one else None


def _pad(call: Call) -> int | None:
    """Padding by nothing."""
    pads = call.ints(1, "pads")
    return call.read(0) if pads is not None and not any(pads) else None


def _dropout(call: Call) -> int | None:
    """Dropout in inference mode, or with a ratio of 0, drops nothing and scales by 1."""
    if call.opset < _DROPOUT_HAS_MODE:
        return call.read(0) if call.opset >= 7 else None
    training, ratio = call.ints(2), call.terms.value(call.read(1)) if call.read(1) >= 0 else None
    inference = call.read(2) == ABSENT or (training is not None and not any(training))
    return call.read(0) if inference or (ratio is not None and not np.any(ratio)) else None


def _shape(call: Call) -> int | None:
    """A constant, where every run has the same; before dimension 0 there is none in any."""
    sizes = () if call.attributes.get("end") == 0 else call.fact().shape
    if sizes is None:
        return None
    part = sizes[call.attributes.get("start", 0) : call.attributes.get("end", len(sizes))]
    return call.terms.constant(np.asarray(part, np.int64))


def _size(call: Call) -> int | None:
    """A scalar: a constant where every run has the same. Else its value does not matter here."""
    source, elements = call.read(0), call.fact().elements
    if elements is not None and elements <= np.iinfo(np.int64).max:
        return call.terms.constant(np.asarray(elements, np.int64))
    return call.terms.of(SizeOf(source), Fact(INT64, ()), call.terms.free[source])


def _mul(call: Call) -> int | None:
    """Tensors without elements are all alike. And ``Cast(mask)·x`` scaled is Dropout's output."""
    facts = (call.fact(0), call.fact(1))
    shapes = {fact.shape for fact in facts}
    if all(fact.dtype == INT64 for fact in facts) and (0,) in shapes <= {(), (0,)}:
        return call.terms.constant(np.zeros(0, np.int64))
    found = _rebuilt(call)
    return either_mask(call) if found is None else found


def _rebuilt(call: Call) -> int | None:
    """Dropout's output from its mask, as the kernels of the provider compute it: on the CPU divided
    by the share that is kept (``dropout_op.h``), on CUDA times its inverse (``dropout_impl.cu``).
    The other way differs in the last bit."""
    terms = call.terms
    product, scale = terms.made_by(call.read(0), 0), terms.value(call.read(1))
    if product is None or scale is None or scale.shape != () or scale.dtype != np.float32:
        return None
    if (product.domain, product.op) != ("", "Mul") or len(product.reads) != 2:
        return None
    cast, source = product.reads
    form = terms.forms[cast]
    if not isinstance(form, Converted) or {form.dtype, terms.fact(source).dtype} != {FLOAT}:
        return None
    dropout = terms.made_by(form.source, 1)
    if dropout is None or (dropout.domain, dropout.op) != ("", "Dropout"):
        return None
    ratio = _ratio(terms, dropout.reads)
    if dropout.reads[0] != source or ratio is None:
        return None
    share = np.float32(1) - np.float32(ratio)
    op, right = ("Div", share) if terms.provider == "cpu" else ("Mul", np.float32(1) / share)
    if call.op != op or terms.provider == "webgpu":  # whose Dropout runs on the CPU
        return None
    if scale.tobytes() != np.float32(right).tobytes():
        return None
    return terms.output(dropout, 0)


def _ratio(terms: Terms, reads: tuple[int, ...]) -> float | None:
    """The ratio of a Dropout that is in training mode; None if it may not be."""
    reads = (*reads, ABSENT, ABSENT)
    training = terms.value(reads[2]) if reads[2] != ABSENT else None
    if training is None or not np.any(training):
        return None
    if reads[1] == ABSENT:
        return 0.5
    ratio = terms.value(reads[1])
    return None if ratio is None else float(np.asarray(ratio).reshape(-1)[0])


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Identity", "MemcpyToHost", "MemcpyFromHost"), _identity),
    "Cast": _cast,
    **dict.fromkeys((key.removeprefix(":") for key in ALONE), _of_one),
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "Dropout": _dropout,
    "Shape": _shape,
    "Size": _size,
    "GreaterOrEqual": _unpacked,
    "Mul": _mul,
    "Div": _rebuilt,
}
