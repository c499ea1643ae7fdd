"""Functions that exporters wrote out, seen as one operator each.

``x·½·(1 + erf(x/√2))`` in five nodes would keep three tensors for the backward part; the gradient
of Gelu reads x alone, and so does that of a group normalization. The forward nodes stay as they
are: only the reverse pass sees one node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import helper

from memplan.autodiff.emit.value import Array
from memplan.proto.nodes import captured_names
from memplan.shapes.tensor_type import UNKNOWN, TensorType

# Constants may have been rounded to float16.
_CLOSE = 2e-3


@dataclass(frozen=True, slots=True)
class _Product:
    """``scale`` times ``powers`` of tensors, by name, computed by the nodes ``inside``."""

    powers: Mapping[str, float]
    scale: float = 1.0
    inside: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Function:
    """A function of ``x`` (and of parameters) and the nodes that compute it."""

    op: str
    x: str
    inside: set[int]
    attributes: dict[str, object] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()


def see_patterns(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Array],
    kept: Collection[str],
    types: Mapping[str, TensorType],
) -> list[onnx.NodeProto]:
    """The nodes to differentiate: each written-out function as one node, in the last one's place.

    ``kept`` are tensors that must be seen: xs, ys and graph outputs.
    """
    matcher = _Matcher(nodes, constants, types)
    gone: set[int] = set()
    instead: dict[int, onnx.NodeProto] = {}
    for index in range(len(nodes)):
        found = matcher.match(index)
        if found is None or found.inside & gone or not matcher.closed(found, index, kept):
            continue
        gone |= found.inside
        last = nodes[index]
        inputs = [found.x, *found.parameters]
        node = helper.make_node(found.op, inputs, list(last.output), name=last.name)
        for name, value in found.attributes.items():
            node.attribute.append(helper.make_attribute(name, value))
        node.metadata_props.extend(last.metadata_props)
        instead[index] = node
    return [instead.get(k, node) for k, node in enumerate(nodes) if k in instead or k not in gone]


class _Matcher:
    """Looks backwards from a product or a sum."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        constants: Mapping[str, Array],
        types: Mapping[str, TensorType],
    ) -> None:
        self.nodes = nodes
        self.constants = constants
        self.types = types
        self.maker = {name: k for k, node in enumerate(nodes) for name in node.output if name}
        self.readers: dict[str, list[int]] = {}
        for k, node in enumerate(nodes):
            for name in (*node.input, *captured_names(node)):
                self.readers.setdefault(name, []).append(k)

    def closed(self, found: _Function, last: int, kept: Collection[str]) -> bool:
        """Whether nobody outside reads what is inside."""
        inner = [name for k in found.inside - {last} for name in self.nodes[k].output]
        return all(
            name not in kept and set(self.readers.get(name, ())) <= found.inside for name in inner
        )

    def match(self, index: int) -> _Function | None:
        """The function whose last node this is."""
        if self.nodes[index].op_type == "Add":
            return self.group_norm(index)
        if self.nodes[index].op_type not in ("Mul", "Div"):
            return None
        product = self.product(self.nodes[index].output[0], last=True)
        leaves = sorted(product.powers)
        if len(leaves) != 2 or set(product.powers.values()) != {1}:
            return None
        for x, factor in (leaves, leaves[::-1]):
            found = self.gate(x, factor, product.scale)
            if found is not None:
                found.inside.update(product.inside)
                return found
        return None

    def group_norm(self, index: int) -> _Function | None:
        """γ·n + β, where InstanceNormalization between two Reshapes normalizes groups to n."""
        for scaled, bias in self.sides(index):
            product = self.made(scaled, "Mul")
            for normal, scale in self.sides(product):
                back = self.made(normal, "Reshape")
                inner = self.made(self.source(back), "InstanceNormalization")
                apart = self.made(self.source(inner), "Reshape")
                if product is None or back is None or inner is None or apart is None:
                    continue
                groups = self.groups(self.source(apart), apart, inner)
                if groups and self.per_channel((scale, bias), self.source(apart), normal):
                    given = {item.name: item.f for item in self.nodes[inner].attribute}
                    stated = {**given, "num_groups": groups}
                    inside = {index, product, back, inner, apart}
                    x = self.source(apart)
                    return _Function("GroupNormalization", x, inside, stated, (scale, bias))
        return None

    def groups(self, x: str, apart: int, inner: int) -> int | None:
        """How many groups there are, if samples stay apart and nothing else is done to them."""
        name, ones, zeros = self.nodes[inner].input
        whole, own = (self.types.get(n, UNKNOWN).shape for n in (self.nodes[apart].output[0], x))
        scale, bias = self.constants.get(ones), self.constants.get(zeros)
        if not whole or not own or scale is None or bias is None or whole[0] != own[0]:
            return None
        groups, plain = whole[1], bool((scale == 1).all()) and not bias.any()
        return groups if plain and isinstance(groups, int) and name else None

    def per_channel(self, parameters: tuple[str, ...], x: str, normal: str) -> bool:
        """Whether the parameters have one number per channel of x, and n has the shape of x."""
        shape = self.types.get(x, UNKNOWN).shape
        if not shape or self.types.get(normal, UNKNOWN).shape != shape:
            return False
        wanted = (1, shape[1], *[1] * (len(shape) - 2))
        shapes = [self.types.get(name, UNKNOWN).shape for name in parameters]
        return all(
            own is not None and (1,) * (len(shape) - len(own)) + own == wanted for own in shapes
        )

    def made(self, name: str, op: str) -> int | None:
        """The node that makes ``name``, if it is of that operator."""
        index = self.maker.get(name)
        return index if index is not None and self.nodes[index].op_type == op else None

    def source(self, index: int | None) -> str:
        """What a node reads first."""
        return str(self.nodes[index].input[0]) if index is not None else ""

    def sides(self, index: int | None) -> list[tuple[str, str]]:
        """Both inputs of a node, either way round."""
        if index is None:
            return []
        one, other = map(str, self.nodes[index].input)
        return [(one, other), (other, one)]

    def gate(self, x: str, factor: str, scale: float) -> _Function | None:
        """The function ``scale·x·factor``, where ``factor`` is computed from x."""
        made = self.maker.get(factor)
        if made is None:
            return None
        node = self.nodes[made]
        if node.op_type == "Add" and _close(scale, 0.5):
            return self.gelu(x, made)
        if not _close(scale, 1):
            return None
        if node.op_type == "Sigmoid":
            inner = self.product(node.input[0])
            if inner.powers == {x: 1}:
                return _Function("Swish", x, {made, *inner.inside}, {"alpha": inner.scale})
        if node.op_type == "HardSigmoid" and list(node.input) == [x]:
            given = {item.name: item.f for item in node.attribute}
            if _close(given.get("alpha", 0.2), 1 / 6) and _close(given.get("beta", 0.5), 0.5):
                return _Function("HardSwish", x, {made})
        inside = self.maker.get(node.input[0], -1) if node.op_type == "Tanh" else -1
        if inside >= 0 and self.nodes[inside].op_type == "Softplus":
            return _Function("Mish", x, {made, inside}) if x in self.nodes[inside].input else None
        return None

    def gelu(self, x: str, made: int) -> _Function | None:
        """½·x·(1 + erf(x/√2)), or with tanh(√(2/π)·(x + 0.044715·x³)) for erf."""
        for term, one in self.sides(made):
            bell = self.maker.get(term)
            if bell is None or not self.holds(one, 1):
                continue
            op, inner = self.nodes[bell].op_type, self.product(self.nodes[bell].input[0])
            inside = {made, bell, *inner.inside}
            if op == "Erf" and inner.powers == {x: 1} and _close(inner.scale, math.sqrt(0.5)):
                return _Function("Gelu", x, inside)
            if op == "Tanh" and _close(inner.scale, math.sqrt(2 / math.pi)):
                cubic = self.cubic(x, inner)
                if cubic is not None:
                    return _Function("Gelu", x, inside | cubic, {"approximate": "tanh"})
        return None

    def cubic(self, x: str, inner: _Product) -> set[int] | None:
        """The nodes of x + 0.044715·x³, or of its factor 1 + 0.044715·x² beside x."""
        rest = [name for name in inner.powers if name != x]
        if len(rest) != 1 or set(inner.powers.values()) != {1}:
            return None
        added, beside = self.made(rest[0], "Add"), x in inner.powers
        for term, other in self.sides(added):
            power = self.product(term)
            right = power.powers == {x: 2 if beside else 3} and _close(power.scale, 0.044715)
            if added is not None and right and (self.holds(other, 1) if beside else other == x):
                return {added, *power.inside}
        return None

    def product(self, name: str, *, last: bool = False) -> _Product:
        """``name`` as a product; what several nodes read is a factor as it is (x, for one)."""
        made, whole = self.maker.get(name, -1), _Product({name: 1})
        alone = last or len(self.readers.get(name, ())) == 1
        if made < 0 or not alone or self.nodes[made].op_type not in ("Mul", "Div", "Pow"):
            return whole
        node = self.nodes[made]
        values = [self.number(part) for part in node.input]
        if node.op_type == "Pow":
            if values[1] is None:
                return whole
            return _Product({node.input[0]: values[1]}, 1.0, frozenset({made}))
        powers, scale, inside = Counter[str](), 1.0, {made}
        for slot, (part, value) in enumerate(zip(node.input, values, strict=True)):
            divides = node.op_type == "Div" and slot == 1
            if value is not None:
                scale = scale / value if divides and value else scale * value
            elif divides:
                return whole
            else:
                inner = self.product(part)
                powers.update(inner.powers)
                scale *= inner.scale
                inside |= inner.inside
        return _Product(dict(powers), scale, frozenset(inside))

    def holds(self, name: str, number: float) -> bool:
        """Whether a tensor is that number."""
        value = self.number(name)
        return value is not None and _close(value, number)

    def number(self, name: str) -> float | None:
        """The content of a constant with one element."""
        array = self.constants.get(name)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE)
