"""Alias, in-place and determinism of operators, per execution provider.

The tables are measured, not guessed: ``tables/<provider>.json`` is written by ``tools/probe_ort``
from probes on the runtime itself. An operator that no probe knows is treated as neither aliasing
nor in-place, which can only over-count, and is named among the assumptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from memplan.ir.graph import ABSENT, Node
from memplan.ops.book import CONTROL_FLOW_OPS, EFFECT_OPS, RANDOM_OPS, operator
from memplan.ops.kernels import COPY_OPS, read_table
from memplan.providers import PROVIDERS
from memplan.units import counted

RANDOM, EFFECTS, BODY = (
    "draws random numbers",
    "has effects beyond its outputs",
    "has a body (control flow)",
)
COPIES = "copies between device and host"
UNKNOWN = "unknown operator: it may draw random numbers or have effects"
EAGER = "runs as soon as its input is there"
NO_TENSORS = "handles strings, sequences or optionals"
_KINDS: Mapping[str, tuple[str, str]] = {
    RANDOM: ("random operator", ""),
    EFFECTS: ("operator with side effects", "operators with side effects"),
    BODY: ("control-flow operator", ""),
    COPIES: ("copy between device and host", "copies between device and host"),
    UNKNOWN: ("unknown operator", ""),
    EAGER: ("reader of shapes", "readers of shapes"),
    NO_TENSORS: (
        "operator on strings, sequences or optionals",
        "operators on strings, sequences or optionals",
    ),
}


def packed_inputs(key: str, provider: str) -> tuple[int, ...]:
    """The slots in which a constant leads to other sums than the same numbers made by a node."""
    return operator(key).packed_inputs if provider == "cpu" else ()


def packable(node: Node) -> list[int]:
    """The tensors that a node reads in such slots of a CPU kernel."""
    slots = operator(node.key).packed_inputs
    return [t for k, t in enumerate(node.inputs) if k in slots and t != ABSENT]


@dataclass(frozen=True, slots=True)
class MemorySemantics:
    """The measured tables of one provider. Pairs are (output index, input index).

    ``runtime`` is what they were measured on, as ``onnxruntime 1.31.1``, and ``same_on`` are other
    versions that were measured and are the same; ``no_scratch`` are the operators that take none,
    ``faults`` the calls that fail (:mod:`memplan.ops.faults`).
    """

    provider: str
    runtime: str
    alias: Mapping[str, tuple[tuple[int, int], ...]]
    inplace: Mapping[str, tuple[tuple[int, int], ...]]
    known: frozenset[str]
    no_scratch: frozenset[str]
    same_on: frozenset[str]
    faults: Mapping[str, tuple[tuple[str, str], ...]]

    def alias_input(self, key: str, output: int) -> int | None:
        """The input slot whose buffer output ``output`` always shares, or None."""
        for made, given in self.alias.get(key, ()):
            if made == output:
                return given
        return None

    def inplace_inputs(self, key: str, output: int) -> tuple[int, ...]:
        """The input slots whose buffer output ``output`` may take over when they die here."""
        rows = self.inplace.get(key)
        return tuple([given for made, given in rows if made == output]) if rows else ()


@cache
def semantics(provider: str) -> MemorySemantics:
    """The tables of ``provider`` (see :mod:`memplan.providers`)."""
    data = read_table(provider)

    def pairs(field: str) -> dict[str, tuple[tuple[int, int], ...]]:
        return {key: tuple((o, i) for o, i in rows) for key, rows in data[field].items()}

    alias, inplace = pairs("alias"), pairs("inplace")
    known = frozenset(alias) | frozenset(inplace) | frozenset(data["not_inplace"])
    scratch_free = frozenset(data.get("no_scratch", ()))
    same_on = frozenset(data.get("same_on", ()))
    faults = {
        key: tuple((why, said) for why, said in r) for key, r in data.get("faults", {}).items()
    }
    return MemorySemantics(
        provider, data["runtime"], alias, inplace, known, scratch_free, same_on, faults
    )


def has_effects(key: str) -> bool:
    """Whether an operator may do more than make its outputs; of an unknown one, nobody knows.

    Those of ONNX do not, by its specification.
    """
    if key in EFFECT_OPS or key.startswith((":", "ai.onnx.ml:")):
        return key in EFFECT_OPS
    return not (key in RANDOM_OPS or key in semantics("cpu").known)


def overwritable_inputs(key: str, inputs: int) -> tuple[int, ...]:
    """The slots that a node with so many ``inputs`` may write its output over as it reads them."""
    entry = operator(key)
    return () if entry.in_passes and inputs > 2 else entry.overwrites


@cache
def shared_buffers(key: str) -> tuple[tuple[int, int], ...]:
    """(output, input) pairs that share a buffer on some provider, in some opset."""
    measured = [pair for name in PROVIDERS for pair in semantics(name).alias.get(key, ())]
    return tuple(dict.fromkeys([*measured, *operator(key).shares]))


def in_kinds(reasons: Iterable[str]) -> str:
    """``19 random operators, 2 control-flow operators``: what is never recomputed, by reason."""
    counts = Counter(reasons).items()
    return ", ".join(
        counted(count, *_KINDS[reason]) if reason in _KINDS else f"{count:,} × {reason}"
        for reason, count in counts
    )


def refusal(key: str, provider: str = "cpu") -> str | None:
    """Why an operator is never recomputed, or None if recomputing it gives the same bits."""
    if key in RANDOM_OPS:
        return RANDOM
    if key in EFFECT_OPS:
        return EFFECTS
    if key in CONTROL_FLOW_OPS:
        return BODY
    if key.removeprefix(":") in COPY_OPS:
        return COPIES
    # The CPU table is the widest; an operator in it is a plain function of its inputs anywhere.
    if key not in semantics("cpu").known and key not in semantics(provider).known:
        return UNKNOWN
    return None
