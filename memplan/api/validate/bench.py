"""The runs of one validation: which draws, in which sessions, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from memplan.api.state_modes import bindings
from memplan.api.validate.same_interface import without_inputs
from memplan.errors import NodeFailedError, UsageError
from memplan.ir.graph import Graph
from memplan.options import ValidateOptions
from memplan.processes.scratch import scratch_folder
from memplan.runtime.archive import save_arrays
from memplan.runtime.compare_outputs import Comparison, compare_outputs
from memplan.runtime.inputs import Array, load_inputs, synthesize
from memplan.runtime.measure import measure
from memplan.runtime.messages import Draw, Measurement, RunRequest
from memplan.simulate.opened import OpenModel
from memplan.simulate.state_memory import names_of

Progress = Callable[[int, int, str], None]
"""Is told the place of a step, the number of steps, and what is being done."""

_MADE_UP = "the inputs were made up: if the model runs on some values only, give them with --inputs"


@dataclass(frozen=True, slots=True)
class Ran:
    """A model that was measured, and the archives of its outputs, one per draw that ran."""

    measured: Measurement
    outputs: tuple[Path, ...]

    def compared_with(self, other: Ran) -> tuple[Comparison, ...]:
        """Outputs of this run against those of the same names of another, draw by draw."""
        names, others = self.measured.output_names, other.measured.output_names
        pairs = zip(self.outputs, other.outputs, strict=False)
        return tuple(compare_outputs(mine, its, names, others) for mine, its in pairs)

    def later_differences(self, other: Ran) -> tuple[str, ...]:
        """Outputs of the same name whose bits differ in the second run of the session."""
        mine = dict(zip(self.measured.output_names, self.measured.second_run_digests, strict=True))
        digests = other.measured.second_run_digests
        its = dict(zip(other.measured.output_names, digests, strict=True))
        return tuple(name for name in mine if name in its and mine[name] != its[name])


@dataclass(slots=True)
class Bench:
    """What the runs of one validation share.

    ``draws`` are archives of inputs; ``fewer_draws`` the same for the files that lack some inputs;
    ``made_up``: the user gave none.
    ``steps`` is how many things are done, for ``progress``; notes are for the report.
    """

    folder: Path
    draws: tuple[Path, ...]
    fewer_draws: Mapping[Path, tuple[Path, ...]]
    request: RunRequest
    time_limit: float
    steps: int
    made_up: bool
    progress: Progress | None = None
    notes: list[str] = field(default_factory=list)
    _done: int = 0

    def begin(self, what: str) -> None:
        """Tell that the next step begins."""
        self._done += 1
        if self.progress is not None:
            self.progress(self._done, max(self._done, self.steps), what)

    def run(
        self, model: OpenModel, label: str, session: str, *, draws: bool = True, timed: bool = True
    ) -> Ran:
        """Measure a model in a session of the kind.

        Args:
            model: what to run.
            label: tells its outputs from others.
            session: ``tuned`` or ``default``.
            draws: on all draws, not only on the first.
            timed: also without the profiler, for seconds and the resident set.

        Raises:
            RuntimeUnavailableError: it failed or took too long.
        """
        self.begin(f"running {label}")
        path = model.prepared.path
        first, *rest = self.fewer_draws.get(path, self.draws)
        outputs = [
            self.folder / f"{label.replace(' ', '_')}.{k}.npz"
            for k in range(1 + (len(rest) if draws else 0))
        ]
        request = replace(self.request, session=session, runs=self.request.runs if timed else 0)
        if session == "tuned":
            in_place, second = bindings(model.graph)
            request = replace(request, in_place=in_place, second=second)
        further = [Draw(i, o) for i, o in zip(rest, outputs[1:], strict=False)]
        limit, weights = self.time_limit, model.prepared.weights
        try:
            measured = measure(path, request, first, outputs[0], further, limit, weights)
        except NodeFailedError as error:
            if error.hint or not self.made_up:
                raise
            raise NodeFailedError(error.message, _MADE_UP) from None
        return Ran(measured, tuple(outputs[: 1 + len(measured.further_dynamic_bytes)]))


@contextmanager
def opened_bench(
    options: ValidateOptions,
    graph: Graph,
    rewritten: Path,
    removed_inputs: tuple[str, ...],
    request: RunRequest,
    steps: int,
    progress: Progress | None,
) -> Iterator[Bench]:
    """A temporary folder with the draws in it, and all that runs on them.

    Raises:
        UsageError: ``inputs`` do not fit, or none are given and some cannot be made up.
    """
    with scratch_folder() as folder:
        notes: list[str] = []
        draws: list[Path] = []
        fewer: list[Path] = []
        for k in range(options.draws):
            try:
                feeds = _drawn(options, graph, k)
            except UsageError as error:
                if k == 0:
                    raise
                notes.append(f"run on the given inputs only: {error.message}")
                break
            draws.append(folder / f"inputs.{k}.npz")
            save_arrays(draws[-1], feeds)
            fewer.append(without_inputs(draws[-1], feeds, removed_inputs))
        yield Bench(
            folder=folder,
            draws=tuple(draws),
            fewer_draws={rewritten: tuple(fewer)},
            request=request,
            time_limit=options.time_limit,
            steps=steps,
            made_up=options.inputs is None,
            progress=progress,
            notes=notes,
        )


def _drawn(options: ValidateOptions, graph: Graph, draw: int) -> Mapping[str, Array]:
    """Given inputs are the first draw; the second is then made up as it always is."""
    bound = set(names_of(graph).values())
    made = synthesize(graph, options.seed, draw, bound)
    if draw == 0 and options.inputs is not None:
        given = load_inputs(options.inputs, graph)
        return {**{name: made[name] for name in bound - given.keys()}, **given}
    return made


def unrun_draws(bench: Bench, first: Ran, second: Ran) -> tuple[list[str], list[str]]:
    """Findings and notes about draws that a model fails on: it is a finding if only the rewritten
    one does."""
    ran, also = len(first.outputs), len(second.outputs)
    if also < ran:
        return [
            f"the rewritten model fails on draw {also + 1}, on which the original does not: "
            f"{second.measured.failed[:200]}"
        ], []
    if ran < len(bench.draws):
        return [], [
            f"draw {ran + 1} was not compared, as the original fails on it: "
            f"{first.measured.failed[:200]}"
        ]
    return [], []


def digests_comparable(names: Sequence[str], comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """Those of the outputs whose bits were equal in the first run: of others, only values could
    be compared in the second."""
    return tuple(name for name in names if comparisons[0].difference_of(name) is None)
