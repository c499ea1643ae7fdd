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
from memplan.errors import EXIT_BUG, MemplanError
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
_ORDINARY = 2  # the first of them, in which numbers are finite and differ
_SIZE = 4  # of every symbolic dimension
_SHARE_IN_PLACE = 0.1  # of edits of steps with state that are run in place, proved or not
_SHARE_OF_SAMPLES = 0.02
_OF_A_LOOP = ("inside,", "swapped inputs")
_TRIES = 6

Array = npt.NDArray[np.generic]
Feeds = Mapping[str, Array]
Runs = list[dict[str, Array] | None]
"""Outputs by draw, then thread count; None where there are none to compare."""
Found = tuple[str, str]
"""What is wrong with what is said of an edit, nothing where all is well; and what is to be counted,
of a defect the words for it."""


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
        asked = memplan.RewriteOptions(
            parse_budget(budget), optimize="none", effort=effort, **options
        )
        try:
            made = memplan.rewrite(model, asked).model
        except MemplanError as error:
            if error.exit_code == EXIT_BUG:
                raise
            continue
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
    if draw < _ORDINARY:
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
    counts = Counter[str]()
    try:
        subject = _subject(random.Random(f"{seed}/proof/{number}"))
    except Exception as error:  # of the planner, on a sound graph
        return Ended(counts, place_of(error), str(error))
    for k in range(edits):
        r = random.Random(f"{seed}/proof/{number}/{k}")
        model = onnx.ModelProto()
        model.CopyFrom(subject.rewritten)
        said = "; ".join(edited(model, subject.types, r)) if k else "as written"
        held = [_held]
        if subject.state and r.random() < _SHARE_IN_PLACE:
            held.append(_in_place)
        for each in held:
            try:
                place, found = each(subject, model, said)
            except Exception as error:  # of the proof, which never raises
                place, found = place_of(error), f"{type(error).__name__}: {error}"
            if place:
                files = {"original.onnx": subject.original, "edited.onnx": model}
                data = {name: file.SerializeToString() for name, file in files.items()}
                return Ended(counts, place, f"{subject.what}: {said}: {found}", data)
            counts[found] += 1
    return Ended(counts)


def _held(subject: Subject, model: onnx.ModelProto, what: str) -> Found:
    """The proof; where it has no reason against the file both run, and what was said is held
    against what they give."""
    found = prove(reference_side(subject.reference, model), Side(model, Path()))
    if found.reason is None:  # only then is it worth reading as validate does
        try:
            prepared = prepare(model, Path("edited.onnx"), subject.reference.dims)
        except MemplanError:
            return "", "no valid model"
        found = equivalence_of(subject.reference, prepared, "cpu")
    if found.reason is not None:
        place = "a file as written is not proved" if what == "as written" else ""
        return place, found.reason if place else "refused"
    said = _said(found)
    ours = list(_runs(model, subject.feeds))
    if all(run is None for run in ours):
        return "", f"{said}, does not run"
    if not subject.runs:
        subject.runs = list(_runs(subject.original, subject.feeds))
        again = list(_runs(subject.original, subject.feeds))
        subject.noisy = set(_differing(subject, again))
    differing = _differing(subject, ours, rounded=said != "proved")
    if not differing:
        return "", f"{said}, same{'' if said == 'proved' else ' but for rounding'}"
    # As it says: of an assumed loop the body, and which sequence is which, rests on the runs.
    if found.redrawn or (found.assumed and any(word in what for word in _OF_A_LOOP)):
        return "", f"{said}, differs"
    first = next(iter(differing.items()))
    return f"{said}, and {what} differs", f"{len(differing)} outputs, first {first}"


def _said(found: Equivalence) -> str:
    if found.proved:
        return "proved"
    taken = {
        "redrawn": found.redrawn,
        "assumed": bool(found.assumed),
        "up to rounding": bool(found.rounded),
    }
    return " and ".join(word for word, is_so in taken.items() if is_so)


def _differing(subject: Subject, runs: Runs, *, rounded: bool = False) -> dict[str, str]:
    """Outputs that differ from the original's, and by how much in which run."""
    found: dict[str, str] = {}
    for k, (was, now) in enumerate(zip(subject.runs, runs, strict=True)):
        draw, threads = k // len(THREADS), THREADS[k % len(THREADS)]
        where = f"draw {draw}, {threads} threads"
        if was is not None and now is None:
            found.setdefault("", f"does not run in {where}")
        # Where numbers are finite and differ rounding is small.
        if was is None or now is None or (rounded and draw >= _ORDINARY):
            continue
        for name, value in now.items():
            if name in subject.noisy or name in found or same_bits(was[name], value):
                continue
            difference = output_difference(name, was[name], value)
            if not (rounded and difference.is_rounding):
                found[name] = f"{difference.max_rel_diff:.3g} relative in {where}"
    return found


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


def _outputs(opened: Any, feeds: Feeds, state: Mapping[str, str]) -> dict[str, Array] | None:
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
    names = [output.name for output in opened.get_outputs()]
    values = (np.array(value.numpy()) for value in binding.get_outputs())
    return dict(zip(names, values, strict=True))


def _in_place(subject: Subject, model: onnx.ModelProto, what: str) -> Found:
    """The edited file with what may be written over the old values there, and apart."""
    outputs = {value.name for value in model.graph.output}
    pairs = {new: old for new, old in subject.state.items() if new in outputs}
    refused = unsafe_pairs(model, pairs)
    taken = {value.name for value in model.graph.input}
    safe = {new: old for new, old in pairs.items() if new not in refused and old in taken}
    if not safe:
        return "", "in place, none"
    runs = [list(_runs(model, subject.feeds[1:2], state)) for state in ({}, {}, safe)]
    for apart, again, over in zip(*runs, strict=True):
        if apart is None or again is None or over is None:
            continue
        for name, value in apart.items():
            if same_bits(value, again[name]) and not same_bits(value, over[name]):
                return f"written over the old value, {what} differs", name
    return "", "in place, same"
