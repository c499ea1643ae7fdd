"""Laws of copies: one table for the pass, the proof and the runtime.

Nodes between ``a`` and what reads ``b``. Where they hand ``a`` on, ``elide`` takes them away, the
proof accepts that and ONNX Runtime computes the same bits; where not, ``elide`` leaves them, the
proof refuses and the runtime computes something else, or nothing.
"""

import re
from contextlib import suppress

import numpy as np
import onnx
import pytest

from helpers.gradients import Array, draw, runtime
from helpers.graphs import parse
from helpers.laws import SYMBOLS, graph
from helpers.passes import applied, nodes
from helpers.proofs import proof
from memplan.errors import ModelError
from memplan.passes.elide import Elide

# What hands on its input, and whether that is proved for any size (N, 3); None: it holds, but the
# proof does not follow.
SAME = {
    "[n] b = Identity (a)": True,
    "[n] b = Cast <to: int = 1> (a)": True,
    "[n] b = Cast <saturate: int = 0, to: int = 1> (a)": True,
    "[n] b = Concat <axis: int = 0> (a)": True,
    "[n] b = Concat <axis: int = 1> (a)": True,
    "[n] b = Sum (a)": True,
    "[n] b = Max (a)": True,
    "[n] b = Reshape (a, shape)": False,
    "[n] b = Reshape (a, keep)": False,
    "[n] b = Reshape (a, partly)": False,
    "[m] c = Reshape (a, minus) [n] b = Reshape (c, partly)": False,
    "[m] c = Reshape (a, long) [n] b = Reshape (c, partly)": False,
    "[m] c = Reshape (a, turned) [n] b = Reshape (c, shape)": False,
    "[m] c = Reshape (a, flat) [n] b = Reshape (c, shape)": False,
    "[m] c = Unsqueeze (a, zero) [n] b = Squeeze (c, zero)": None,
    "[m] c = Unsqueeze (a, one) [n] b = Squeeze (c, one)": None,
    "[m] c = Unsqueeze (a, zero) [n] b = Squeeze (c)": False,
    "[m] c = Unsqueeze (a, minus) [n] b = Squeeze (c, two)": None,
    "[m] c = Unsqueeze (a, zero) [n] b = Flatten <axis: int = 2> (c)": False,
    "[m] c = Unsqueeze (a, zero) [n] b = Flatten <axis: int = -1> (c)": False,
    "[m] c = Transpose (a) [n] b = Transpose (c)": False,
    "[n] b = Transpose <perm: ints = [0, 1]> (a)": True,
    "[n] b = Flatten (a)": False,
    "[n] b = Expand (a, shape)": False,
    "[n] b = Expand (a, three)": None,
    "[n] b = Expand (a, once)": None,
    "[n] b = Tile (a, ones)": True,
    "[n] b = Slice (a, zero, two)": False,
    "[n] b = Slice (a, zero, nine)": False,
    "[n] b = Slice (a, starts, shape, all, ones)": False,
    "[n] b = Slice (a, zero, nine, one, one)": False,
    "[n] b = Split <num_outputs: int = 1> (a)": True,
    "[n] b = Split (a, two)": True,
    "[n] b = Pad (a, pads)": True,
    "[n] b = Dropout (a)": True,
    "[n] b = Dropout (a, ratio, no)": True,
    "[n] b = Dropout (a, none, yes)": True,
}
OTHER = [
    "[n] b = Reshape (a, other_way)",
    "[m] c = Reshape (a, long)  [n] b = Squeeze (c)",
    "[n] b = Cast <to: int = 10> (a)",
    "[m] c = Cast <to: int = 10> (a) [n] b = Cast <to: int = 1> (c)",
    "[m] c = Cast <to: int = 11> (a) [n] b = Cast <to: int = 1> (c)",
    "[n] b = Concat <axis: int = 0> (a, other)",
    "[n] b = Sum (a, other)",
    "[n] b = Max (a, other)",
    "[n] b = Mean (a, other)",
    "[n] b = Reshape (a, turned)",
    "[n] b = Reshape (a, swap)",
    "[n] b = Reshape <allowzero: int = 1> (a, keep)",
    "[n] b = Transpose (a)",
    "[n] b = Transpose <perm: ints = [1, 0]> (a)",
    "[m] c = Unsqueeze (a, zero) [n] b = Transpose <perm: ints = [1, 0, 2]> (c)",
    "[n] b = Unsqueeze (a, zero)",
    "[m] c = Unsqueeze (a, one) [n] b = Flatten <axis: int = 0> (c)",
    "[m] c = Unsqueeze (a, one) [n] b = Squeeze (c, zero)",
    "[n] b = Flatten <axis: int = 0> (a)",
    "[n] b = Flatten <axis: int = 2> (a)",
    "[n] b = Expand (a, wide)",
    "[n] b = Expand (a, wider)",
    "[n] b = Expand (a, cube)",
    "[n] b = Tile (a, twice)",
    "[n] b = Slice (a, zero, one)",
    "[n] b = Slice (a, one, nine)",
    "[n] b = Slice (a, minus, nine)",
    "[n] b = Slice (a, zero, minus)",
    "[n] b = Slice (a, zero, two, one)",
    "[n] b = Slice (a, zero, nine, zero, two)",
    "[n] b = Slice (a, minus, minus, zero, minus)",
    "[n] b = Slice (a, minus, back, one, minus)",
    "[n] b = Slice (a, zero, two, minus)",
    "[n] b = Split (a, parts)",
    "[n] b, c = Split <num_outputs: int = 2> (a)",
    "[n] b = Pad (a, moved)",
    "[n] b = Dropout (a, ratio, yes)",
    "[n] b = Dropout (a, ratio, mode)",
    "[n] b = Dropout <seed: int = 1> (a, ratio, yes)",
    "[n] b = com.microsoft.Identity (a)",
    "[n] b = Relu (a)",
]
PLAIN = graph("", "a")


