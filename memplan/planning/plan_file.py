"""A plan as a value and as a file: made to be committed, read in a diff, and replayed.

Everything that a search found is in it, and nothing that differs from run to run: no clock, no
path. Every element of a list has a line of its own, so that a diff shows what changed. Names come
from a model that anybody may have made, and the file may have been edited: it is checked entry by
entry, decisions against the sequence, and on the graph that it was made for against what a replay
does (:mod:`memplan.api.rewrite.replay_check`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memplan.errors import PlanError
from memplan.planning.certificate import BOUND_KINDS
from memplan.planning.plan_decisions import DECISIONS, FORMS, KEPT, require_decided_as_run
from memplan.planning.plan_entries import Entry
from memplan.proto.paths import MOST_TEXT, file_problem, read_bytes
from memplan.proto.write import write_atomically

SCHEMA = "memplan.plan/1"
_KIND, _VERSION = SCHEMA.split("/")
_SLACK = 1e-6
"""Of a bound beside the extra time that it is a bound on: rounding."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """What was planned: the graph of the file, and how many nodes and tensors it has.

    ``runtime``: the ONNX Runtime that optimized it, if it did. ``planned``: the fingerprint of the
    graph behind fusions and passes, whose nodes the sequence names.
    """

    fingerprint: str
    nodes: int
    tensors: int
    runtime: str | None = None
    planned: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Further options that a replay needs, as in :class:`memplan.RewriteOptions`.

    ``forms``: kinds of forms in which tensors may be kept. ``tags``: metadata by which the strategy
    marks what is recomputed.
    """

    loss: str | None = None
    state: tuple[str, ...] = ()
    wrt: tuple[str, ...] = ()
    device: str | None = None
    forms: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorDecision:
    """What becomes of a tensor that crosses from forward into backward, or is made more than once.

    ``decision``: ``kept``, ``recomputed``, ``rebuilt`` (by a rule of its operator), or the form in
    which it is kept: ``packed``, ``offloaded``. ``times``: how often it is made
    again, in ``seconds`` together. ``chunks``: into how many it goes; None: none. ``call``: the
    call of PyTorch that made it, if the file was captured (``memplan.call``).
    """

    tensor: str
    node: str
    operator: str
    module: str | None
    nbytes: int
    decision: str = KEPT
    times: int = 0
    seconds: float = 0.0
    chunks: int | None = None
    call: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkDecision:
    """Nodes that run in ``count`` chunks: regions that grow along ``axis`` from tensors ``seeds``,
    or (``kind`` is ``layers``) the layers from the node ``first`` to the node ``last``."""

    kind: str
    seeds: tuple[str, ...]
    axis: int
    count: int
    first: str | None = None
    last: str | None = None


@dataclass(frozen=True, slots=True)
class LoopDecision:
    """A pair of loops, and what the backward one recomputes at every step: the first outputs of
    nodes of the forward body."""

    forward: str
    backward: str
    recomputed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PassDecision:
    """A pass that ran, and whether it changed anything."""

    name: str
    changed: bool


@dataclass(frozen=True, slots=True)
class FormNode:
    """In a sequence: the node ``number`` of those that keep or make ``tensor`` in a form of this
    kind. The graph does not have these nodes, so they have no names of its own."""

    form: str
    tensor: str
    number: int


Step = str | FormNode


