"""A plan as selective checkpointing in eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from memplan.errors import UsageError
from memplan.planning.plan_file import PlanFile
from memplan.pytorch.call_families import FAMILY_OF
from memplan.report.policies.checkpoint_regions import Region, regions
from memplan.report.policies.plan_calls import (
    PlannedCall,
    Policy,
    common_notes,
    header,
    not_told,
    other_forms,
    planned_calls,
)
from memplan.units import counted, format_bytes

Letters = dict[str, dict[str, str]]
_EMPTY_PLAN = "PLAN: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}"
_EMPTY_FAMILIES = "FAMILIES: dict[str, str] = {}"
_LONGEST = 1000
"""Calls of one family in one module; what a file says beyond that is not believed."""


def torch_policy(plan: PlanFile) -> Policy:
    """A Python module with a function that checkpoints the modules of a model.

    Raises:
        UsageError: the plan names no calls of PyTorch, or recomputes none.
    """
    calls = planned_calls(plan)
    found = regions(calls)
    if not found:
        raise UsageError(
            "the plan recomputes no result of a module's call, so there is nothing to checkpoint",
            "plan for a lower budget",
        )
    notes = (*common_notes(plan), *other_forms(plan.tensors), *_told(plan, calls, found))
    use = "Selective checkpointing by a plan of memplan: checkpoint_as_planned(model), once."
    text = "\n".join(header(plan, use, notes))
    letters = {region.path: _letters(region) for region in found}
    return Policy(f'"""{_quoted(text)}\n"""\n\n{_code(letters)}', notes)


def _told(plan: PlanFile, calls: Sequence[PlannedCall], found: Sequence[Region]) -> Iterator[str]:
    yield from not_told(plan.tensors)
    inside = {id(call) for region in found for _, call in region.calls}
    left = [call for call in calls if not call.kept and id(call) not in inside]
    if left:
        total = f"{counted(len(left), 'call')} of {format_bytes(sum(call.nbytes for call in left))}"
        yield f"{total} to be made again: outside of every checkpointed module"
    yield (
        "a checkpointed module runs again whatever it does not save, also what the plan neither "
        "keeps nor makes again"
    )


def _letters(region: Region) -> Letters:
    """A letter for every call, by module and family."""
    found: dict[str, dict[str, dict[int, bool]]] = {}
    for name, call in region.calls:
        saved = found.setdefault(name, {}).setdefault(call.family, {})
        if call.number < _LONGEST:
            saved[call.number] = saved.get(call.number, False) or call.kept
    return {
        name: {
            family: "".join("s" if saved.get(k) else "r" for k in range(max(saved) + 1))
            for family, saved in sorted(families.items())
            if saved
        }
        for name, families in found.items()
    }


def _code(letters: dict[str, Letters]) -> str:
    source = files("memplan.pytorch").joinpath("checkpointed.py").read_text(encoding="utf-8")
    body = source.partition('"""\n\n')[2]
    groups: list[tuple[list[str], Letters]] = []
    for path, inside in letters.items():
        alike = next((paths for paths, known in groups if known == inside), None)
        if alike is None:
            groups.append(([path], inside))
        else:
            alike.append(path)
    used = {family for inside in letters.values() for each in inside.values() for family in each}
    families = {name: family for name, family in FAMILY_OF.items() if family in used}
    plan_line, families_line = _EMPTY_PLAN.removesuffix("{}"), _EMPTY_FAMILIES.removesuffix("{}")
    return body.replace(_EMPTY_PLAN, plan_line + _table(groups), 1).replace(
        _EMPTY_FAMILIES, families_line + _rows((f"{n!r}: {f!r}" for n, f in families.items()), 0), 1
    )


def _table(groups: Sequence[tuple[list[str], Letters]]) -> str:
    entries = []
    for paths, inside in groups:
        modules = (
            f"{name!r}: {{{', '.join(f'{f!r}: {letters!r}' for f, letters in families.items())}}}"
            for name, families in inside.items()
        )
        key = ", ".join(map(repr, paths)) + ("," if len(paths) == 1 else "")
        entries.append(f"({key}): {_rows(modules, 1)}")
    return _rows(entries, 0)


def _rows(rows: Iterator[str] | list[str], depth: int) -> str:
    """A dictionary, with a line for every entry."""
    inner, outer = "    " * (depth + 1), "    " * depth
    lines = "".join(f"{inner}{row},\n" for row in rows)
    return f"{{\n{lines}{outer}}}" if lines else "{}"


def _quoted(text: str) -> str:
    """Text that may stand between three quotation marks."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
