"""The proof against the runtime: rewritten files with an edit, and whether bits differ that are
called equal.

Most edits cost milliseconds: the proof refuses them, and nothing runs. Where it says that a file
computes what the original does, both run, with 1 and 2 threads, on draws some of which are full of
NaN, infinities, zeros of both signs and denormals. And where new values of the state may be written
over the old ones, says :mod:`memplan.equivalence.in_place`, the edited file gives what it gives
with both apart.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from edits import Type, edited
from ended import Ended, place_of
from steps import SAMPLES, training_graph

import memplan
from helpers.sessions import session
from memplan.api.validate.proof import equivalence_of
from memplan.equivalence.in_place import unsafe_pairs
from memplan.equivalence.prove import Equivalence, Side, prove, reference_side
from memplan.errors import MemplanError
from memplan.runtime.compare_outputs import output_difference, same_bits
from memplan.runtime.inputs import synthesize
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import PreparedModel, prepare
from memplan.simulate.opened import opened
from memplan.units import parse_budget

EDITS = 250
"""Edits of each pair."""
THREADS = (1, 2)
_DRAWS = 4
_SIZE = 4  # of every symbolic dimension
_SHARE_IN_PLACE = 0.1  # of edits of steps with state that are run in place, proved or not
_SHARE_OF_SAMPLES = 0.02
_OF_A_LOOP = ("inside,", "swapped inputs")
_TRIES = 6

Array = npt.NDArray[np.generic]
Feeds = Mapping[str, Array]
Runs = list[list[Array] | None]
"""Outputs by draw, then thread count; None where there are none to compare."""
Found = tuple[str, str]
"""What is wrong, and the words for it; nothing where all is well."""


# --- What is edited -------------------------------------------------------------------------------


@dataclass(slots=True)
class Subject:
    """A training graph, what was made of it and how, and what its edits are held against.

    ``state``: new values by the inputs that they may be written over, output → input. ``noisy``:
    places of outputs in which a run of the original differs from the next.
    """

    what: str
    original: onnx.ModelProto
    rewritten: onnx.ModelProto
    state: Mapping[str, str]
    reference: PreparedModel
    types: dict[str, Type]
    feeds: list[Feeds]
    runs: Runs = field(default_factory=list)
    noisy: set[str] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        """The original's outputs."""
        return [value.name for value in self.original.graph.output]


@dataclass(frozen=True, slots=True)
class Edited:
    """A rewritten file with an edit; ``what`` says what was done."""

    model: onnx.ModelProto
    what: str


def _rewritten(r: random.Random) -> tuple[str, onnx.ModelProto, onnx.ModelProto]:
    """How a training graph was rewritten, the graph and what was made of it; the same for the same
    random numbers."""
    sample = r.random() < _SHARE_OF_SAMPLES
    if sample:
        path = r.choice(sorted(SAMPLES.glob("*.onnx")))
        name, model = path.stem, onnx.load(path)
    else:
        name, model = training_graph(r)
    for _ in range(_TRIES):
        options: dict[str, Any] = {
            "strategy": r.choice(("greedy", "search{iterations=3}", "segments")),
            "session": "tuned" if sample else r.choice((*("tuned",) * 7, "default")),
            "chunk": r.choice(("none", "none", "regions", "layers", "2", "3")),
            "passes": r.choice(("all", "all", "all", "none")),
            "scan_recompute": r.choice(("", "all")),
        }
        budget = r.choice(("min", "min", "95%", "88%", "80%", "65%"))
        effort = 2 if "search" in options["strategy"] else 0
        with suppress(MemplanError):
            asked = memplan.RewriteOptions(
                parse_budget(budget), optimize="none", effort=effort, **options
            )
            made = memplan.rewrite(model, asked).model
            assert made is not None
            said = " ".join(f"{key}={value}" for key, value in options.items())
            return f"{name} {budget} {said}", model, made
    return f"{name} as it is", model, model


