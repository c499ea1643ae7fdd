"""What a plan decides of each call of PyTorch, and what of it no policy can say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

from memplan.errors import UsageError
from memplan.planning.plan_file import KEPT, PlanFile, TensorDecision
from memplan.pytorch.call_families import family_of
from memplan.units import counted, format_bytes, listed, printable

_WIDTH = 96
AGAIN = frozenset({"recomputed", "rebuilt"})


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of PyTorch, and what becomes of its result.

    ``modules``: the modules that it is made in, from the outside in, each by its path in the one
    around it; ``@1`` behind it is a module's second call. ``number``: how many calls of the family
    that module made before. ``nbytes``: of its result, ``beside``: of what else it gives and is to
    be made again, such as the places of the largest elements.
    """

    modules: tuple[str, ...]
    operator: str
    number: int
    nbytes: int
    kept: bool
    beside: int = 0

    @property
    def family(self) -> str:
        """What the operator is counted with."""
        return family_of(self.operator)

    @property
    def path(self) -> str:
        """The module's path, without the numbers of calls."""
        return ".".join(without_number(name) for name in self.modules)


@dataclass(frozen=True, slots=True)
class Policy:
    """The text of a file, and what of the plan is not in it, a sentence each."""

    text: str
    notes: tuple[str, ...]


def without_number(module: str) -> str:
    """A module's path without the number of its call."""
    path, again, number = module.rpartition("@")
    return path if again and number.isdecimal() else module


def planned_calls(plan: PlanFile) -> tuple[PlannedCall, ...]:
    """The calls that a plan decides on, in their order.

    A call whose tensors are in part kept is kept where more bytes of it are kept than made again.

    Raises:
        UsageError: the plan names no calls.
    """
    found: dict[str, PlannedCall] = {}
    balance: dict[str, int] = {}
    makers: set[tuple[str, str]] = set()
    for tensor in plan.tensors:
        call = _read(tensor)
        if call is None or tensor.call is None:
            continue
        known, again = found.get(tensor.call, call), tensor.decision in AGAIN
        if (tensor.call, tensor.node) in makers:  # its maker's second result
            more = tensor.nbytes if again else 0
            found[tensor.call] = replace(known, beside=known.beside + more)
            continue
        makers.add((tensor.call, tensor.node))
        found[tensor.call] = replace(known, nbytes=max(known.nbytes, tensor.nbytes))
        balance[tensor.call] = balance.get(tensor.call, 0) + tensor.nbytes * (-1 if again else 1)
    if not found:
        raise UsageError(
            "the plan does not say which calls of PyTorch made its tensors",
            "plan a step that this version of 'memplan capture' wrote",
        )
    return tuple(replace(call, kept=balance[name] > 0) for name, call in found.items())


def _read(tensor: TensorDecision) -> PlannedCall | None:
    """A call by what the file says of it; None for what is no such text."""
    modules, _, rest = (tensor.call or "").rpartition(" ")
    modules, gap, operator = modules.rpartition(" ")
    if not gap or not rest.isdecimal() or not operator.isidentifier() or len(rest) > 9:
        return None
    path = tuple(name for name in modules.split("/") if name)
    return PlannedCall(path, operator, int(rest), tensor.nbytes, kept=True)


def common_notes(plan: PlanFile) -> Iterator[str]:
    """What no policy can say, of any plan."""
    yield "the order of the operators is the framework's own"
    yield (
        f"the predicted peak, {format_bytes(plan.predicted_peak_bytes)}, is that of ONNX Runtime; "
        "measure the framework's own"
    )
    if plan.chunks:
        yield f"chunks: {counted(len(plan.chunks), 'group')} of operators run whole"
    if plan.loops:
        yield f"what {counted(len(plan.loops), 'loop')} store for the backward pass"


def not_told(tensors: Sequence[TensorDecision]) -> Iterator[str]:
    """What is lost of single tensors: those of no call that can be kept."""
    lost = [t for t in tensors if t.decision in AGAIN and t.call is None]
    if lost:
        yield (
            f"{_sum(lost)} to be made again: inside of a call, or the result of one that is random "
            f"or written over ({_first(lost)})"
        )


def other_forms(tensors: Sequence[TensorDecision]) -> Iterator[str]:
    """Tensors in other forms."""
    other = [t for t in tensors if t.decision not in (*AGAIN, KEPT)]
    for form in sorted({tensor.decision for tensor in other}):
        those = [tensor for tensor in other if tensor.decision == form]
        yield f"{_sum(those)}, {printable(form)} in the plan: not in this form ({_first(those)})"


def _sum(tensors: Sequence[TensorDecision]) -> str:
    total = sum(tensor.nbytes for tensor in tensors)
    return f"{counted(len(tensors), 'tensor')} of {format_bytes(total)}"


def _first(tensors: Sequence[TensorDecision]) -> str:
    return first_names([tensor.tensor for tensor in tensors], 2)


def first_names(names: Sequence[str], most: int = 4) -> str:
    """Names out of a plan, which is anybody's file, and how many more there are."""
    return listed([printable(name) for name in names], most)


def header(plan: PlanFile, what: str, notes: Sequence[str]) -> list[str]:
    """The lines at the head of a file: what it is of, and what is not in it."""
    lines = [
        what,
        "",
        f"Budget {format_bytes(plan.budget_bytes)}, session {printable(plan.session)} on "
        f"{printable(plan.provider)}, graph {printable(plan.model.fingerprint)[:16]}.",
        "",
        "Not in here:",
        *(f"- {note}" for note in notes),
    ]
    return [part for line in lines for part in wrap(line, _WIDTH, subsequent_indent="  ") or [""]]
