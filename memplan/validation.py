"""``validate``: run two models and prove peaks and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from memplan.analysis import OpenModel, on_devices, open_model, opened
from memplan.errors import MemplanError, UsageError
from memplan.loaded import as_loaded
from memplan.model.metadata import get_metadata
from memplan.model.prepare import prepare
from memplan.model.read import read_model
from memplan.model.sorting import restore_order
from memplan.model.write import write_model
from memplan.on_cuda import measured_notes, misplaced
from memplan.passes.interface import gone_names, gone_notes, without_inputs
from memplan.recomputed import clone_findings, clone_names, order_kept, pattern_notes
from memplan.runtime.compare import Comparison, compare_outputs
from memplan.runtime.inputs import Array, load_inputs, synthesize
from memplan.runtime.measure import Measurement, RunRequest, measure, saved_inputs
from memplan.runtime.providers import PROVIDER_NAMES
from memplan.simulate.fallbacks import fallback_notes
from memplan.simulate.later import later_runs
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import Timeline, resident_bytes, simulate

SCHEMA = "memplan.validation/1"
# Two correct runs of float32 training graphs differ by about this much when the order of
# additions differs (docs/memory-model.md).
TOLERANCE = 1e-4
# Kernels whose CPU implementation adds in a different order from run to run.
_UNREPEATABLE = (("ScatterND", "reduction"),)


@dataclass(frozen=True, slots=True)
class ValidateOptions:
    """How to validate: ``inputs`` is an .npz with one array per graph input."""

    provider: str = "auto"
    runs: int = 5
    inputs: Path | None = None
    seed: int = 0
    threads: int = 0
    plain: bool = True


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
            lines.append(f"outputs: all {c.outputs} bitwise equal")
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
        }


@dataclass(slots=True)
class _Bench:
    """What the steps of one validation share."""

    folder: Path
    inputs: Path
    fewer_inputs: Mapping[Path, Path]
    request: RunRequest
    notes: list[str] = field(default_factory=list)

    def run(self, path: Path, label: str, session: str) -> tuple[Measurement, Path]:
        outputs = self.folder / f"{label.replace(' ', '_').replace(',', '')}.npz"
        inputs = self.fewer_inputs.get(path, self.inputs)
        return measure(path, replace(self.request, session=session), inputs, outputs), outputs


def validate(
    original: Path,
    rewritten: Path,
    options: ValidateOptions | None = None,
    *,
    dims: Mapping[str, int] | None = None,
) -> Validation:
    """Run both models, each in a process of its own, and compare.

    Args:
        original: the model before ``rewrite``.
        rewritten: the model after.
        options: provider, number of timed runs, inputs.
        dims: values for symbolic dimensions; default those recorded in ``rewritten``.

    Raises:
        RuntimeUnavailableError: a run failed, or the provider is missing.
        ModelError, UsageError: a bad model or bad inputs.
    """
    options = options or ValidateOptions()
    metadata = get_metadata(read_model(rewritten))
    bound = dict(dims or _dims(metadata))
    before, after = open_model(original, bound), open_model(rewritten, bound)
    gone = gone_names(metadata)
    _check_same_interface(before, after, gone)
    provider = _provider(options, metadata)
    feeds: dict[str, Array]
    feeds = (
        load_inputs(options.inputs, before.graph)
        if options.inputs is not None
        else synthesize(before.graph, options.seed)
    )
    with saved_inputs(feeds) as (folder, archive):
        request = RunRequest("tuned", provider, bound, options.runs, options.seed, options.threads)
        fewer = {after.prepared.path: without_inputs(archive, feeds, gone["input"])}
        bench = _Bench(folder, archive, fewer, request)
        bench.notes.extend(gone_notes(gone))
        return _validate(bench, before, after, str(metadata.get("optimize", "none")),
                         metadata, options)  # fmt: skip


def _dims(metadata: Mapping[str, object]) -> dict[str, int]:
    dims = metadata.get("dims", {})
    if not isinstance(dims, dict):
        return {}
    return {str(k): v for k, v in dims.items() if isinstance(v, int) and v > 0}


def _provider(options: ValidateOptions, metadata: Mapping[str, object]) -> str:
    if options.provider != "auto":
        return options.provider
    recorded = metadata.get("provider", "cpu")
    return recorded if isinstance(recorded, str) and recorded in PROVIDER_NAMES else "cpu"


def _check_same_interface(
    before: OpenModel, after: OpenModel, gone: Mapping[str, tuple[str, ...]]
) -> None:
    for which in ("input", "output"):
        names = [v.name for v in getattr(before.prepared.proto.graph, which)]
        names = [name for name in names if name not in gone[which]]
        if names != [v.name for v in getattr(after.prepared.proto.graph, which)]:
            raise UsageError(
                f"the two models have different graph {which}s",
                "give the original and the file that 'memplan rewrite' made from it",
            )


def _validate(
    bench: _Bench, before: OpenModel, after: OpenModel, level: str,
    metadata: Mapping[str, object], options: ValidateOptions,
) -> Validation:  # fmt: skip
    session = "default" if metadata.get("session") == "default" else "tuned"
    kind = session_kind(session, bench.request.provider)
    label = "original" if level == "none" or session == "default" else f"original, {level} fusions"
    # A plain session fuses the original itself.
    treated = before if session == "default" else _treat(before, level, bench)
    first, first_out = bench.run(treated.prepared.path, "original", session)
    second, second_out = bench.run(after.prepared.path, "rewritten", session)
    after = on_devices(after, kind)
    timeline = simulate(after.graph, kind, after.devices)
    other, other_comparison = None, None
    if options.plain:
        model = after if session == "default" else before
        kept = "rewritten, tuned" if session == "default" else "original, plain default"
        third_session = "tuned" if session == "default" else "default"
        third, third_out = bench.run(model.prepared.path, "other", third_session)
        other = _run(kept, third, model, session_kind(third_session, kind.provider), bench)
        other_comparison = compare_outputs(
            third_out, second_out, third.output_names, second.output_names
        )
    clones = clone_names(after)
    comparison = compare_outputs(first_out, second_out, first.output_names, second.output_names)
    budget = metadata.get("budget_bytes")
    result = Validation(
        provider=bench.request.provider,
        session=session,
        original=_run(label, first, treated, kind, bench),
        rewritten=_run("rewritten", second, after, kind, bench, timeline),
        other=other,
        comparison=comparison,
        other_comparison=other_comparison,
        budget_bytes=budget if isinstance(budget, int) else None,
        clones=len(clones),
        surviving_clones=len(clones & {node.name for node in second.nodes}),
        order_kept=order_kept(after, timeline, second),
        findings=(),
        notes=(
            *pattern_notes(second, timeline, session),
            *fallback_notes(after.devices),
            *measured_notes(second, timeline.resident_bytes),
        ),
        equality="bitwise" if comparison.bitwise else "different",
    )
    result = _judge_equality(result, bench, treated.prepared.path, first_out, before)
    findings = [
        *_findings(result, misplaced(after, second)),
        *clone_findings(after, timeline, second),
    ]
    return replace(result, findings=tuple(findings), notes=(*bench.notes, *result.notes))


def _treat(before: OpenModel, level: str, bench: _Bench) -> OpenModel:
    """The original with the same fusions as the rewritten model, in its original order."""
    if level == "none":
        return before
    from memplan.runtime.optimize import optimize_offline

    saved, target = bench.folder / "saved.onnx", bench.folder / "optimized.onnx"
    optimize_offline(before.prepared.path, saved, level, bench.request.provider)
    sorted_model = restore_order(read_model(saved), before.prepared.proto)
    write_model(sorted_model, target)
    return opened(prepare(sorted_model, target, before.prepared.dims))


def _run(
    label: str, m: Measurement, model: OpenModel, kind: SessionKind, bench: _Bench,
    timeline: Timeline | None = None,
) -> Run:  # fmt: skip
    """The measured run beside its prediction (``timeline``, else simulated here)."""
    if timeline is None:
        timeline = _predicted(model, kind, bench)
    later = None
    if timeline is not None:
        plain = kind.name == "default"
        later = later_runs(timeline).dynamic_peak_bytes if plain else timeline.dynamic_peak_bytes
    resident = timeline.resident_bytes if timeline is not None else resident_bytes(model.graph)
    return Run(
        label=label,
        session=kind.name,
        predicted_peak_bytes=timeline.peak_bytes if timeline is not None else None,
        predicted_later_dynamic_bytes=later,
        measured_peak_bytes=resident + m.dynamic_bytes,
        resident_bytes=resident,
        measured_dynamic_bytes=m.dynamic_bytes,
        second_run_dynamic_bytes=m.second_run_dynamic_bytes,
        arena_bytes=m.arena_bytes,
        rss_growth_bytes=m.rss_growth_bytes,
        seconds_median=m.seconds_median,
        providers=Counter(node.provider for node in m.nodes),
    )


def _predicted(model: OpenModel, kind: SessionKind, bench: _Bench) -> Timeline | None:
    """What the model should need; in a plain session as the runtime's optimizer leaves it."""
    if kind.name == "tuned":
        held = on_devices(model, kind)
        return simulate(held.graph, kind, held.devices)
    try:
        held = as_loaded(model, kind).model
    except MemplanError as error:
        bench.notes.append(f"no prediction for {model.prepared.path.name}: {error.message}")
        return None
    # What was saved is in the order of a default session already.
    return simulate(held.graph, replace(kind, priority_order=True), held.devices)


