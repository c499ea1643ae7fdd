"""``validate``: run two models and prove peaks and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from memplan.api.validate.clones import clone_findings, clone_names, order_kept, pattern_notes
from memplan.api.validate.cuda import measured_notes, misplaced
from memplan.api.validate.interface import removed_names, removed_notes, without_inputs
from memplan.api.validate.result import Run, Validation
from memplan.api.versions import recorded_version_notes, version_notes
from memplan.errors import MemplanError, UsageError
from memplan.plain.as_loaded import as_loaded, changes_at_load
from memplan.proto.external import settle_links
from memplan.proto.metadata import get_metadata
from memplan.proto.read import read_model
from memplan.proto.restore_order import restore_order
from memplan.proto.write import write_model
from memplan.runtime.compare import Comparison, compare_outputs
from memplan.runtime.inputs import Array, load_inputs, synthesize
from memplan.runtime.measure import measure, saved_inputs
from memplan.runtime.messages import Measurement, RunRequest
from memplan.runtime.providers import PROVIDER_NAMES
from memplan.shapes.prepare import prepare
from memplan.simulate.devices import fallback_notes
from memplan.simulate.opened import OpenModel, on_devices, open_model, opened
from memplan.simulate.pattern import later_runs
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import Timeline, resident_bytes, simulate

__all__ = ["Run", "ValidateOptions", "Validation", "validate"]

# Two correct runs of float32 training graphs differ by about this much when the order of
# additions differs (docs/how/memory-model.md).
TOLERANCE = 1e-4
# Kernels whose CPU implementation adds in a different order from run to run.
_UNREPEATABLE = (("ScatterND", "reduction"),)


@dataclass(frozen=True, slots=True)
class ValidateOptions:
    """How to validate.

    ``provider`` ``auto`` is what the plan was made for. ``runs`` are timed; ``inputs`` is an .npz
    with one array per graph input; ``threads`` 0 leaves their number to the runtime. ``plain``:
    also measure the user's file with every default on.
    """

    provider: str = "auto"
    runs: int = 5
    inputs: Path | None = None
    seed: int = 0
    threads: int = 0
    plain: bool = True


@dataclass(frozen=True, slots=True)
class _Ran:
    """A model that was measured, and the archive of its outputs."""

    measured: Measurement
    outputs: Path

    def compared_with(self, other: _Ran) -> Comparison:
        """Outputs of this run against those of the same names of another."""
        names, others = self.measured.output_names, other.measured.output_names
        return compare_outputs(self.outputs, other.outputs, names, others)


@dataclass(slots=True)
class _Bench:
    """What the steps of one validation share."""

    folder: Path
    inputs: Path
    fewer_inputs: Mapping[Path, Path]
    request: RunRequest
    notes: list[str] = field(default_factory=list)

    def run(self, model: OpenModel, label: str, session: str) -> _Ran:
        """Measure a model in a session of the kind; ``label`` tells its outputs from others."""
        path = model.prepared.path
        outputs = self.folder / f"{label.replace(' ', '_')}.npz"
        inputs = self.fewer_inputs.get(path, self.inputs)
        request = replace(self.request, session=session)
        return _Ran(measure(path, request, inputs, outputs, model.prepared.weights), outputs)


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
    proto = read_model(rewritten)
    metadata = get_metadata(proto)
    bound = dict(dims or _dims(metadata))
    before, after = open_model(original, bound), opened(prepare(proto, rewritten, bound))
    removed = removed_names(metadata)
    _check_same_interface(before, after, removed)
    provider = _provider(options, metadata)
    feeds: dict[str, Array]
    feeds = (
        load_inputs(options.inputs, before.graph)
        if options.inputs is not None
        else synthesize(before.graph, options.seed)
    )
    with saved_inputs(feeds) as (folder, archive):
        request = RunRequest("tuned", provider, bound, options.runs, options.seed, options.threads)
        fewer = {after.prepared.path: without_inputs(archive, feeds, removed["input"])}
        bench = _Bench(folder, archive, fewer, request)
        bench.notes.extend(removed_notes(removed))
        return _validate(bench, before, after, metadata, options.plain)


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
    before: OpenModel, after: OpenModel, removed: Mapping[str, tuple[str, ...]]
) -> None:
    for which in ("input", "output"):
        names = [v.name for v in getattr(before.prepared.proto.graph, which)]
        names = [name for name in names if name not in removed[which]]
        if names != [v.name for v in getattr(after.prepared.proto.graph, which)]:
            raise UsageError(
                f"the two models have different graph {which}s",
                "give the original and the file that 'memplan rewrite' made from it",
            )


def _validate(
    bench: _Bench,
    before: OpenModel,
    after: OpenModel,
    metadata: Mapping[str, object],
    plain: bool,
) -> Validation:
    level = str(metadata.get("optimize", "none"))
    kind = session_kind(
        "default" if metadata.get("session") == "default" else "tuned", bench.request.provider
    )
    # A plain session fuses the original itself.
    fused = level != "none" and kind.name == "tuned"
    treated = _treat(before, level, bench) if fused else before
    first = bench.run(treated, "original", kind.name)
    second = bench.run(after, "rewritten", kind.name)
    after = on_devices(after, kind)
    timeline = simulate(after.graph, kind, after.devices)
    other, other_comparison = _other(bench, before, after, kind, second) if plain else (None, None)
    clones, ran = clone_names(after), {node.name for node in second.measured.nodes}
    comparison = first.compared_with(second)
    budget = metadata.get("budget_bytes")
    label = f"original, {level} fusions" if fused else "original"
    result = Validation(
        provider=kind.provider,
        session=kind.name,
        original=_run(label, first.measured, treated, kind, bench),
        rewritten=_run("rewritten", second.measured, after, kind, bench, timeline),
        other=other,
        comparison=comparison,
        other_comparison=other_comparison,
        budget_bytes=budget if isinstance(budget, int) else None,
        clones=len(clones),
        surviving_clones=len(clones & ran),
        order_kept=order_kept(after, timeline, second.measured),
        findings=(),
        notes=(
            *pattern_notes(second.measured, timeline, kind.name),
            *fallback_notes(after.devices),
            *measured_notes(second.measured, timeline.resident_bytes),
            *version_notes(kind.provider),
            *recorded_version_notes(metadata),
        ),
        equality="bitwise" if comparison.bitwise else "different",
    )
    result = _judge_equality(result, bench, treated, first, before)
    findings = (
        *_findings(result, misplaced(after, second.measured)),
        *clone_findings(after, timeline, second.measured),
    )
    return replace(result, findings=findings, notes=(*bench.notes, *result.notes))


def _other(
    bench: _Bench, before: OpenModel, after: OpenModel, kind: SessionKind, rewritten: _Ran
) -> tuple[Run, Comparison]:
    """The run that is no part of the claim: the user's file in a plain session or, of a model for
    plain sessions, the rewritten one in a tuned session; beside the rewritten one's outputs."""
    if kind.name == "default":
        model, label, session = after, "rewritten, tuned", "tuned"
    else:
        model, label, session = before, "original, plain default", "default"
    ran = bench.run(model, "other", session)
    run = _run(label, ran.measured, model, session_kind(session, kind.provider), bench)
    return run, ran.compared_with(rewritten)


