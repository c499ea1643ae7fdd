"""What ``rewrite`` says: before and after, what it costs, and how to load the file."""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword
from typing import TYPE_CHECKING

from memplan.ir.roles import Role
from memplan.ops.memory import in_kinds
from memplan.passes.manager import removed
from memplan.planning.certificate import certificate, no_bound
from memplan.planning.forms.on_host import ON_HOST
from memplan.providers import on_host
from memplan.report.parts import (
    Column,
    Line,
    Notes,
    Part,
    Report,
    Row,
    Table,
    Timelines,
    curve,
)
from memplan.report.tell.state import doubt_lines, state_lines
from memplan.simulate.step_work import compare_work
from memplan.units import counted, echo_size, format_bytes, listed

if TYPE_CHECKING:
    from memplan.api.rewrite.rewriting import Rewrite
    from memplan.equivalence.prove import Equivalence
    from memplan.planning.plain.finish_fences import PlainModel
    from memplan.planning.plan import Plan

_OPERATORS_SHOWN, _TENSORS_SHOWN = 12, 8


def tell_rewrite(result: Rewrite, details: bool = False) -> Report:
    """Before and after, extra cost, what is recomputed, and how to load the file."""
    above = doubt_lines(result.original)
    parts: list[Part] = [
        Line(_headline(result)),
        f"budget {echo_size(result.options.budget, result.budget_bytes)}",
        *above,
        _timelines(result),
        _steps_table(result),
        _recomputed_table(result),
        _loops_table(result),
        "",
        _planning_line(result),
        result.clock.line,
        result.floor.line,
        equivalence_line(result.equivalence),
        _bits_line(result),
    ]
    if not on_host(result.options.provider):
        parts.append(compare_work(*result.work))
    if result.offload is not None:
        parts += result.offload.lines
    if result.plan.refusals:
        parts.append(f"never recomputed: {in_kinds(result.plan.refusals.values())}")
    parts += state_lines(result.timeline.graph)
    if result.plain is not None:
        parts.append(_added_line(result.plain))
    parts += _removed_lines(result, details)
    if result.output is not None:
        parts += [f"wrote {result.output}", "", *_loading_lines(result)]
    else:
        parts.append("dry run: nothing was written")
    parts.append(Notes([note for note in result.assumptions if note not in above]))
    return Report(parts)


def _headline(result: Rewrite) -> str:
    """The answer; first of all where only the first of many runs keeps the budget, and what it
    costs where the peak that runs show is higher than before: a budget counts workspace, which is
    predicted only."""
    old, new, told = result.original.timeline, result.timeline, _answer(result)
    rise = new.peak_bytes - old.peak_bytes
    if rise > 0:
        saved = rise + old.peak_with_workspace_bytes - new.peak_with_workspace_bytes
        traded = (
            f" for {format_bytes(saved)} less of workspace, predicted only" if saved > 0 else ""
        )
        told = f"the peak that runs show RISES by {format_bytes(rise)}{traded}; {told}"
    if result.plain is not None:
        later = result.plain.later.peak_with_workspace_bytes
        if later > result.budget_bytes:
            over = f"later runs take {format_bytes(later)}, OVER the budget"
            told = f"{over}; the first run: {told}"
    return told


def _answer(result: Rewrite) -> str:
    plan, loops = result.plan, sum(bool(pair.recomputed) for pair in result.pairs)
    peak = format_bytes(result.timeline.peak_with_workspace_bytes)
    if plan.clones or loops or result.chunked or result.offload:
        what = ["in chunks"] if result.chunked else []
        what += [f"{counted(plan.clones, 'node')} recomputed"] if plan.clones else []
        if result.offload:
            what.append(f"{counted(len(result.offload.tensors), 'tensor')} offloaded")
        forms = {kind: n for kind, n in plan.forms.items() if kind != ON_HOST}
        what += [f"{counted(n, 'tensor')} {kind}" for kind, n in forms.items()]
        if loops:
            what.append(f"{counted(loops, 'loop')} {'stores' if loops == 1 else 'store'} less")
        source = "from measured seconds" if result.measured_nodes else "estimated"
        return (
            f"fits: peak {peak} within the budget, {', '.join(what)}, "
            f"{100 * result.extra_cost_fraction:.2f}% more time ({source})"
        )
    if result.original.timeline.peak_with_workspace_bytes <= result.budget_bytes:
        return f"already within the budget: peak {peak}, nothing recomputed"
    how = "free savings" if result.passes else "node order"
    return f"fits by {how} alone: peak {peak}, nothing recomputed"


