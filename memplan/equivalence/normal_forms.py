"""What a term can be. Frozen values: equal forms are one term.

Fields named for a tensor hold its term. ``depth`` counts the bodies around a symbol.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Bodies = tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input: its name, and its type as the file states it."""

    name: str
    kind: bytes


@dataclass(frozen=True, slots=True)
class Constant:
    """Element type, shape and a digest of the content."""

    dtype: int
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """Content that is only compared: a sparse constant, a ``Constant`` node of another kind."""

    content: object


@dataclass(frozen=True, slots=True)
class Applied:
    """An operator applied to terms; not a term itself.

    ``attributes`` and ``bodies`` are in a form to compare; ``outputs``: the slots that are not
    optional, or choose the kernel; ``packed``: the slots of constants that do; ``occurrence`` tells
    apart what is no function of its inputs, and is empty else; ``free``: the depths of bodies whose
    symbols are in it, as bits.
    """

    domain: str
    op: str
    reads: tuple[int, ...]
    attributes: tuple[object, ...] = ()
    bodies: Bodies = ()
    outputs: tuple[int, ...] = ()
    packed: tuple[int, ...] = ()
    occurrence: str = ""
    free: int = field(default=0, compare=False)

    @property
    def key(self) -> str:
        """``domain:Op``, the key of the operator book."""
        return f"{self.domain}:{self.op}"


@dataclass(frozen=True, slots=True)
class Output:
    """An output of an operator."""

    applied: Applied
    slot: int


@dataclass(frozen=True, slots=True)
class View:
    """The elements of ``root``, which is no view itself, in another shape."""

    root: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transposed:
    """``root``, which is not transposed itself, with permuted axes."""

    root: int
    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Converted:
    """``source`` cast to another element type."""

    source: int
    dtype: int


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The elements of ``root``, repeated to ``shape``."""

    root: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The range from ``start`` to before ``stop`` of ``root`` along ``axis``."""

    root: int
    axis: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Product:
    """``alpha`` times the product of two matrices, transposed or not, and ``added`` to it."""

    a: int
    trans_a: bool
    b: int
    trans_b: bool
    alpha: float
    added: int


@dataclass(frozen=True, slots=True)
class Summed:
    """Of the sum ``root`` of ``size`` summands those from ``start`` to before ``stop``, counted
    along ``axis`` of what is summed (0 for the inner axis of a product of two matrices)."""

    root: int
    axis: int
    start: int
    stop: int
    size: int


@dataclass(frozen=True, slots=True)
class SizeOf:
    """How many elements ``source`` has."""

    source: int


@dataclass(frozen=True, slots=True)
class Formal:
    """An input of a body of If or Loop, by the attribute that holds the body."""

    depth: int
    attribute: str
    place: int
    kind: bytes


@dataclass(frozen=True, slots=True)
class State:
    """A state of a Scan as a step finds it."""

    depth: int
    place: int
    kind: bytes


@dataclass(frozen=True, slots=True)
class Element:
    """The slice of a sequence that a step reads; ``mirrored``: counted from the end."""

    sequence: int
    axis: int
    mirrored: bool
    depth: int


@dataclass(frozen=True, slots=True)
class StateAt:
    """A state of another Scan with as many steps, at the same step or its mirror image."""

    core: int
    place: int
    mirrored: bool
    depth: int


@dataclass(frozen=True, slots=True)
class There:
    """A value of a step of another Scan that cannot be seen through: a draw, an inner loop."""

    inner: int
    core: int
    mirrored: bool
    depth: int


@dataclass(frozen=True, slots=True)
class Core:
    """What makes a Scan: steps (None: unknown), initial states and how a step changes them.

    ``sequences``: what it reads, with an axis each, where the number of steps is not known: their
    length decides it. ``marked``: what in its body is no function; ``occurrence`` then tells it
    apart.
    """

    steps: int | None
    sequences: tuple[tuple[int, int], ...]
    depth: int
    initial: tuple[int, ...]
    updates: tuple[int, ...]
    marked: tuple[Applied, ...]
    occurrence: str


@dataclass(frozen=True, slots=True)
class Final:
    """A state behind the last step."""

    core: int
    place: int


@dataclass(frozen=True, slots=True)
class Stack:
    """What all steps hand out, along ``axis``; ``mirrored``: the last step first."""

    core: int
    inner: int
    axis: int
    mirrored: bool


Form = (
    Input
    | Constant
    | Opaque
    | Output
    | View
    | Transposed
    | Converted
    | Broadcast
    | Part
    | Product
    | Summed
    | SizeOf
    | Formal
    | State
    | Element
    | StateAt
    | There
    | Core
    | Final
    | Stack
)