def computed(model: str | onnx.ModelProto) -> Array:
    """What a run gives for numbers of both signs."""
    feeds = {name: draw((2, 3), k).astype(np.float32) for k, name in enumerate(("x", "other"))}
    opened = parse(model) if isinstance(model, str) else model
    return runtime(opened, {**feeds, "mode": np.asarray(True)})["y"]


@pytest.mark.parametrize("law", SAME)
def test_a_copy_is_its_input(law: str) -> None:
    found = proof(graph(law), PLAIN)
    assert found.proved, found.reason
    # A Dropout that was not there may take random numbers that others took.
    added = proof(PLAIN, graph(law))
    assert added.redrawn if "Dropout" in law else added.proved
    assert computed(graph(law)).tobytes() == computed(PLAIN).tobytes()
    after = applied(graph(law), Elide())
    assert nodes(after) == "first last"
    assert computed(after.prepared.proto).tobytes() == computed(PLAIN).tobytes()
    # Constants that only the copies read go with them.
    left = {tensor.name for tensor in after.prepared.proto.graph.initializer}
    assert "unused" in left
    assert left.isdisjoint(re.findall(r"\w+", law))


@pytest.mark.parametrize("law", OTHER)
def test_what_is_no_copy_is_not_its_input(law: str) -> None:
    assert not proof(PLAIN, graph(law)).proved
    with suppress(ModelError):  # some are no valid models
        assert not proof(graph(law), PLAIN).proved
        assert nodes(applied(graph(law), Elide())).endswith("n last")
    # Its optimizer draws nothing where nobody reads the mask; a double holds every float.
    if "Dropout" in law or "to: int = 11" in law:
        return
    try:
        found = computed(graph(law))
    except Exception:
        return
    assert found.shape != (2, 3) or found.tobytes() != computed(PLAIN).tobytes()


@pytest.mark.parametrize("law", [law for law, held in SAME.items() if held is not None])
def test_nothing_is_concluded_from_a_size_that_may_be_another(law: str) -> None:
    """N is 2 here, but the file keeps its symbol."""
    first, second = graph("", "a", SYMBOLS), graph(law, "b", SYMBOLS)
    found = proof(first, second, {"N": 2})
    assert (found.proved or found.redrawn) == SAME[law]