def _judge_equality(
    result: Validation, bench: _Bench, original: Path, outputs: Path, before: OpenModel
) -> Validation:
    """If bits differ: does the original differ from itself as much?"""
    comparison = result.comparison
    if comparison.bitwise:
        return result
    _, again = bench.run(original, "original again", result.session)
    itself = compare_outputs(outputs, again, [v.name for v in before.prepared.proto.graph.output])
    notes = []
    if not itself.bitwise:
        unrepeatable = [
            node.name
            for node in before.graph.nodes
            if any(node.op == op and key in node.attributes for op, key in _UNREPEATABLE)
        ]
        notes.append(
            f"the original differs from itself from run to run (relative {itself.max_rel_diff:.3g})"
            + (f"; it adds in no fixed order in: {', '.join(unrepeatable)}" if unrepeatable else "")
        )
    allowed = max(TOLERANCE, 4 * itself.max_rel_diff)
    equality = "tolerance" if comparison.max_rel_diff <= allowed else "different"
    return replace(result, equality=equality, notes=(*result.notes, *notes))


def _findings(result: Validation, moved: list[str]) -> list[str]:
    findings = []
    if result.equality == "different":
        findings.append(
            f"the outputs differ: {result.comparison.worst} by "
            f"{result.comparison.max_rel_diff:.3g} relative"
        )
    if result.within_budget is False:
        assert result.budget_bytes is not None
        over = result.rewritten.measured_peak_bytes - result.budget_bytes
        findings.append(
            f"the measured peak is {over:,} B over the budget {result.budget_bytes:,} B"
        )
    if not result.order_kept:
        findings.append("the runtime ran the nodes in another order than planned")
    if moved:
        findings.append(f"{len(moved)} nodes ran on another provider than predicted ({moved[0]})")
    return findings