def _treat(before: OpenModel, level: str, bench: _Bench) -> OpenModel:
    """The original with the same fusions as the rewritten model, in its original order."""
    from memplan.runtime.optimize import optimize_offline

    saved, target = bench.folder / "saved.onnx", bench.folder / "optimized.onnx"
    prepared, provider = before.prepared, bench.request.provider
    optimize_offline(prepared.path, saved, level, provider, prepared.weights)
    sorted_model = restore_order(read_model(saved, prepared.beside), prepared.proto)
    weights = settle_links(sorted_model, prepared.beside)
    write_model(sorted_model, target)
    return opened(prepare(sorted_model, target, prepared.dims, weights))


def _run(
    label: str,
    m: Measurement,
    model: OpenModel,
    kind: SessionKind,
    bench: _Bench,
    timeline: Timeline | None = None,
) -> Run:
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
    if not changes_at_load(model.graph, kind):
        held = on_devices(model, kind)
        return simulate(held.graph, kind, held.devices)
    try:
        loaded = as_loaded(model, kind)
    except MemplanError as error:
        bench.notes.append(f"no prediction for {model.prepared.path.name}: {error.message}")
        return None
    return simulate(loaded.model.graph, loaded.kind, loaded.model.devices)


def _judge_equality(
    result: Validation, bench: _Bench, original: OpenModel, first: _Ran, before: OpenModel
) -> Validation:
    """If bits differ: does the original differ from itself as much?"""
    comparison = result.comparison
    if comparison.bitwise:
        return result
    itself = first.compared_with(bench.run(original, "original again", result.session))
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
