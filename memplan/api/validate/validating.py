"""``validate``: run two models and prove peaks and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from memplan.api.open_step import open_step
from memplan.api.source import Model, as_file
from memplan.api.state_modes import bindings, like_state
from memplan.api.validate.bench import Bench, Progress, Ran, opened_bench, unrun_draws
from memplan.api.validate.clones import clone_findings, clone_names, order_kept, pattern_notes
from memplan.api.validate.cuda import (
    SCATTERED,
    measured_notes,
    misplaced,
    scattered_sums,
    uncounted_notes,
)
from memplan.api.validate.measured_memory import (
    Doubt,
    budget_findings,
    doubt,
    prediction_differences,
    rise_findings,
)
from memplan.api.validate.outputs import judge, unstated_shapes
from memplan.api.validate.proof import contradictions, equivalence_of, proof_findings
from memplan.api.validate.same_interface import (
    removal_findings,
    removed_names,
    removed_notes,
    swapped,
)
from memplan.api.validate.validation import Finding, Run, Validation
from memplan.api.versions import recorded_version_notes, version_notes
from memplan.equivalence.prove import Equivalence
from memplan.errors import MemplanError, ModelError, UsageError
from memplan.ops.sharp_edges import (
    Edge,
    disabled_notes,
    edge_notes,
    sharp_edges,
    wrong_optimizers,
)
from memplan.options import LEVELS, ValidateOptions
from memplan.planning.plain.as_loaded import as_loaded, changes_at_load
from memplan.proto.external import settle_links
from memplan.proto.metadata import BOUND_DIMS, get_metadata
from memplan.proto.model_checks import require_device
from memplan.proto.opset import default_opset, raise_opset
from memplan.proto.read import read_model
from memplan.proto.restore_order import restore_order
from memplan.proto.write import write_model
from memplan.providers import PROVIDERS
from memplan.runtime.compare_outputs import Comparison
from memplan.runtime.messages import Measurement, RunRequest
from memplan.shapes.prepare import prepare
from memplan.simulate.devices import fallback_notes
from memplan.simulate.opened import OpenModel, on_devices, opened
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import Timeline, later_runs, resident_bytes, simulate
from memplan.simulate.unrunnable import require_runs
from memplan.units import counted

__all__ = ["Run", "ValidateOptions", "Validation", "validate"]


def validate(
    original: Model,
    rewritten: Model,
    options: ValidateOptions | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Compare two files as they lie there, run both, each in a process of its own, and compare.

    Args:
        original: the model before ``rewrite``: a path or a ``ModelProto``.
        rewritten: the model after.
        options: provider, number of timed runs and of draws, inputs.
        dims: values for symbolic dimensions; default those recorded in ``rewritten``.
        progress: is told what is being done.

    Raises:
        RuntimeUnavailableError: a run failed or took too long, or the provider is missing.
        ModelError, UsageError: a bad model or bad inputs.
    """
    options = options or ValidateOptions()
    with as_file(original) as one, as_file(rewritten) as other:
        return _of_files(one, other, options, dims, progress)


def _of_files(
    original: Path,
    rewritten: Path,
    options: ValidateOptions,
    dims: Mapping[str, int] | None,
    progress: Progress | None,
) -> Validation:
    first, second = read_model(original), read_model(rewritten)
    metadata = get_metadata(second)
    if metadata.get("optimize", "none") not in LEVELS:
        raise ModelError(
            f"the rewritten file has fusions of level {metadata['optimize']!r}, which is gone",
            "rewrite the original again",
        )
    bound = dict(dims or _dims(metadata))
    fixed = _dims(metadata, BOUND_DIMS)
    for name in fixed.keys() & bound.keys():
        if bound.pop(name) != fixed[name]:
            raise UsageError(
                f"--dim {name}: the chunks of the rewritten file are for {name}={fixed[name]}",
                "rewrite the original again for another size",
            )
    planned = session_kind(_session(metadata))
    after = open_step(prepare(second, rewritten, bound), planned, state=options.state)
    bound |= fixed
    before = like_state(opened(prepare(first, original, bound)), after)
    removed = removed_names(metadata)
    _check_same_interface(before, after, removed)
    findings = [
        *swapped(get_metadata(first), metadata),
        *removal_findings(before, removed, options.wrt),
    ]
    request = RunRequest(
        "tuned", _provider(options, metadata), bound, options.runs, options.seed, options.threads
    )
    for model in (first, second):
        require_device(model, request.provider)
    for opened_model in (before, after):
        require_runs(opened_model.graph, request.provider)
    plain = options.plain and not PROVIDERS[request.provider].plugin
    case = _Case(before, after, metadata, plain)
    with opened_bench(
        options, before.graph, rewritten, removed["input"], request, case.steps, progress
    ) as bench:
        bench.notes.extend(removed_notes(removed))
        return _validate(bench, case, [Finding("interface", text) for text in findings])


