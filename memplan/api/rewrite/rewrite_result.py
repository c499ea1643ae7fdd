"""What ``rewrite`` answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

from memplan.api.analysis import Analysis
from memplan.api.floor_sentence import FloorReport, floor_report
from memplan.api.rewrite.candidates import chunk_step
from memplan.api.rewrite.cheapest import with_chunks
from memplan.api.rewrite.loop_storage import LoopStep, PairChange
from memplan.api.rewrite.offload_rewrite import OffloadReport
from memplan.api.rewrite.recorded import Recorded
from memplan.api.rewrite.waterfall import WaterfallStep, waterfall
from memplan.api.state_modes import StateReport, state_report
from memplan.api.summary import Summary, attributes_json, fields_json
from memplan.api.versions import runtime_json
from memplan.equivalence.prove import Equivalence
from memplan.ir.graph import Graph
from memplan.options import RewriteOptions
from memplan.passes import manager as free
from memplan.passes.chunk.asked import NONE as NO_CHUNKS
from memplan.planning.costs import NodeCosts
from memplan.planning.plain.finish_fences import PlainModel
from memplan.planning.plain.same_kernels import unlike_nodes
from memplan.planning.plan import Plan
from memplan.planning.plan_file import PlanFile
from memplan.simulate.step_work import StepWork, step_work
from memplan.simulate.timeline import Timeline
from memplan.units import counted

SCHEMA = "memplan.rewrite/1"


@dataclass(frozen=True, slots=True)
class ClockSeconds:
    """What a rewrite took by the clock: ``total`` from opening the file to the new one, ``search``
    in all its searches, ``compiling`` the planner, which happens once per version."""

    search: float
    compiling: float
    total: float

    @property
    def line(self) -> str:
        """The same in a sentence."""
        parts = [f"compiling the planner, once per version, {self.compiling:.1f} s"]
        parts = parts if self.compiling else []
        parts += [f"search {self.search:.1f} s"] if self.search else []
        parts += [f"{'the rest ' if parts else ''}opening, fusions, passes, checks and proof"]
        return f"took {self.total:.1f} s by the clock: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True, repr=False)
class Rewrite(Summary):
    """The answer of ``rewrite``.

    ``original`` is the file as it was, ``optimized`` as the runtime's optimizer left it (the same
    object when nothing was), both in a session of the kind that is planned for; ``passes`` lead
    to what was planned; ``timeline`` is the rewritten model's. ``output`` is None after a dry run.
    ``plain`` tells what was added for plain sessions, None for tuned ones. ``equivalence``: what is
    proved of the new graph and the optimized one. ``weights``: what became of weights in other
    files; None: there are none, or nothing was written. ``offload``: what is copied to the host and
    back; None: nothing. ``chunk_cost``: what chunks take beside the plan, as a fraction of the
    step's seconds; ``chunk_bound``: no plan with any of the chunks that were tried, or without,
    costs less, chunks included; None: there are none, or it is not known. ``record`` is the plan as
    a file; ``replay`` what one that was given says of its own worth, None: none was. ``clock``:
    what it took.
    """

    path: Path
    output: Path | None
    options: RewriteOptions
    budget_bytes: int
    original: Analysis
    optimized: Analysis
    optimize_level: str
    plan: Plan
    timeline: Timeline
    model: onnx.ModelProto
    assumptions: tuple[str, ...]
    costs: NodeCosts
    equivalence: Equivalence
    record: PlanFile
    clock: ClockSeconds
    plain: PlainModel | None = None
    offload: OffloadReport | None = None
    passes: tuple[free.PassStep, ...] = ()
    weights: str | None = None
    chunk_cost: float = 0.0
    chunk_bound: float | None = None
    replay: Recorded | None = None

    @property
    def chunked(self) -> bool:
        """Whether anything runs in chunks."""
        return chunk_step(self.passes) is not None

    @property
    def extra_cost_fraction(self) -> float:
        """Extra time of chunks and plan together, as a fraction of the step's seconds."""
        return with_chunks(self.plan.extra_cost_fraction, self.chunk_cost)

    @property
    def unlike_nodes(self) -> int | None:
        """How many nodes a plain session may round otherwise than those that it makes of the
        original; None: the file is for a tuned session, or the runtime was not asked."""
        if self.plain is None or self.plain.held is None or not self.original.asked:
            return None
        return unlike_nodes(self.original.graph, self.plain.held)

    @property
    def planned(self) -> Graph:
        """The graph that was planned."""
        return self.passes[-1].model.graph if self.passes else self.optimized.graph

    @property
    def floor(self) -> FloorReport:
        """The floor of what was planned, what could lower it, and where the next one lies."""
        timeline = self.passes[-1].timeline if self.passes else self.optimized.timeline
        contract, tuned = self.original.contract, self.options.session == "tuned"
        pairs = contract.new_values if contract is not None and tuned else {}
        return floor_report(
            self.plan.floor,
            self.planned,
            timeline,
            pairs,
            chunked=self.options.chunk != NO_CHUNKS,
        )

    @property
    def measured_nodes(self) -> int:
        """How many nodes of the planned graph have measured seconds."""
        return self.costs.measured_nodes(self.planned)

    @property
    def work(self) -> tuple[StepWork, StepWork]:
        """What a step of the file asks of the device, and one of the rewritten model."""
        device = self.costs.device
        return step_work(self.original.timeline, device), step_work(self.timeline, device)

    @property
    def pairs(self) -> tuple[PairChange, ...]:
        """The loops that were changed: what they stored before, and what after."""
        return tuple(p for s in self.passes if isinstance(s, LoopStep) for p in s.pairs)

    @property
    def state(self) -> StateReport | None:
        """What of the state is in place; None: there is none."""
        return state_report(self.timeline.graph)

    @property
    def waterfall(self) -> tuple[WaterfallStep, ...]:
        """The way from the original to the result, one step after the other."""
        clones, offload = self.plan.clones, self.offload
        note = f"{counted(clones, 'node')} recomputed" if clones else "nothing is recomputed"
        note += f", {offload.note}" if offload else ""
        fused = self.optimized.timeline if self.optimize_level != "none" else None
        first, last = self.original.timeline, (self.timeline, note)
        return waterfall(first, fused, self.optimize_level, self.passes, last)

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        plan, floor, before = self.plan, self.floor, self.original.timeline
        return {
            "schema": SCHEMA,
            "strategy": plan.strategy,
            **attributes_json(self.options, "session", "provider"),
            "optimize": self.optimize_level,
            "budget_bytes": self.budget_bytes,
            "baseline_peak_bytes": before.peak_bytes,
            "baseline_peak_with_workspace_bytes": before.peak_with_workspace_bytes,
            "optimized_peak_bytes": self.optimized.timeline.peak_bytes,
            "predicted_peak_bytes": self.timeline.peak_bytes,
            "predicted_peak_with_workspace_bytes": self.timeline.peak_with_workspace_bytes,
            "floor_bytes": plan.resident_bytes + plan.floor.nbytes,
            "floor_with_workspace_bytes": floor.nbytes,
            "floor_reason": floor.reason,
            **floor.as_json(),
            **attributes_json(plan, "extra_cost_fraction", "bound_fraction", "bound_kind"),
            "passes": [step.as_json() for step in self.waterfall],
            "chunk": self.options.chunk,
            "chunk_cost_fraction": self.chunk_cost,
            "chunk_bound_fraction": self.chunk_bound,
            **attributes_json(self, "offload"),
            "forms": dict(plan.forms),
            **free.removed(self.passes),
            **attributes_json(self, "replay"),
            "recomputed_nodes": plan.clones,
            "scan_recompute": self.options.scan_recompute,
            "recurrent": [pair.as_json() for pair in self.pairs],
            **attributes_json(plan, "recomputed", "refusals"),
            "costs": {
                "source": self.costs.source,
                "measured_nodes": self.measured_nodes,
                "estimated_nodes": len(self.planned.nodes) - self.measured_nodes,
            },
            "work": dict(zip(("before", "after"), (w.as_json() for w in self.work), strict=True)),
            "planning_seconds": plan.planning_seconds,
            "clock": {f"{part}_seconds": took for part, took in fields_json(self.clock).items()},
            **attributes_json(self, "equivalence"),
            "plain": _plain_json(self),
            **attributes_json(self, "weights", "state", "output", "assumptions"),
            "runtime": runtime_json(self.options.provider),
        }


def _plain_json(result: Rewrite) -> dict[str, object] | None:
    plain = result.plain
    if plain is None:
        return None
    later = plain.later
    return {
        "fences": plain.fences,
        "veils": plain.input_fences,
        **attributes_json(plain, "pins", "added_nodes"),
        "tuned_peak_with_workspace_bytes": plain.tuned_peak_bytes,
        "later_runs_peak_bytes": later.peak_bytes,
        "later_runs_peak_with_workspace_bytes": later.peak_with_workspace_bytes,
        "unlike_nodes": result.unlike_nodes,
        "later_runs_within_budget": later.peak_with_workspace_bytes <= result.budget_bytes,
    }


def default_output(path: Path) -> Path:
    """``MODEL.memplan.onnx`` beside the model."""
    return path.with_name(f"{path.stem}.memplan.onnx")