def _subject(r: random.Random) -> Subject:
    what, original, rewritten = _rewritten(r)
    dims = dict.fromkeys(symbolic_dims(original), _SIZE)
    reference = prepare(original, Path("original.onnx"), dims)
    known = prepare(rewritten, Path("rewritten.onnx"), dims).types
    types = {
        name: (found.dtype, found.sizes if not dims else None) for name, found in known.items()
    }
    given = [value.name for value in original.graph.input]  # also what has a default
    graph, numbers = opened(reference).graph, np.random.default_rng(r.randrange(1 << 30))
    drawn = (synthesize(graph, 7, draw, given) for draw in range(_DRAWS))
    feeds = [_special(feeds, draw, numbers) for draw, feeds in enumerate(drawn)]
    outputs = {value.name for value in original.graph.output}
    state = {f"{name}{end}": name for name in given for end in ("_new", ".new")}
    state = {new: old for new, old in state.items() if new in outputs}
    return Subject(what, original, rewritten, state, reference, types, feeds)


_EXTREME = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, 0.5, 6.0)
_TIES = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0)


def _special(feeds: Feeds, draw: int, numbers: np.random.Generator) -> Feeds:
    """The draw 2 with rare extreme numbers in it, the draw 3 of few different numbers."""
    if draw < 2:
        return feeds
    found = {}
    for name, value in feeds.items():
        if value.dtype.kind == "f" and value.size > 1:
            chosen = _EXTREME if draw == 2 else _TIES
            share = min(0.2, 2 / value.size) if draw == 2 else 1.0
            drawn = numbers.choice(np.asarray(chosen), value.shape).astype(value.dtype)
            value = np.where(numbers.random(value.shape) < share, drawn, value)
        found[name] = value
    return found


# --- Whether the proof is right -------------------------------------------------------------------


def examined(seed: int, number: int, edits: int = EDITS) -> Ended:
    """The pair ``number`` and its edits, up to the first defect; and a count of what was said."""
    subject = _subject(random.Random(f"{seed}/proof/{number}"))
    counts: Counter[str] = Counter()
    for k in range(edits):
        r = random.Random(f"{seed}/proof/{number}/{k}")
        model = onnx.ModelProto()
        model.CopyFrom(subject.rewritten)
        said = edited(model, subject.types, r) if k else []  # the first is the file as written
        edit = Edited(model, f"{subject.what}: {'; '.join(said) or 'as written'}")
        try:
            place, message = _examined(subject, edit, counts, r, as_written=k == 0)
        except Exception as error:  # of the proof, which never raises
            place, message = place_of(error), f"{edit.what}: {type(error).__name__}: {error}"
        if place:
            files = {"original.onnx": subject.original, "edited.onnx": model}
            data = {name: file.SerializeToString() for name, file in files.items()}
            return Ended(counts, place, message, data)
    return Ended(counts)


def _examined(
    subject: Subject, edit: Edited, counts: Counter[str], r: random.Random, *, as_written: bool
) -> Found:
    """What is wrong with what is said of an edit: bits differ that should not."""
    model = edit.model
    found = prove(reference_side(subject.reference, model), Side(model, Path()))
    if found.reason is None:  # only then is it worth reading as validate does
        try:
            prepared = prepare(model, Path("edited.onnx"), subject.reference.dims)
        except MemplanError:
            counts["no valid model"] += 1
            return "", ""
        found = equivalence_of(subject.reference, prepared, "cpu")
    if found.reason is None:
        (place, message), said = _held(subject, edit, found)
    else:
        place, message, said = "", "", "refused"
        if as_written:
            place, message = "a file as written is not proved", f"{edit.what}: {found.reason}"
    counts[said] += 1
    if not place and subject.state and r.random() < _SHARE_IN_PLACE:
        (place, message), said = _in_place(subject, edit)
        counts[said] += 1
    return place, message


def _said(found: Equivalence) -> str:
    if found.proved:
        return "proved"
    taken = {
        "redrawn": found.redrawn,
        "assumed": bool(found.assumed),
        "up to rounding": bool(found.rounded),
    }
    return " and ".join(word for word, is_so in taken.items() if is_so)


def _held(subject: Subject, edit: Edited, found: Equivalence) -> tuple[Found, str]:
    """Both files run, and what was said of them is held against what they give."""
    said = _said(found)
    ours = list(_runs(edit.model, subject.feeds))
    if all(run is None for run in ours):
        return ("", ""), f"{said}, does not run"
    if not subject.runs:
        subject.runs = list(_runs(subject.original, subject.feeds))
        again = list(_runs(subject.original, subject.feeds))
        subject.noisy = set(_differing(subject, subject.names, subject.runs, again))
    names = [value.name for value in edit.model.graph.output]
    differing = _differing(subject, names, subject.runs, ours, rounded=said != "proved")
    if not differing:
        return ("", ""), f"{said}, same{'' if said == 'proved' else ' but for rounding'}"
    words = f"{edit.what}: {len(differing)} outputs, first {next(iter(differing.items()))}"
    # As it says: of an assumed loop the body, and which sequence is which, rests on the runs.
    if found.redrawn or (found.assumed and any(what in edit.what for what in _OF_A_LOOP)):
        return ("", ""), f"{said}, differs"
    return (f"{said}, and {_kind(edit)} differs", words), f"{said}, DIFFERS"


