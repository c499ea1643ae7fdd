"""Small vectors updated as one: biases, and the scales of norms.

AdamW makes thirteen nodes for every parameter, SGD with momentum four. Most parameters of a network
are vectors of a few hundred elements, for which a node's arithmetic is nothing and its launch
everything. So their gradients wait for each other, values and states are joined end to end, and
what comes out is cut into new values again: element by element the same arithmetic.

Only those of one layer wait for each other. Joined across layers, the new value of one vector
(``rewrite --wrt``) would need the backward pass of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from memplan.autodiff.optimizers.optimizer import Member
from memplan.shapes.tensor_type import TensorType

VECTORS = "vectors"
"""What the nodes of a joined update are named after."""
_MOST_ELEMENTS = 4096
_FEWEST = 4
"""Of AdamW, joining and cutting take seven nodes, and gradients wait."""


def joined_names(
    members: Mapping[str, Member], types: Mapping[str, TensorType]
) -> dict[str, tuple[str, ...]]:
    """The parameters that are updated together, by each of them: those of one layer."""
    small = [name for name, member in members.items() if _is_small(member, types[name])]
    kinds = {name: (members[name], types[name].dtype) for name in small}
    sizes = Counter((kinds[name], layer) for name in small for layer in _layers(name))
    alike: dict[object, list[str]] = {}
    for name in small:
        layers = (layer for layer in _layers(name) if sizes[kinds[name], layer] >= _FEWEST)
        if (layer := next(layers, None)) is not None:
            alike.setdefault((kinds[name], layer), []).append(name)
    groups = [tuple(names) for names in alike.values() if len(names) >= _FEWEST]
    return {name: group for group in groups for name in group}


def _is_small(member: Member, of: TensorType) -> bool:
    """Whether a parameter is a vector that is updated element by element, and short."""
    if not member.optimizer.by_element or of.shape is None or len(of.shape) != 1:
        return False
    return isinstance(of.shape[0], int) and 0 < of.shape[0] <= _MOST_ELEMENTS


def _layers(name: str) -> list[str]:
    """``stages.2.blocks.7`` and ``stages.2`` of ``stages.2.blocks.7.norm.bias``; a name without an
    index tells no layer."""
    parts = name.split(".")
    ends = [k for k, part in enumerate(parts[:-1], start=1) if part.isdecimal()]
    return [".".join(parts[:end]) for end in reversed(ends)]
