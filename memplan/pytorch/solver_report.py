"""What a plan for a compiled step says of itself: printed, or as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from memplan.ops.memory import in_kinds
from memplan.planning.certificate import certificate, no_bound
from memplan.units import counted, format_bytes, printable

SCHEMA = "memplan.torch_plan/1"
_SHOWN = 6  # modules and refusals in the text; all of them stand in the JSON
COUNTED = (
    "weights, buffers, inputs and constants throughout; results of the forward pass and gradients "
    "to the end; saved tensors until the backward pass has used them last; what convolutions, "
    "batch normalisation and dropout take for themselves on the CPU"
)
NOT_COUNTED = (
    "optimizer state, gradients of earlier steps, scratch memory of other kernels, and what is not "
    "in the compiled function"
)
FUSED = (
    "Inductor fuses operators after this plan is made: its peak differs, and may be over the budget"
)


@dataclass(frozen=True, slots=True)
class TensorDecision:
    """A result of the forward pass that the backward pass reads, and what becomes of it.

    ``decision`` is ``kept`` or ``recomputed``; ``nbytes`` those of its storage, 0 for a view;
    ``times`` it is recomputed, in ``seconds`` more.
    """

    tensor: str
    operator: str
    module: str | None
    nbytes: int
    decision: str
    times: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TorchReport:
    """A plan for one compiled graph.

    Peaks count ``resident_bytes``; ``predicted_peak_bytes`` was read off both graphs
    (:mod:`memplan.pytorch.solver_memory`). ``baseline_peak_bytes``: nothing recomputed, in the
    order that was traced; percentages are of it. ``bound_fraction`` is a certified lower bound on
    the extra cost of every plan under this model of memory and time.
    """

    backend: str
    budget_text: str
    budget_bytes: int
    resident_bytes: int
    baseline_peak_bytes: int
    predicted_peak_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int
    peak_node: str
    saved_bytes: int
    floor_bytes: int
    floor_reason: str
    extra_cost_fraction: float
    bound_fraction: float
    bound_kind: str
    planning_seconds: float
    operators: int
    tensors: tuple[TensorDecision, ...]
    refusals: Mapping[str, str]
    symbolic: bool

    @property
    def gap(self) -> float:
        """What a better plan could save at most, as a fraction of the step's time."""
        return max(0.0, self.extra_cost_fraction - self.bound_fraction)

    @property
    def recomputed(self) -> tuple[TensorDecision, ...]:
        """Tensors that are computed again."""
        return tuple(each for each in self.tensors if each.decision == "recomputed")

    def as_json(self) -> dict[str, object]:
        """All fields; ``tensors`` as in a plan file, in the order of production."""
        own = asdict(self)
        return {
            "schema": SCHEMA,
            "backend": own.pop("backend"),
            "budget": own.pop("budget_text"),
            **own,
            "tensors": list(own["tensors"]),
            "counted": COUNTED,
            "not_counted": NOT_COUNTED,
        }

    def __str__(self) -> str:
        """The report in a dozen lines."""
        return "\n".join(printable(line) for line in self._lines())

    def _lines(self) -> list[str]:
        down = 1 - self.predicted_peak_bytes / max(1, self.baseline_peak_bytes)
        lines = [
            f"peak {format_bytes(self.predicted_peak_bytes)} of a budget of "
            f"{format_bytes(self.budget_bytes)}; without recomputation "
            f"{format_bytes(self.baseline_peak_bytes)} ({-100 * down:+.1f}%)",
            f"forward {format_bytes(self.forward_peak_bytes)}, backward "
            f"{format_bytes(self.backward_peak_bytes)}, of which resident "
            f"{format_bytes(self.resident_bytes)}; the peak is at {self.peak_node}",
            f"extra time {100 * self.extra_cost_fraction:+.2f}% (estimated); {self._how_good()}",
            f"saved for backward: {format_bytes(self.saved_bytes)}",
            *_by_module("recomputed", self.recomputed),
            *_by_module("kept", tuple(each for each in self.tensors if each.decision == "kept")),
            *self._never(),
            f"counted: {COUNTED}",
            f"not counted: {NOT_COUNTED}",
        ]
        if self.symbolic:
            lines.append("sizes are symbolic: the figures are those of the sizes compiled with")
        if self.backend == "inductor":
            lines.append(FUSED)
        return lines

    def _how_good(self) -> str:
        if not self.recomputed and no_bound(self.bound_kind):
            return "nothing recomputed"
        return certificate(self.extra_cost_fraction, self.bound_fraction, self.bound_kind)

    def _never(self) -> list[str]:
        if not self.refusals:
            return []
        return [f"never recomputed: {in_kinds(self.refusals.values())}"]


def _by_module(what: str, tensors: tuple[TensorDecision, ...]) -> list[str]:
    """A heading and the modules with the most bytes."""
    if not tensors:
        return [f"{what}: nothing"]
    sums: Counter[str] = Counter()
    many: Counter[str] = Counter()
    for each in tensors:
        sums[each.module or "(no module)"] += each.nbytes
        many[each.module or "(no module)"] += 1
    lines = [f"{what}: {counted(len(tensors), 'tensor')}, {format_bytes(sum(sums.values()))}"]
    ranked = sorted(sums, key=lambda name: (-sums[name], name))
    lines += [
        f"  {format_bytes(sums[name]):>10}  {name} ({many[name]})" for name in ranked[:_SHOWN]
    ]
    if len(ranked) > _SHOWN:
        lines.append(f"  and {len(ranked) - _SHOWN} more")
    return lines
