"""The vocabulary of the probe's catalogue: a case is one node with its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

OPSET = 20


@dataclass(frozen=True)
class In:
    """An input that arrives as an intermediate tensor; random unless `value` is given."""

    dtype: str
    shape: tuple[int, ...]
    value: np.ndarray | None = None

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Feed data; positive and small, so that Log, Sqrt, Pow and integer division work."""
        if self.value is not None:
            return self.value
        if self.dtype == "bool":
            return np.asarray(rng.integers(0, 2, self.shape), bool)
        if np.issubdtype(self.dtype, np.integer):
            return np.asarray(rng.integers(1, 9, self.shape), self.dtype)
        return np.asarray(rng.random(self.shape) * 0.8 + 0.1, self.dtype)


@dataclass(frozen=True)
class Const:
    """An input that is an initializer (axes, shapes, constant weights)."""

    value: np.ndarray


Input = In | Const | None


@dataclass(frozen=True)
class Case:
    """One node: its inputs, how many outputs it writes and which of them are left out."""

    op: str
    label: str
    inputs: Sequence[Input]
    attributes: Mapping[str, object] = field(default_factory=dict)
    outputs: int = 1
    absent_outputs: frozenset[int] = frozenset()
    domain: str = ""
    opset: int = OPSET

    @property
    def key(self) -> str:
        """The op's key in the tables: `<domain>:<Op>`."""
        return f"{self.domain}:{self.op}"


def f32(*shape: int) -> In:
    """A float32 input."""
    return In("float32", shape)


def typed(dtype: str, *shape: int) -> In:
    """An input of the numpy dtype."""
    return In(dtype, shape)


def given(value: object, dtype: str = "int64") -> In:
    """An intermediate input with these values."""
    array = np.asarray(value, dtype)
    return In(dtype, array.shape, array)


def ints(*values: int) -> Const:
    """A constant int64 vector."""
    return Const(np.array(values, np.int64))


def scalar(value: float, dtype: str = "float32") -> Const:
    """A constant scalar."""
    return Const(np.array(value, dtype))


class Catalogue:
    """Collects cases; labels must be unique within an op."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self._seen: set[tuple[str, str]] = set()

    def add(
        self,
        op: str,
        label: str,
        *inputs: Input,
        outputs: int = 1,
        domain: str = "",
        opset: int = OPSET,
        absent: Sequence[int] = (),
        **attributes: object,
    ) -> None:
        """Add one case; keyword arguments beyond the named ones are the node's attributes."""
        case = Case(op, label, inputs, attributes, outputs, frozenset(absent), domain, opset)
        if (case.key, label) in self._seen:
            raise ValueError(f"case {case.key}/{label} exists twice")
        self._seen.add((case.key, label))
        self.cases.append(case)