@dataclass(frozen=True, slots=True)
class _Case:
    """The two files. ``plain``: whether a third run is wanted."""

    before: OpenModel
    after: OpenModel
    metadata: Mapping[str, object]
    plain: bool

    @property
    def fused(self) -> bool:
        """Whether the original is to be fused alike: to be proved equivalent and, but for plain
        sessions, which fuse what they load, to be run."""
        return self.metadata.get("optimize", "none") != "none"

    @property
    def session(self) -> str:
        """The kind of session that the rewritten file is for."""
        return _session(self.metadata)

    @property
    def budget_bytes(self) -> int | None:
        """The budget that the rewritten file records."""
        budget = self.metadata.get("budget_bytes")
        return budget if isinstance(budget, int) else None

    @property
    def steps(self) -> int:
        """How many things are to be done, as far as is known beforehand."""
        return 3 + self.plain + self.fused


def _session(metadata: Mapping[str, object]) -> str:
    return "default" if metadata.get("session") == "default" else "tuned"


def _dims(metadata: Mapping[str, object], key: str = "dims") -> dict[str, int]:
    dims = metadata.get(key, {})
    if not isinstance(dims, dict):
        return {}
    return {str(k): v for k, v in dims.items() if isinstance(v, int) and v > 0}


def _provider(options: ValidateOptions, metadata: Mapping[str, object]) -> str:
    if options.provider != "auto":
        return session_kind("tuned", options.provider).provider
    recorded = metadata.get("provider", "cpu")
    return recorded if isinstance(recorded, str) and recorded in PROVIDERS else "cpu"


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


def _validate(bench: Bench, case: _Case, findings: list[Finding]) -> Validation:
    kind = session_kind(case.session, bench.request.provider)
    reference = _reference(case, bench)
    bench.begin("proving the files equivalent")
    equivalence = _equivalence(reference, case, kind)
    treated = reference if kind.name == "tuned" else case.before
    first = bench.run(treated, "original", kind.name)
    second = bench.run(case.after, "rewritten", kind.name)
    after, timeline = _rewritten(case.after, kind, bench)
    label = "original, extended fusions" if treated is not case.before else "original"
    before_run, before_doubt = _run(label, first.measured, treated, kind, bench)
    after_run, after_doubt = _run("rewritten", second.measured, after, kind, bench, timeline)
    other, other_comparison = _other(bench, case, kind, second) if case.plain else (None, None)
    rounded = equivalence.reason is None and bool(equivalence.rounded)
    judged = judge(bench, treated, kind.name, first, second, rounded=rounded)
    # Of plain sessions, which fuse each file by itself, the proof says nothing to the bit.
    unlike = judged.unlike if kind.name == "tuned" and equivalence.proved else ()
    added = scattered_sums(case.after.graph) if kind.provider == "webgpu" else frozenset()
    unlike = tuple(name for name in unlike if name not in added)
    contradicted = contradictions(equivalence, unlike, bench.request.threads)
    own = on_devices(case.after, kind)  # a session may have merged what was recomputed
    clones, ran = clone_names(own), {node.name for node in second.measured.nodes}
    kept = order_kept(after, timeline, second.measured)
    unrun, unrun_notes = unrun_draws(bench, first, second)
    wrong_after, excused_after = prediction_differences(after_run, after_doubt)
    wrong_before, excused_before = prediction_differences(before_run, before_doubt)
    shaped = unstated_shapes(treated, first, made_up=bench.made_up) if wrong_before else []
    later = later_runs(timeline).peak_with_workspace_bytes if kind.patterns else None
    found = {
        "construction": [*proof_findings(equivalence), *contradicted],
        "outputs": [*unrun, *judged.findings],
        "memory": [
            *budget_findings(after_run, case.budget_bytes, later),
            *rise_findings(before_run, after_run, case.budget_bytes),
            *shaped,
            *wrong_after,
            *wrong_before,
        ],
        "nodes": [
            *_order_findings(kept, misplaced(after, second.measured, kind.provider)),
            *clone_findings(own, simulate(own.graph, kind, own.devices), second.measured),
        ],
    }
    findings += [Finding(part, text) for part, texts in found.items() for text in texts]
    return Validation(
        provider=kind.provider,
        session=kind.name,
        original=before_run,
        rewritten=after_run,
        other=other,
        equivalence=equivalence,
        comparisons=judged.comparisons,
        other_comparison=other_comparison,
        vacuous_outputs=judged.vacuous,
        later_bits_equal=judged.later_bits_equal,
        budget_bytes=case.budget_bytes,
        clones=len(clones),
        surviving_clones=len(clones & ran),
        order_kept=kept,
        findings=tuple(findings),
        notes=(
            *bench.notes,
            *unrun_notes,
            *pattern_notes(second.measured, timeline, kind.name),
            *fallback_notes(after.devices),
            *uncounted_notes(kind.provider),
            *([SCATTERED] if added else []),
            *measured_notes(second.measured, timeline.resident_bytes),
            *version_notes(kind.provider),
            *recorded_version_notes(case.metadata),
            *_edge_notes(case.after, kind),
            *excused_after,
            *excused_before,
            *judged.notes,
        ),
        equality=judged.equality,
        state_in_place=len(bindings(case.after.graph)[0]),
        contradicted_outputs=unlike,
    )


