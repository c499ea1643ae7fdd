"""``memplan rewrite`` as text: before and after, what it costs, and how to load the file."""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from memplan.ir.roles import Role
from memplan.ops.memory import in_kinds
from memplan.planning.certificate import certificate, no_bound
from memplan.planning.forms.on_host import ON_HOST
from memplan.report.terminal.blocks import Blocks, backward_at, curve
from memplan.report.terminal.loops_text import changed_table
from memplan.report.terminal.passes import removed_lines
from memplan.report.terminal.state_text import doubt_lines, state_lines
from memplan.report.terminal.tables import Table, group, line, notes, section
from memplan.simulate.step_work import compare_work
from memplan.units import counted, echo_size, format_bytes, format_delta, listed

if TYPE_CHECKING:
    from memplan.api.rewrite.rewriting import Rewrite
    from memplan.equivalence.prove import Equivalence
    from memplan.planning.plain.finish_fences import PlainModel
    from memplan.planning.plan import Plan

_OPERATORS_SHOWN = 12


def render(result: Rewrite, *, details: bool = False) -> Group:
    """Before and after, extra cost, what is recomputed, and how to load the file."""
    parts: list[RenderableType] = [
        line(_headline(result), "bold"),
        line(f"budget {echo_size(result.options.budget, result.budget_bytes)}"),
        *(line(text) for text in doubt_lines(result.original)),
        _curves(result),
        *section(_steps_table(result)),
        *section(_recomputed_table(result) if result.plan.clones else None),
        *section(changed_table(result)),
        *section(line(_planning_line(result))),
        line(result.clock.line),
        line(result.floor.line),
        line(equivalence_line(result.equivalence)),
        line(_bits_line(result)),
    ]
    if result.options.provider == "cuda":
        parts.append(line(compare_work(*result.work)))
    if result.offload is not None:
        parts += [line(text) for text in result.offload.lines]
    if result.plan.refusals:
        parts.append(line(_refusal_line(result)))
    parts += [line(text) for text in state_lines(result.timeline.graph)]
    if result.plain is not None:
        parts.append(line(_added_line(result.plain)))
    parts += [line(text) for text in removed_lines(result, details)]
    if result.output is not None:
        parts += [line(f"wrote {result.output}"), line("")]
        parts += [line(text) for text in _loading_lines(result)]
    else:
        parts.append(line("dry run: nothing was written"))
    above = doubt_lines(result.original)
    told = [note for note in result.assumptions if note not in above]
    return group([*parts, *notes(told, details)])


def _headline(result: Rewrite) -> str:
    """The answer; first of all what it costs, where the peak that runs show is higher than before:
    a budget counts workspace, which is predicted only."""
    old, new = result.original.timeline, result.timeline
    rise = new.peak_bytes - old.peak_bytes
    if rise <= 0:
        return _answer(result)
    saved = rise + old.peak_with_workspace_bytes - new.peak_with_workspace_bytes
    traded = f" for {format_bytes(saved)} less of workspace, predicted only" if saved > 0 else ""
    return f"the peak that runs show RISES by {format_bytes(rise)}{traded}; {_answer(result)}"


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


def _curves(result: Rewrite) -> Blocks:
    """Memory over the step, before and after."""
    old, new, phases = result.original.timeline, result.timeline, result.original.phases
    return Blocks(
        curve("before", old, backward_at(old, phases)),
        curve("after", new, backward_at(new, phases, old)),
    )


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
    numbers = ("nodes", "peak", "with workspace", "change")
    table = Table(
        "Peak, step by step",
        ("", "text"),
        *((name, "number") for name in numbers),
        ("", "text"),
    )
    plain, steps = result.plain, result.waterfall
    for step in steps:
        name = "original, as a plain session loads it" if plain and step is steps[0] else step.name
        table.row(
            name,
            str(len(step.timeline.graph.nodes)),
            format_bytes(step.timeline.peak_bytes),
            format_bytes(step.timeline.peak_with_workspace_bytes),
            format_delta(-step.saved_bytes) if step is not steps[0] else "",
            step.note,
        )
    if plain:
        later, first_run = plain.later, result.timeline.peak_with_workspace_bytes
        table.row(
            "  from the second run on",
            "",
            format_bytes(later.peak_bytes),
            format_bytes(later.peak_with_workspace_bytes),
            format_delta(later.peak_with_workspace_bytes - first_run),
        )
    return table


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
    table = Table(
        "Recomputed", ("operator", "name"), ("nodes", "number"), ("size of outputs", "number")
    )
    ranked = sorted(costs.items(), key=lambda item: -item[1][1])
    for op, (count, nbytes) in ranked[:_OPERATORS_SHOWN]:
        table.row(op, str(count), format_bytes(nbytes))
    rest = [row for _, row in ranked[_OPERATORS_SHOWN:]]
    if rest:
        count, nbytes = sum(row[0] for row in rest), sum(row[1] for row in rest)
        table.row(f"{len(rest)} more", str(count), format_bytes(nbytes))
    return table


def _refusal_line(result: Rewrite) -> str:
    return "never recomputed: " + in_kinds(result.plan.refusals.values())


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
