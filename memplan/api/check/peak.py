"""A peak as a value: what a lock keeps of a model, what its base needs, what it needs today."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from memplan.proto.metadata import APART
from memplan.units import parse_size, printable

TOP_FAMILIES = 10
"""Families of tensors in a lock: most of the peak, and few enough to be reviewed."""
_ZERO = re.compile(r"^\s*0+(\.0+)?\s*(%|[kKMGT]?i?B)?\s*$")


@dataclass(frozen=True, slots=True)
class TopTensors:
    """Tensors of one family that are in memory at the peak: ``count`` of ``nbytes`` bytes each.

    ``name`` is a tensor's name, or what a family of several has in common, with ``*`` in place of
    numbers. Known of a model that is at hand: ``held_by``, who holds the first of them; ``module``,
    where the model records what made them; ``line``, that of the user's code, of a step of PyTorch.
    """

    name: str
    tensor_class: str
    count: int
    nbytes: int
    held_by: str = field(default="", compare=False)
    module: str = field(default="", compare=False)
    line: str = field(default="", compare=False)

    @property
    def place(self) -> str:
        """The module and the name of what they are, as it may be shown."""
        return printable(" ".join(filter(None, (self.module, self.name))))

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them."""
        return self.count * self.nbytes


@dataclass(frozen=True, slots=True)
class Binding:
    """How a model is looked at: sizes of its symbolic dimensions, session kind and provider.

    ``state`` is where its state lies: ``apart``, or empty: as the file is run.
    """

    dims: Mapping[str, int]
    session: str
    provider: str
    state: str = ""


@dataclass(frozen=True, slots=True)
class Peak:
    """What one model needs. Fields that end in ``_bytes`` are bytes, as ``analyze`` counts them.

    ``path`` is relative to the lock's folder. ``accounting`` is the version of memplan's memory
    model. ``top`` are tensors at the peak, largest total first: all of a model that is at hand, the
    first of them in a lock. ``tolerance`` is what a person wrote (a size, a percentage of the
    locked peak, or bytes); None is 0. ``runtime`` is the version of ONNX Runtime that was installed
    (None: none was, or an older memplan wrote the entry). ``state``: ``in-place`` or ``apart``, as
    it was counted (None: the file said nothing of it, or an older memplan wrote the entry).
    ``torch`` and ``memplan``: versions of what captured a step of PyTorch (None: it is a file).
    ``as_loaded`` is there where figures rest on what that runtime makes of the file when it loads
    it; False: it could not be asked. ``structure`` to ``inputs`` name the cause of a growth
    (:mod:`memplan.api.check.traits`; None: an older memplan wrote the entry). ``line`` is that of
    the entry in the lock (from 1; 0: it stands in none).

    The rest is known of a model that is at hand alone. The peak is at ``step`` (from 0) of
    ``steps``; ``floor_bytes`` is the structural floor with workspace.
    """

    path: str
    fingerprint: str
    accounting: int
    session: str
    provider: str
    dims: Mapping[str, int]
    peak_bytes: int
    peak_node: str
    classes: Mapping[str, int]
    top: tuple[TopTensors, ...]
    peak_with_workspace_bytes: int | None = None
    tolerance: str | int | None = None
    runtime: str | None = None
    torch: str | None = None
    memplan: str | None = None
    state: str | None = None
    as_loaded: bool | None = None
    structure: str | None = None
    operators: Mapping[str, int] | None = None
    types: Mapping[str, int] | None = None
    inputs: Mapping[str, str] | None = None
    line: int = field(default=0, compare=False)
    step: int = 0
    steps: int = 0
    phase: str = ""
    floor_bytes: int = 0

    @property
    def rests_on(self) -> tuple[bool | None, str | None]:
        """What of the runtime the figures rest on; peaks in which that differs do not compare."""
        return self.as_loaded, self.runtime if self.as_loaded else None

    @property
    def binding(self) -> Binding:
        """What the peak was found for."""
        state = APART if self.state == APART else ""
        return Binding(self.dims, self.session, self.provider, state)

    @property
    def limit_bytes(self) -> int:
        """The peak that a model is held to by this one: this and its tolerance."""
        return self.peak_bytes + tolerance_bytes(self.tolerance, self.peak_bytes)


def tolerance_bytes(tolerance: str | int | None, peak_bytes: int) -> int:
    """A tolerance in bytes; a percentage is taken of ``peak_bytes`` and rounded down.

    Raises:
        UsageError: the text is neither a size nor a percentage.
    """
    if tolerance is None:
        return 0
    if isinstance(tolerance, int):
        return tolerance
    # A budget of 0 is an error, a tolerance of 0 is the default spelled out.
    return 0 if _ZERO.match(tolerance) else parse_size(tolerance).resolve(peak_bytes)
