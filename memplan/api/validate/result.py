"""What ``validate`` measured, and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memplan.api.versions import runtime_json
from memplan.runtime.compare import Comparison

SCHEMA = "memplan.validation/1"


@dataclass(frozen=True, slots=True)
class Run:
    """One model in one kind of session. Peaks count resident and dynamic bytes.

    ``predicted_later_dynamic_bytes`` and ``second_run_dynamic_bytes`` are of the second run, which
    every later one equals.
    """

    label: str
    session: str
    predicted_peak_bytes: int | None
    predicted_later_dynamic_bytes: int | None
    measured_peak_bytes: int
    resident_bytes: int
    measured_dynamic_bytes: int
    second_run_dynamic_bytes: int
    arena_bytes: int
    rss_growth_bytes: int
    seconds_median: float | None
    providers: Mapping[str, int]

    def as_json(self) -> dict[str, object]:
        """All fields, by name."""
        return {
            "label": self.label,
            "session": self.session,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "predicted_later_dynamic_bytes": self.predicted_later_dynamic_bytes,
            "measured_peak_bytes": self.measured_peak_bytes,
            "resident_bytes": self.resident_bytes,
            "measured_dynamic_bytes": self.measured_dynamic_bytes,
            "second_run_dynamic_bytes": self.second_run_dynamic_bytes,
            "arena_bytes": self.arena_bytes,
            "rss_growth_bytes": self.rss_growth_bytes,
            "seconds_median": self.seconds_median,
            "nodes_by_provider": dict(self.providers),
        }


@dataclass(frozen=True, slots=True)
class Validation:
    """The answer of ``validate``.

    Of a model for tuned sessions, ``original`` had the same treatment (same fusions, tuned
    session) and ``other`` is the user's file in a session with every default on. Of a model for
    plain sessions, ``original`` is the user's file in a plain session too, and ``other`` the
    rewritten one in a tuned session. ``findings`` are what is wrong; with none, the claim is
    proved.
    """

    provider: str
    session: str
    original: Run
    rewritten: Run
    other: Run | None
    comparison: Comparison
    other_comparison: Comparison | None
    budget_bytes: int | None
    clones: int
    surviving_clones: int
    order_kept: bool
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    equality: str

    @property
    def runs(self) -> tuple[Run, ...]:
        """The measured runs, in the order of the report."""
        return (self.original, self.rewritten, *([self.other] if self.other else []))

    @property
    def later_within_budget(self) -> bool | None:
        """Whether every run after the first keeps the budget too."""
        if self.budget_bytes is None:
            return None
        run = self.rewritten
        return run.resident_bytes + run.second_run_dynamic_bytes <= self.budget_bytes

    @property
    def within_budget(self) -> bool | None:
        """Whether the measured peak keeps the budget; None when the file records none."""
        if self.budget_bytes is None:
            return None
        return self.rewritten.measured_peak_bytes <= self.budget_bytes

    @property
    def summary(self) -> str:
        """The verdict's first line."""
        before, after = self.original.measured_peak_bytes, self.rewritten.measured_peak_bytes
        change = 100 * (after / before - 1) if before else 0.0
        return (
            f"measured peak {before:,} B -> {after:,} B ({change:+.1f}%), outputs {self.equality}"
        )

    @property
    def details(self) -> tuple[str, ...]:
        """Lines on outputs, clones and time."""
        lines = []
        c = self.comparison
        if self.equality == "bitwise":
            lines.append(f"outputs: {'all ' if c.outputs > 1 else ''}{c.outputs} bitwise equal")
        else:
            lines.append(
                f"outputs: {c.differing} of {c.outputs} differ, at most {c.max_abs_diff:.3g} "
                f"(relative {c.max_rel_diff:.3g}, {c.worst}); a relative tolerance of "
                f"{c.max_rel_diff:.1e} would pass"
            )
        if self.other is not None and self.other_comparison is not None:
            p = self.other_comparison
            how = "bitwise equal" if p.bitwise else f"relative difference {p.max_rel_diff:.3g}"
            lines.append(f"against '{self.other.label}': {how}")
        lines.append(
            f"clones: {self.surviving_clones} of {self.clones} ran; node order "
            + ("as planned" if self.order_kept else "NOT as planned")
        )
        if self.original.seconds_median and self.rewritten.seconds_median:
            ratio = self.rewritten.seconds_median / self.original.seconds_median
            lines.append(f"step time: {ratio:.2f} × the original's")
        return tuple(lines)

    @property
    def _plain_default(self) -> Run | None:
        """The user's own file in a plain session."""
        return self.original if self.session == "default" else self.other

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {
            "schema": SCHEMA,
            "provider": self.provider,
            "session": self.session,
            "equality": self.equality,
            "max_abs_diff": self.comparison.max_abs_diff,
            "max_rel_diff": self.comparison.max_rel_diff,
            "original": self.original.as_json(),
            "rewritten": self.rewritten.as_json(),
            "plain_default": self._plain_default.as_json() if self._plain_default else None,
            "other": self.other.as_json() if self.other else None,
            "budget_bytes": self.budget_bytes,
            "within_budget": self.within_budget,
            "compared_outputs": self.comparison.outputs,
            "later_runs_within_budget": self.later_within_budget,
            "clones": self.clones,
            "surviving_clones": self.surviving_clones,
            "order_kept": self.order_kept,
            "findings": list(self.findings),
            "notes": list(self.notes),
            "runtime": runtime_json(self.provider),
        }