def _kind(edit: Edited) -> str:
    """The edit without what is particular to the file."""
    return edit.what.partition(": ")[2]


def _differing(
    subject: Subject, names: list[str], first: Runs, second: Runs, *, rounded: bool = False
) -> dict[str, str]:
    """Outputs of the original that differ, and by how much in which run."""
    found: dict[str, str] = {}
    for k, (was, now) in enumerate(zip(first, second, strict=True)):
        if was is None:
            continue
        where = f"draw {k // len(THREADS)}, {THREADS[k % len(THREADS)]} threads"
        if now is None:
            found.setdefault("", f"does not run in {where}")
            continue
        if rounded and not _ordinary(k):
            continue
        kept = dict(zip(subject.names, was, strict=True))
        for name, value in zip(names, now, strict=True):
            if name in subject.noisy or name in found or same_bits(kept[name], value):
                continue
            difference = output_difference(name, kept[name], value)
            if not (rounded and difference.is_rounding):
                found[name] = f"{difference.max_rel_diff:.3g} relative in {where}"
    return found


def _ordinary(run: int) -> bool:
    """Whether the numbers of a run are finite and differ: then rounding is small."""
    return run // len(THREADS) < 2


def _runs(
    model: onnx.ModelProto, feeds: list[Feeds], state: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """The outputs in every draw, with every number of threads; None where it cannot run."""
    sessions = []
    for threads in THREADS:
        ort.set_seed(1_000_003)
        try:
            sessions.append(session(model, "tuned", threads))
        except Exception:  # whatever the runtime refuses a model with
            sessions.append(None)
    for given in feeds:
        for each in sessions:
            yield None if each is None else _outputs(each, given, state or {})


def _outputs(opened: Any, feeds: Feeds, state: Mapping[str, str]) -> list[Array] | None:
    """``state``: output → input over which it is written."""
    inputs = (*opened.get_inputs(), *opened.get_overridable_initializers())
    taken = {value.name for value in inputs}
    binding = opened.io_binding()
    held = {}
    for name, value in feeds.items():
        if name in taken:
            held[name] = ort.OrtValue.ortvalue_from_numpy(np.array(value, order="C"))
            binding.bind_ortvalue_input(name, held[name])
    for output in opened.get_outputs():
        if output.name in state:
            binding.bind_ortvalue_output(output.name, held[state[output.name]])
        else:
            binding.bind_output(output.name)
    try:
        opened.run_with_iobinding(binding)
    except Exception:  # an index out of bounds, a shape that does not fit
        return None
    return [np.array(value.numpy()) for value in binding.get_outputs()]


def _in_place(subject: Subject, edit: Edited) -> tuple[Found, str]:
    """The edited file with what may be written over the old values there, and apart."""
    model = edit.model
    outputs = {value.name for value in model.graph.output}
    pairs = {new: old for new, old in subject.state.items() if new in outputs}
    refused = unsafe_pairs(model, pairs)
    taken = {value.name for value in model.graph.input}
    safe = {new: old for new, old in pairs.items() if new not in refused and old in taken}
    if not safe:
        return ("", ""), "in place, none"
    feeds = subject.feeds[1:2]
    apart, again, over = (list(_runs(edit.model, feeds, state)) for state in ({}, {}, safe))
    names = [value.name for value in model.graph.output]
    for was, same, now in zip(apart, again, over, strict=True):
        if was is None or now is None or same is None:
            continue
        for name, *values in zip(names, was, same, now, strict=True):
            if same_bits(values[0], values[1]) and not same_bits(values[0], values[2]):
                place = f"written over the old value, {_kind(edit)} differs"
                return (place, f"{edit.what}: {name}"), "in place, DIFFERS"
    return ("", ""), "in place, same"