@dataclass(frozen=True, slots=True)
class PlainDecision:
    """For plain sessions: the graph inputs and constants that have input fences, and the tensors
    that pins read, in plan order."""

    input_fences: tuple[str, ...]
    pins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan, whatever it was made for.

    ``accounting`` is the version of memplan's memory model. ``tensors`` stand in the order in which
    they are made. ``order``: the nodes behind the pass that orders them; empty: none did.
    ``sequence``: the nodes as they run, recomputations repeated.
    """

    memplan: str
    accounting: int
    model: PlannedModel
    session: str
    provider: str
    dims: Mapping[str, int]
    optimize: str
    budget_bytes: int
    baseline_peak_bytes: int
    predicted_peak_bytes: int
    predicted_peak_with_workspace_bytes: int
    extra_cost_fraction: float
    bound_fraction: float
    bound_kind: str
    strategy: str
    tensors: tuple[TensorDecision, ...] = ()
    settings: Settings = field(default_factory=Settings)
    chunks: tuple[ChunkDecision, ...] = ()
    chunk_cost_fraction: float = 0.0
    loops: tuple[LoopDecision, ...] = ()
    passes: tuple[PassDecision, ...] = ()
    plain: PlainDecision | None = None
    order: tuple[str, ...] = ()
    sequence: tuple[Step, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The JSON object, its keys in their order."""
        return {
            "schema": SCHEMA,
            "memplan": self.memplan,
            "accounting": self.accounting,
            "model": _row(self.model),
            "session": self.session,
            "provider": self.provider,
            "dims": dict(sorted(self.dims.items())),
            "optimize": self.optimize,
            "settings": _row(self.settings),
            "budget_bytes": self.budget_bytes,
            "baseline_peak_bytes": self.baseline_peak_bytes,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "predicted_peak_with_workspace_bytes": self.predicted_peak_with_workspace_bytes,
            "extra_cost_fraction": self.extra_cost_fraction,
            "bound_fraction": self.bound_fraction,
            "bound_kind": self.bound_kind,
            "strategy": self.strategy,
            "tensors": [_row(tensor) for tensor in self.tensors],
            "chunks": [_row(chunk) for chunk in self.chunks],
            "chunk_cost_fraction": self.chunk_cost_fraction,
            "loops": [_row(loop) for loop in self.loops],
            "passes": [_row(each) for each in self.passes],
            "plain": None if self.plain is None else _row(self.plain),
            "order": list(self.order),
            "sequence": [step if isinstance(step, str) else _row(step) for step in self.sequence],
        }

    def text(self) -> str:
        """The file's text: a line for every field, and for every element of a list."""
        lines = [f" {json.dumps(key)}: {_value(value)}" for key, value in self.as_json().items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def save(self, path: Path, *, force: bool = False) -> None:
        """Write the file whole, or not at all.

        Raises:
            UsageError: it is there and ``force`` is not given, or it cannot be written.
        """
        write_atomically(path, self.text().encode(), force=force)


def _row(value: Any) -> dict[str, object]:
    """A value's fields by name; those that are None are left out, but for a tensor's module."""
    fields = ((name, getattr(value, name)) for name in value.__dataclass_fields__)
    return {n: _plain(each) for n, each in fields if each is not None or n == "module"}


def _plain(value: Any) -> object:
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    return list(value) if isinstance(value, tuple) else value


def _value(value: object) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {_line(each)}" for each in value) + "\n ]"
    if isinstance(value, dict) and any(isinstance(each, list) and each for each in value.values()):
        lines = (f"  {_line(key)}: {_line(each)}" for key, each in value.items())
        return "{\n" + ",\n".join(lines) + "\n }"
    return _line(value)


