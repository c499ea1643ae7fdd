"""Whether two models gave the same, in every draw and run, and how much that says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memplan.api.validate.bench import Bench, Ran, digests_comparable
from memplan.api.validate.same_interface import some_names
from memplan.ir.graph import Graph
from memplan.runtime.archive import array_shapes
from memplan.runtime.compare_outputs import ROUNDING, Comparison
from memplan.simulate.opened import OpenModel
from memplan.units import counted

_ROUNDED = (
    f"judged up to rounding: outputs may differ by {ROUNDING:g} of their largest element, as sums "
    "are added in another order"
)
# Kernels whose CPU implementation adds in a different order from run to run.
_UNREPEATABLE = (("ScatterND", "reduction"),)


@dataclass(frozen=True, slots=True)
class Judgement:
    """``equality`` is ``bitwise``, ``tolerance`` or ``different``. ``later_bits_equal``: whether
    the second runs of both sessions gave the same bits too. ``unlike``: outputs with other bits in
    any run, which the original gives alike in two sessions. ``vacuous``: outputs that show nothing,
    and why."""

    equality: str
    comparisons: tuple[Comparison, ...]
    later_bits_equal: bool
    vacuous: Mapping[str, str]
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    unlike: tuple[str, ...] = ()


def judge(
    bench: Bench,
    original: OpenModel,
    session: str,
    first: Ran,
    second: Ran,
    *,
    rounded: bool = False,
) -> Judgement:
    """Compare what the original (``first``) and the rewritten model gave.

    Where bits differ, the original is run once more, in a session of its own: an output may differ
    by what it differs from itself there. ``rounded``: the models are proved equal but for rounding;
    then an output may differ by :data:`memplan.runtime.compare_outputs.ROUNDING` of its largest
    element.
    """
    comparisons = first.compared_with(second)
    names = digests_comparable(first.measured.output_names, comparisons)
    later = [name for name in first.later_differences(second) if name in names]
    bitwise = all(c.bitwise for c in comparisons)
    vacuous = vacuous_outputs(comparisons)
    if bitwise and not later:
        return Judgement("bitwise", comparisons, True, vacuous, (), ())
    again = bench.run(original, "original again", session, timed=False)
    itself = first.compared_with(again)
    noisy = {d.name for c in itself for d in c.differences} | {*first.later_differences(again)}
    other = {d.name for c in comparisons for d in c.differences} | {*later}
    wrong, excused = _wrong(comparisons, itself, rounded), [n for n in later if n in noisy]
    unexcused = [name for name in later if name not in noisy]
    findings = [f"the outputs differ: {text}" for text in wrong[:1]]
    if unexcused:
        findings.append(
            f"outputs differ in the second run of a session, though not in the first: "
            f"{some_names(unexcused)}"
        )
    different = bool(wrong or unexcused)
    return Judgement(
        "bitwise" if bitwise and not different else "different" if different else "tolerance",
        comparisons,
        not later and bitwise,
        vacuous,
        tuple(findings),
        (*([_ROUNDED] if rounded else []), *_notes(original.graph, itself, noisy, excused)),
        tuple(name for name in first.measured.output_names if name in other - noisy),
    )


def unstated_shapes(model: OpenModel, ran: Ran, *, made_up: bool) -> list[str]:
    """The first output, in words, whose shape in the first run is not what the file leads to.

    Args:
        model: what ran.
        ran: what came of it.
        made_up: the inputs were; then the value of one of them may decide the shape.
    """
    shapes = array_shapes(ran.outputs[0])
    for index, name in enumerate(ran.measured.output_names):
        tensor = model.graph.tensor_named(name)
        shape = shapes.get(f"o{index}")
        if tensor is None or not tensor.counted or shape in (None, tensor.shape):
            continue
        why = (
            "the value of an input decides it, which was made up: give --inputs"
            if made_up
            else "what the file says does not hold for these inputs"
        )
        return [f"{name} is {list(shape)} in the run and {list(tensor.shape)} in the file: {why}"]
    return []


def _wrong(
    comparisons: Sequence[Comparison], itself: Sequence[Comparison], rounded: bool
) -> list[str]:
    """Outputs that may not pass, the worst first, in words."""
    found = []
    for k, compared in enumerate(comparisons):
        where = f" in draw {k + 1}" if len(comparisons) > 1 else ""
        own = itself[k] if k < len(itself) else None
        for d in compared.differences:
            if rounded and d.is_rounding:
                continue
            if not d.allowed(own.difference_of(d.name) if own is not None else None):
                text = d.mismatch or f"by {d.max_rel_diff:.3g} relative"
                found.append((d.excess, f"{d.name} {text}{where}"))
    found.sort(key=lambda pair: -pair[0])
    count = len({text.split(" ")[0] for _, text in found})
    texts = [text for _, text in found]
    if count > 1:
        texts[0] += f", and {counted(count - 1, 'more output')}"
    return texts


def _notes(
    graph: Graph, itself: Sequence[Comparison], noisy: set[str], later: Sequence[str]
) -> list[str]:
    if not noisy:
        return []
    unrepeatable = [
        node.name
        for node in graph.nodes
        if any(node.op == op and key in node.attributes for op, key in _UNREPEATABLE)
    ]
    relative = max((c.max_rel_diff for c in itself), default=0.0)
    notes = [
        f"the original differs from itself from run to run in "
        f"{counted(len(noisy), 'output')} (relative "
        f"{relative:.3g}; {some_names(sorted(noisy))})"
        + (f"; it adds in no fixed order in: {', '.join(unrepeatable)}" if unrepeatable else "")
    ]
    if later:
        notes.append(f"second runs are not compared bit by bit in these: {some_names(later)}")
    return notes


def vacuous_outputs(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Outputs that are one and the same value in all elements and all draws, and which.

    A single element that is neither NaN nor 0 must show that in two draws.
    """
    found: dict[str, str] = {}
    for name, value in comparisons[0].uniform.items():
        if any(c.uniform.get(name) != value for c in comparisons):
            continue
        if value == "nan":
            found[name] = "all NaN"
        elif value in ("0", "0.0"):
            found[name] = "all 0"
        elif len(comparisons) > 1:
            found[name] = f"always {value}"
    return found
