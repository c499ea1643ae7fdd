"""What ``validate`` measured, and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memplan.api.summary import Summary, attributes_json, fields_json
from memplan.api.validate.proof import proof_line
from memplan.api.validate.same_interface import some_names
from memplan.api.versions import runtime_json
from memplan.equivalence.prove import Equivalence
from memplan.runtime.compare_outputs import Comparison
from memplan.units import counted

SCHEMA = "memplan.validation/1"
_MEASURED = (
    "measured_peak_bytes",
    "measured_dynamic_bytes",
    "second_run_dynamic_bytes",
    "arena_bytes",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One model in one kind of session. Peaks count resident and dynamic bytes.

    ``resident_bytes`` are counted from the file, not measured. ``predicted_later_dynamic_bytes``
    and ``second_run_dynamic_bytes`` are of the second run, which every later one equals;
    ``further_dynamic_bytes`` of the runs on further draws, behind the second run. Not ``counted``:
    the provider does not say what it uses, and what is predicted stands for what is measured.
    """

    label: str
    session: str
    predicted_peak_bytes: int | None
    predicted_peak_with_workspace_bytes: int | None
    predicted_later_dynamic_bytes: int | None
    measured_peak_bytes: int
    resident_bytes: int
    measured_dynamic_bytes: int
    second_run_dynamic_bytes: int
    further_dynamic_bytes: tuple[int, ...]
    arena_bytes: int
    rss_growth_bytes: int
    seconds_median: float | None
    providers: Mapping[str, int]
    counted: bool = True

    @property
    def known(self) -> str:
        """What its peak is: ``measured``, or ``predicted`` alone."""
        return "measured" if self.counted else "predicted"

    @property
    def all_dynamic_bytes(self) -> tuple[int, ...]:
        """Measured dynamic peaks, run by run."""
        return (
            self.measured_dynamic_bytes,
            self.second_run_dynamic_bytes,
            *self.further_dynamic_bytes,
        )

    @property
    def highest_measured_bytes(self) -> int:
        """The peak over all runs."""
        return self.resident_bytes + max(self.all_dynamic_bytes)

    @property
    def as_predicted(self) -> bool:
        """Whether every run took what was predicted, to the byte."""
        if self.predicted_peak_bytes is None or not self.counted:
            return False
        first, *later = self.all_dynamic_bytes
        return self.predicted_peak_bytes == self.resident_bytes + first and all(
            nbytes == self.predicted_later_dynamic_bytes for nbytes in later
        )

    @property
    def workspace_bytes(self) -> int | None:
        """How far workspace lifts the predicted peak; None where that is not known."""
        peak, whole = self.predicted_peak_bytes, self.predicted_peak_with_workspace_bytes
        return None if peak is None or whole is None else whole - peak

    def as_json(self) -> dict[str, object]:
        """All fields, by name; of memory that was not measured, None."""
        found = fields_json(self)
        further = found.pop("further_dynamic_bytes")
        found |= {"further_draws": [{"dynamic_bytes": nbytes} for nbytes in further]}
        found |= {"nodes_by_provider": found.pop("providers")}
        if not found.pop("counted"):
            found |= dict.fromkeys(_MEASURED)
            found["further_draws"] = [{"dynamic_bytes": None} for _ in further]
        return found


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong. ``part`` of the validation that found it: ``construction``,
    ``outputs``, ``memory``, ``nodes`` or ``interface``."""

    part: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, repr=False)
class Validation(Summary):
    """The answer of ``validate``.

    Of a model for tuned sessions, ``original`` had the same treatment (same fusions, tuned
    session) and ``other`` is the user's file in a session with every default on. Of a model for
    plain sessions, ``original`` is the user's file in a plain session too, and ``other`` the
    rewritten one in a tuned session. ``comparisons`` are of the original and the rewritten model,
    draw by draw. ``vacuous_outputs``: what shows nothing, and why. ``contradicted_outputs``: those
    that are the same by construction and yet have other bits. ``findings`` are what is wrong.
    ``state_in_place``: so many outputs were bound to the buffers of inputs in tuned sessions.
    """

    provider: str
    session: str
    original: Run
    rewritten: Run
    other: Run | None
    equivalence: Equivalence
    comparisons: tuple[Comparison, ...]
    other_comparison: Comparison | None
    vacuous_outputs: Mapping[str, str]
    later_bits_equal: bool
    budget_bytes: int | None
    clones: int
    surviving_clones: int
    order_kept: bool
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    equality: str
    state_in_place: int = 0
    contradicted_outputs: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether nothing is wrong and nothing was taken on trust: the files are equivalent by
        construction, outputs were equal to the bit, and every run kept to prediction and
        budget."""
        shown = self.equivalence.proved and self.equality == "bitwise"
        return not self.findings and shown and self.rewritten.as_predicted

    @property
    def comparison(self) -> Comparison:
        """All draws as one: the worst difference, and how many outputs differ in any draw."""
        if len(self.comparisons) == 1:
            return self.comparisons[0]
        worst = max(self.comparisons, key=lambda c: (c.max_rel_diff, c.differing))
        differing = {d.name for c in self.comparisons for d in c.differences}
        return Comparison(
            bitwise=not differing,
            max_abs_diff=max(c.max_abs_diff for c in self.comparisons),
            max_rel_diff=worst.max_rel_diff,
            worst=worst.worst,
            differing=len(differing),
            outputs=worst.outputs,
        )

    @property
    def runs(self) -> tuple[Run, ...]:
        """The measured runs, in the order of the report."""
        return (self.original, self.rewritten, *([self.other] if self.other else []))

    @property
    def later_within_budget(self) -> bool | None:
        """Whether every run after the first keeps the budget too, as :attr:`within_budget`."""
        if self.budget_bytes is None or not self.rewritten.counted:
            return None
        run = self.rewritten
        return run.resident_bytes + max(run.all_dynamic_bytes[1:]) <= self.budget_bytes

    @property
    def within_budget(self) -> bool | None:
        """Whether the measured peak keeps the budget; None when the file records none, and where
        the provider does not say what it uses."""
        if self.budget_bytes is None or not self.rewritten.counted:
            return None
        return self.rewritten.measured_peak_bytes <= self.budget_bytes

    @property
    def verdict(self) -> str:
        """``proved``, ``not proved``, or why it is neither."""
        if self.proved:
            return "proved, but the measured peak RISES" if self.rise_bytes > 0 else "proved"
        return "not proved" if self.findings else "no finding, but not proved"

    @property
    def rise_bytes(self) -> int:
        """How far the measured peak is above the original's."""
        return self.rewritten.measured_peak_bytes - self.original.measured_peak_bytes

    @property
    def summary(self) -> str:
        """What was shown, in a line: every word of it is there only if it was."""
        words = [self._equality_words, self._peak_words, *self._budget_words]
        if self.rise_bytes > 0:  # what is worse than before is said before what is well
            words[:2] = words[1::-1]
        return "; ".join(words)

    @property
    def _equality_words(self) -> str:
        draws = len(self.comparisons)
        where = f"in {draws} draw{'s' if draws > 1 else ''}"
        c = self.comparison
        runs = {
            "bitwise": f"bitwise equal {where}",
            "tolerance": f"equal within tolerance {where} (at most {c.max_rel_diff:.1e} relative)",
        }.get(self.equality, "outputs differ")
        if self.vacuous_outputs:
            runs += f" ({len(self.vacuous_outputs)} of {counted(c.outputs, 'output')} vacuous)"
        shown = self.equivalence.proved and not self.contradicted_outputs
        return ("equivalent by construction, " if shown else "") + runs

    @property
    def _peak_words(self) -> str:
        before, after = self.original.measured_peak_bytes, self.rewritten.measured_peak_bytes
        change = 100 * (after / before - 1) if before else 0.0
        said = ", as predicted" if self.rewritten.as_predicted else ""
        saved = (self.original.workspace_bytes or 0) - (self.rewritten.workspace_bytes or 0)
        if self.rise_bytes > 0 and saved > 0:
            said += f", for {saved:,} B less of workspace, which is predicted only"
        how = "measured" if self.rewritten.counted else "predicted, not measured:"
        return f"peak {how} {before:,} B -> {after:,} B ({change:+.1f}%){said}"

    @property
    def _budget_words(self) -> list[str]:
        if self.budget_bytes is None:
            same = self.original.measured_peak_bytes == self.rewritten.measured_peak_bytes
            return ["the same peak, and no budget"] if same else ["no budget"]
        over = any("over the budget" in finding.text for finding in self.findings)
        within = "in every run" if self.rewritten.counted else "as predicted"
        return ["over the budget" if over else f"within budget {within}"]

    @property
    def title(self) -> str:
        """What ``repr`` heads it with."""
        return f"{self.verdict}: {self.summary}"

    @property
    def details(self) -> tuple[str, ...]:
        """Lines on the proof, outputs, clones and time."""
        contradicted = bool(self.contradicted_outputs)
        proof = proof_line(self.equivalence, contradicted=contradicted)
        lines = [proof, self._outputs_line]
        lines += [
            f"vacuous: {some_names(names)} {what}, so the runs say nothing of "
            f"{'them' if len(names) > 1 else 'it'}"
            for what, names in self._vacuous_by_kind.items()
        ]
        if self.state_in_place:
            outputs = counted(self.state_in_place, "output")
            lines.append(f"state in place: {outputs} bound over old values, as in memplan.Trainer")
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
            lines.append(
                f"step time: {ratio:.2f} × the original's; other work on the machine counts"
            )
        return tuple(lines)

    @property
    def _outputs_line(self) -> str:
        c, draws = self.comparison, len(self.comparisons)
        if not c.bitwise:
            return (
                f"outputs: {c.differing} of {c.outputs} differ, at most {c.max_abs_diff:.3g} "
                f"(relative {c.max_rel_diff:.3g}, {c.worst}); a relative tolerance of "
                f"{c.max_rel_diff:.1e} would pass"
            )
        every = f"outputs: {'all ' if c.outputs > 1 else ''}{c.outputs} bitwise equal"
        later = " and in a second run on the first" if self.later_bits_equal else ""
        return f"{every} in {draws} draw{'s' if draws > 1 else ''}{later}"

    @property
    def _vacuous_by_kind(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, what in self.vacuous_outputs.items():
            found.setdefault(what, []).append(name)
        return found

    @property
    def plain_default(self) -> Run | None:
        """The user's own file in a plain session."""
        return self.original if self.session == "default" else self.other

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        compared = self.comparison
        return {
            "schema": SCHEMA,
            **attributes_json(self, "provider", "session", "proved", "equality", "state_in_place"),
            "max_abs_diff": compared.max_abs_diff,
            "max_rel_diff": compared.max_rel_diff,
            **attributes_json(self, "equivalence"),
            "draws": len(self.comparisons),
            **attributes_json(self, "vacuous_outputs", "contradicted_outputs"),
            "later_runs_bitwise_equal": self.later_bits_equal,
            **attributes_json(self, "original", "rewritten", "plain_default", "other"),
            **attributes_json(self, "budget_bytes", "within_budget"),
            "compared_outputs": compared.outputs,
            "later_runs_within_budget": self.later_within_budget,
            **attributes_json(self, "clones", "surviving_clones", "order_kept"),
            "findings": [finding.text for finding in self.findings],
            "finding_parts": [finding.part for finding in self.findings],
            "notes": list(self.notes),
            "runtime": runtime_json(self.provider),
        }