def _edge_notes(after: OpenModel, kind: SessionKind) -> tuple[str, ...]:
    """What the runtime computes wrongly in the session that the file is for, in both files."""
    found = sharp_edges(after.prepared.proto, after.prepared.types)
    plain = kind.name == "default"
    wrong = [edge for edge in found if edge.edge is Edge.FUSED or (plain and edge.optimizer)]
    return edge_notes(wrong, kind.provider)


def _other(bench: Bench, case: _Case, kind: SessionKind, rewritten: Ran) -> tuple[Run, Comparison]:
    """The run that is no part of the claim: the user's file in a plain session or, of a model for
    plain sessions, the rewritten one in a tuned session; beside the rewritten one's outputs."""
    if kind.name == "default":
        model, label, session = case.after, "rewritten, tuned", "tuned"
    else:
        model, label, session = case.before, "original, plain default", "default"
    ran = bench.run(model, label, session, draws=False)
    run, doubts = _run(label, ran.measured, model, session_kind(session, kind.provider), bench)
    wrong, excused = prediction_differences(run, doubts)
    bench.notes.extend((*wrong, *excused))
    return run, ran.compared_with(rewritten)[0]


def _reference(case: _Case, bench: Bench) -> OpenModel:
    """The original as ``rewrite`` planned it: its opset raised if need was, with the fusions that
    the rewritten file records."""
    before, opset = case.before, default_opset(case.after.prepared.proto)
    if default_opset(before.prepared.proto) < opset:
        raised = raise_opset(before.prepared.proto, opset, "the rewritten file's nodes")
        copy = bench.folder / before.prepared.path.name
        weights = settle_links(raised, before.prepared.beside)
        write_model(raised, copy, force=True)
        again = opened(prepare(raised, copy, before.prepared.dims, weights))
        before = like_state(again, before)
    return _treat(before, bench) if case.fused else before


def _equivalence(reference: OpenModel, case: _Case, kind: SessionKind) -> Equivalence:
    """The proof against the reference; where that fails and a tuned session changes what it loads
    (Casts around float16), against what it holds, as ``rewrite`` then plans that."""
    found = equivalence_of(reference.prepared, case.after.prepared, kind.provider)
    if found.reason is None or kind.name != "tuned" or not changes_at_load(reference.graph, kind):
        return found
    try:
        held = as_loaded(reference, kind)
    except MemplanError:
        return found
    second = equivalence_of(held.model.prepared, case.after.prepared, kind.provider)
    return found if second.reason is not None else second


