"""A plan as a value and as a file: made to be committed, read in a diff, and replayed.

Everything that a search found is in it, and nothing that differs from run to run: no clock, no
path. Every element of a list has a line of its own, so that a diff shows what changed. A file is
taken as it was written or not at all: its digest is of all other entries. Whoever makes one up for
a file of his own gains nothing: what a plan promises is simulated and proved anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memplan.errors import PlanError
from memplan.planning.records import read_record, record_json, wrong
from memplan.proto.paths import MOST_TEXT, file_problem, read_bytes
from memplan.proto.write import write_atomically

SCHEMA = "memplan.plan/1"
_KIND, _VERSION = SCHEMA.split("/")
KEPT, RECOMPUTED, REBUILT, OFFLOADED = "kept", "recomputed", "rebuilt", "offloaded"
ANEW = "plan anew: memplan rewrite MODEL --budget SIZE --plan-out FILE"
EDITED = f"the file was edited: take it back from version control, or {ANEW}"
"""Hints of errors about plan files."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    settings: Settings = field(default_factory=Settings)
    budget_bytes: int
    baseline_peak_bytes: int
    predicted_peak_bytes: int
    predicted_peak_with_workspace_bytes: int
    extra_cost_fraction: float
    bound_fraction: float
    bound_kind: str
    strategy: str
    tensors: tuple[TensorDecision, ...] = ()
    chunks: tuple[ChunkDecision, ...] = ()
    chunk_cost_fraction: float = 0.0
    loops: tuple[LoopDecision, ...] = ()
    passes: tuple[PassDecision, ...] = ()
    plain: PlainDecision | None
    order: tuple[str, ...] = ()
    sequence: tuple[Step, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The JSON object, its keys in their order."""
        entries: dict[str, object] = {"schema": SCHEMA, **record_json(self)}
        return {**entries, "digest": _digest(entries)}

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
        PlanError: it cannot be read, is of a newer version, or was edited.
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
    _check_schema(read_record(_Head, data, name).schema, name)
    assert isinstance(data, dict)
    if data.pop("digest", None) != _digest(data):
        raise PlanError(f"{name} is not as memplan wrote it", EDITED)
    return read_record(PlanFile, data, name)


def _digest(entries: Mapping[str, object]) -> str:
    """Of what a file says, however its lines are broken."""
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class _Head:
    """Of any file of ours."""

    schema: str


def _check_schema(schema: str, name: str) -> None:
    kind, _, version = schema.partition("/")
    if (kind, version) == (_KIND, _VERSION):
        return
    if kind == _KIND and version.isdecimal() and int(version[:9]) > int(_VERSION):
        raise PlanError(
            f"{name} was written by a newer memplan: its schema is {_KIND}/{version}, and this "
            f"memplan reads {SCHEMA}",
            "update memplan, or plan anew",
        )
    raise wrong(name, "schema", SCHEMA, schema)