def _line(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def read_plan(path: Path) -> PlanFile:
    """A plan file.

    Raises:
        PlanError: it cannot be read, is of a newer version, or an entry is not what it should be.
    """
    try:
        data = json.loads(read_bytes(path, MOST_TEXT), parse_constant=_no_number)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {file_problem(error)}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise PlanError(
            f"{path} is not a plan: {error}", "memplan rewrite MODEL --plan-out FILE writes one"
        ) from None
    return parse_plan(data, str(path))


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def parse_plan(data: object, name: str = "the plan") -> PlanFile:
    """A plan from its JSON object; ``name`` is what errors call it.

    Raises:
        PlanError: see :func:`read_plan`.
    """
    top = Entry(data, "", name)
    _check_schema(top)
    plan = _plan(top)
    if not 0 <= plan.bound_fraction <= plan.extra_cost_fraction + _SLACK:
        raise top.wrong("bound_fraction", "expected a number from 0 to extra_cost_fraction")
    require_decided_as_run(plan.tensors, plan.sequence)
    return plan


def _plan(top: Entry) -> PlanFile:
    model, settings, plain = top.get("model"), top.get("settings"), top.get("plain")
    return PlanFile(
        memplan=top.text("memplan"),
        accounting=top.whole("accounting"),
        model=PlannedModel(
            fingerprint=model.text("fingerprint"),
            nodes=model.whole("nodes"),
            tensors=model.whole("tensors"),
            runtime=model.text_or_none("runtime"),
            planned=model.text_or_none("planned"),
        ),
        session=top.text("session"),
        provider=top.text("provider"),
        dims=top.whole_by_name("dims"),
        optimize=top.text("optimize"),
        budget_bytes=top.whole("budget_bytes"),
        baseline_peak_bytes=top.whole("baseline_peak_bytes"),
        predicted_peak_bytes=top.whole("predicted_peak_bytes"),
        predicted_peak_with_workspace_bytes=top.whole("predicted_peak_with_workspace_bytes"),
        extra_cost_fraction=top.number("extra_cost_fraction", least=0.0),
        bound_fraction=top.number("bound_fraction", least=0.0),
        bound_kind=top.one_of("bound_kind", BOUND_KINDS),
        strategy=top.text("strategy"),
        tensors=tuple(_tensor(each) for each in top.items("tensors")),
        settings=Settings(
            loss=settings.text_or_none("loss"),
            state=settings.texts("state"),
            wrt=settings.texts("wrt"),
            device=settings.text_or_none("device"),
            forms=settings.texts_of("forms", FORMS),
            tags=settings.text_by_name("tags"),
        ),
        chunks=tuple(_chunk(each) for each in top.items("chunks")),
        chunk_cost_fraction=top.number("chunk_cost_fraction"),
        loops=tuple(
            LoopDecision(each.text("forward"), each.text("backward"), each.texts("recomputed"))
            for each in top.items("loops")
        ),
        passes=tuple(
            PassDecision(each.text("name"), each.flag("changed")) for each in top.items("passes")
        ),
        plain=None
        if plain.is_none
        else PlainDecision(plain.texts("input_fences"), plain.texts("pins")),
        order=top.texts("order"),
        sequence=tuple(_step(each) for each in top.items("sequence")),
    )


def _check_schema(top: Entry) -> None:
    kind, _, version = top.text("schema").partition("/")
    if kind != _KIND:
        raise top.wrong("schema", f"expected {SCHEMA}")
    if version == _VERSION:
        return
    if version.isdecimal() and int(version[:9]) > int(_VERSION):
        raise PlanError(
            f"{top.file} was written by a newer memplan: its schema is {_KIND}/{version}, and this "
            f"memplan reads {SCHEMA}",
            "update memplan, or plan anew",
        )
    raise top.wrong("schema", f"expected {SCHEMA}")


def _tensor(entry: Entry) -> TensorDecision:
    return TensorDecision(
        tensor=entry.text("tensor"),
        node=entry.text("node"),
        operator=entry.text("operator"),
        module=entry.text_or_none("module"),
        nbytes=entry.whole("nbytes"),
        decision=entry.one_of("decision", DECISIONS),
        times=entry.whole("times"),
        seconds=entry.number("seconds", least=0.0),
        chunks=entry.whole_or_none("chunks"),
        call=entry.text_or_none("call"),
    )


def _chunk(entry: Entry) -> ChunkDecision:
    return ChunkDecision(
        kind=entry.text("kind"),
        seeds=entry.texts("seeds"),
        axis=entry.whole("axis"),
        count=entry.whole("count"),
        first=entry.text_or_none("first"),
        last=entry.text_or_none("last"),
    )


def _step(entry: Entry) -> Step:
    if isinstance(entry.value, str):
        return entry.value
    return FormNode(entry.text("form"), entry.text("tensor"), entry.whole("number"))