def _treat(before: OpenModel, bench: Bench) -> OpenModel:
    """The original with the same fusions as the rewritten model, in its original order."""
    from memplan.runtime.optimize import optimize_offline

    bench.begin("fusing the original (extended)")
    saved, target = bench.folder / "saved.onnx", bench.folder / "optimized.onnx"
    prepared, provider = before.prepared, bench.request.provider
    edges = sharp_edges(prepared.proto, prepared.types)
    bench.notes.extend(disabled_notes(edges))
    without = wrong_optimizers(edges)
    optimize_offline(prepared.path, saved, provider, prepared.weights, without)
    sorted_model = restore_order(read_model(saved, prepared.beside), prepared.proto)
    weights = settle_links(sorted_model, prepared.beside)
    write_model(sorted_model, target)
    return like_state(opened(prepare(sorted_model, target, prepared.dims, weights)), before)


def _run(
    label: str,
    m: Measurement,
    model: OpenModel,
    kind: SessionKind,
    bench: Bench,
    timeline: Timeline | None = None,
) -> tuple[Run, Doubt]:
    """The measured run beside its prediction (``timeline``, else simulated here), and what that
    had to assume."""
    if timeline is None:
        timeline = _predicted(model, kind, bench)
    later = None
    if timeline is not None:
        later = (later_runs(timeline) if kind.patterns else timeline).dynamic_peak_bytes
    if not PROVIDERS[kind.provider].counts and timeline is not None:
        told = timeline.dynamic_peak_bytes
        further = tuple(told for _ in m.further_dynamic_bytes)
        m = replace(
            m, dynamic_bytes=told, second_run_dynamic_bytes=told, further_dynamic_bytes=further
        )
    resident = timeline.resident_bytes if timeline is not None else resident_bytes(model.graph)
    run = Run(
        label=label,
        session=kind.name,
        predicted_peak_bytes=timeline.peak_bytes if timeline is not None else None,
        predicted_peak_with_workspace_bytes=(
            timeline.peak_with_workspace_bytes if timeline is not None else None
        ),
        predicted_later_dynamic_bytes=later,
        measured_peak_bytes=resident + m.dynamic_bytes,
        resident_bytes=resident,
        measured_dynamic_bytes=m.dynamic_bytes,
        second_run_dynamic_bytes=m.second_run_dynamic_bytes,
        further_dynamic_bytes=m.further_dynamic_bytes,
        arena_bytes=m.arena_bytes,
        rss_growth_bytes=m.rss_growth_bytes,
        seconds_median=m.seconds_median,
        providers=Counter(node.provider for node in m.nodes),
        counted=PROVIDERS[kind.provider].counts,
    )
    return run, Doubt() if timeline is None else doubt(model, timeline)


def _predicted(model: OpenModel, kind: SessionKind, bench: Bench) -> Timeline | None:
    """What the model should need; in a plain session as the runtime's optimizer leaves it."""
    if not changes_at_load(model.graph, kind):
        held = on_devices(model, kind)
        return simulate(held.graph, kind, held.devices)
    try:
        loaded = as_loaded(model, kind)
    except MemplanError as error:
        bench.notes.append(f"no prediction for {model.prepared.path.name}: {error.message}")
        return None
    return loaded.timeline()


def _rewritten(model: OpenModel, kind: SessionKind, bench: Bench) -> tuple[OpenModel, Timeline]:
    """The rewritten model as ``rewrite`` predicts it: in a plain session what that holds of it, in
    a tuned one its own nodes."""
    own = on_devices(model, kind)
    if kind.name == "default":
        try:
            loaded = as_loaded(model, kind)
        except MemplanError as error:
            bench.notes.append(f"predicted from the file's own nodes: {error.message}")
        else:
            return loaded.model, loaded.timeline()
    return own, simulate(own.graph, kind, own.devices)


def _order_findings(kept: bool, moved: list[str]) -> list[str]:
    found = [] if kept else ["the runtime ran the nodes in another order than planned"]
    if moved:
        found.append(
            f"{counted(len(moved), 'node')} ran on another provider than predicted ({moved[0]})"
        )
    return found