def _timelines(result: Rewrite) -> Timelines:
    """Memory over the step, before and after."""
    old, new, phases = result.original.timeline, result.timeline, result.original.phases
    return Timelines([curve("before", old, phases), curve("after", new, phases, old)], {})


def _planning_line(result: Rewrite) -> str:
    plan = result.plan
    these = ", for these chunks" if result.chunked and plan.clones else ""
    if result.replay is not None:
        return f"plan applied in full; {result.replay.line}{these}"
    how = f"strategy {plan.strategy}, {result.clock.search:.2f} s"
    return f"{how}; {_how_good(plan)}{these}"


def _how_good(plan: Plan) -> str:
    """What the bound says of the plan."""
    if not plan.clones and not plan.offloaded and no_bound(plan.bound_kind):
        return "nothing recomputed"
    return certificate(plan.extra_cost_fraction, plan.bound_fraction, plan.bound_kind)


def _bits_line(result: Rewrite) -> str:
    """Whose bits the new file computes: fused kernels round differently from the nodes apart."""
    level = f"at the same optimization level ({result.optimize_level})"
    if result.equivalence.redrawn:
        return "outputs differ from the original's, as random numbers are drawn in another order"
    if result.equivalence.rounded:
        where = "" if result.optimize_level == "none" else f" {level}"
        return f"outputs match the original{where} up to rounding"
    if result.plain is not None:
        return _plain_bits_line(result.unlike_nodes)
    if result.optimize_level == "none":
        return "outputs are bit-identical to the original in a tuned session, unoptimized like it"
    return (
        f"outputs are bit-identical to the original {level}; --optimize none matches the "
        "unoptimized file"
    )


def _plain_bits_line(unlike: int | None) -> str:
    if unlike is None:
        return (
            "outputs match the original in a plain session up to rounding: whether it fuses both "
            "files alike was not asked"
        )
    if unlike:
        return (
            "outputs match the original in a plain session up to rounding: it fuses or lays out "
            f"{counted(unlike, 'node')} otherwise in the new file; --session tuned keeps every bit"
        )
    return "outputs are bit-identical to the original in a plain session, which fuses both alike"


def equivalence_line(found: Equivalence) -> str:
    """What is proved of the new graph: that it computes what the graph before any plan did."""
    counts = [f"{counted(found.kept, 'node')} unchanged"]
    counts += [f"{found.recomputed} recomputed"] if found.recomputed else []
    counts += [f"{found.explained} explained by a rule"] if found.explained else []
    counts += [counted(found.pins, "pin")] if found.pins else []
    counts += ["random numbers drawn in another order"] if found.redrawn else []
    if found.assumed:
        loops = counted(len(found.assumed), "loop")
        return (
            f"equivalent by construction ({', '.join(counts)}) apart from {loops} with a new body "
            f"({listed(found.assumed, 1)}), whose outputs validate compares"
        )
    if found.rounded:
        return (
            f"the same by construction up to rounding ({', '.join(counts)}): "
            f"{counted(len(found.rounded), 'tensor')} ({'; '.join(found.rounding)})"
        )
    return f"equivalent by construction: {', '.join(counts)}"


def _steps_table(result: Rewrite) -> Table:
    """The way from the original to the result, one row per step."""
    plain, steps = result.plain, result.waterfall
    rows: list[Row] = [
        (
            "original, as a plain session loads it" if plain and step is steps[0] else step.name,
            len(step.timeline.graph.nodes),
            step.timeline.peak_bytes,
            step.timeline.peak_with_workspace_bytes,
            None if step is steps[0] else -step.saved_bytes,
            step.note,
        )
        for step in steps
    ]
    if plain:
        whole = plain.later.peak_with_workspace_bytes
        change = whole - result.timeline.peak_with_workspace_bytes
        again = "  from the second run on"
        rows.append((again, None, plain.later.peak_bytes, whole, change, None))
    columns = (
        Column(""),
        Column("nodes", "number"),
        Column("peak", "bytes"),
        Column("with workspace", "bytes"),
        Column("change", "delta"),
        Column(""),
    )
    return Table("Peak, step by step", columns, rows)


def _recomputed_table(result: Rewrite) -> Table:
    """Recomputed nodes grouped by operator."""
    graph = result.plan.extended.graph
    costs: dict[str, list[int]] = {}
    for node in graph.nodes:
        runs = result.plan.recomputed.get(node.name, 0)
        if runs:
            row = costs.setdefault(node.op, [0, 0])
            row[0] += runs
            row[1] += sum(graph.tensors[t].nbytes for t in node.writes)
    # Not what is saved: views take nothing, and not all outputs would be alive at the peak.
    columns = (
        Column("operator", "name"),
        Column("nodes", "number", rest=sum),
        Column("size of outputs", "bytes"),
    )
    rows = [(op, *row) for op, row in sorted(costs.items(), key=lambda item: -item[1][1])]
    return Table("Recomputed", columns, rows, most=_OPERATORS_SHOWN)


def _loops_table(result: Rewrite) -> Table:
    """What pairs of loops stored, what they store now and recompute."""
    rows = [
        (
            pair.backward,
            pair.steps,
            pair.before_bytes,
            pair.after_bytes,
            listed(pair.recomputed, _TENSORS_SHOWN),
        )
        for pair in result.pairs
        if pair.recomputed
    ]
    columns = (
        Column("backward loop", "name"),
        Column("steps", "number"),
        Column("stored a step", "bytes"),
        Column("now", "bytes"),
        Column("recomputed at every step"),
    )
    return Table("Loops that store less", columns, rows)


def _removed_lines(result: Rewrite, details: bool) -> list[str]:
    """What ``--wrt`` took out of the graph's interface."""
    lines = []
    for kind, names in removed(result.passes).items():
        if names:
            what = counted(len(names), kind.removeprefix("removed_").removesuffix("s"))
            shown = listed(names, len(names) if details else _TENSORS_SHOWN)
            lines.append(f"removed by --wrt, {what}: {shown}")
    return lines


def _added_line(plain: PlainModel) -> str:
    counts = [(plain.fences, "fence"), (plain.input_fences, "input fence"), (plain.pins, "pin")]
    named = ", ".join(counted(number, name) for number, name in counts)
    return (
        f"added for plain sessions: {named} ({counted(plain.added_nodes, 'small node')}, no "
        f"copies); a tuned session peaks at {format_bytes(plain.tuned_peak_bytes)}, a plain one "
        f"at {format_bytes(plain.timeline.peak_with_workspace_bytes)}"
    )


def _loading_lines(result: Rewrite) -> list[str]:
    if result.plain is not None:
        return [
            "load it with default options, in any language:",
            f'    session = onnxruntime.InferenceSession("{result.output}")',
        ]
    if result.timeline.graph.state is not None:
        contract = result.original.contract
        batch = contract.named(Role.BATCH) if contract is not None else ()
        return [
            "train with it; the budget holds when weights are updated in place:",
            f'    trainer = memplan.Trainer("{result.output}")',
            f"    loss = trainer.step({_as_arguments(batch)})",
            f"or  memplan run {result.output} --data FILE.npz --steps N",
        ]
    return [
        "load it in a tuned session, the only kind in which the budget holds:",
        f'    session = memplan.load("{result.output}")',
        "or  session = onnxruntime.InferenceSession(path, memplan.session_options(path))",
    ]


def _as_arguments(names: Sequence[str]) -> str:
    """Names as Python takes them in a call: keywords, or a mapping where one is not an
    identifier."""
    if all(name.isidentifier() and not iskeyword(name) for name in names):
        return ", ".join(f"{name}=..." for name in names)
    return "{" + ", ".join(f"{name!r}: ..." for name in names) + "}"
