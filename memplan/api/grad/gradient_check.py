"""Holds gradients against the graph that they are of, as ``capture`` is held against PyTorch.

Along a random direction of all tensors at once, Σ ⟨gradient, direction⟩ must be the central
difference of the forward graph, which ONNX Runtime evaluates in float64 where it can
(:mod:`memplan.api.grad.double_graph`). A wrong gradient shows in every direction, so a few tell of
any number of tensors; where they tell of one, each tensor is measured by itself.

- Weights are moved a little from where they are: what begins at 0, or alike, is neither a kink nor
  a tie then.
- A step may straddle a kink (of a ReLU, a maximum). So a direction that differs is measured with a
  shorter step, and further directions are; only what most of them have is a difference.
- What is granted depends on the size of derivatives and on the rounding of the forward graph, never
  on the difference itself.
- Large contributions are scaled down to the median of all tensors, so that none hides behind them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from memplan.api.grad.check_graphs import (
    Array,
    Bound,
    BrokenGraphError,
    Differentiated,
    NoKernelError,
    NotComparableError,
    Pair,
    bounds,
    feed_both,
    offset_name,
    open_pair,
    part_of,
    require_room,
    take_weights,
    with_offsets,
)
from memplan.api.grad.check_outcome import (
    DIFFERS,
    EQUAL,
    GradientCheck,
    WrongGradient,
    require_equal,
    skipped,
)
from memplan.autodiff.backward import GradientSink, Request
from memplan.autodiff.finished_graph import finished
from memplan.errors import MemplanError, RuntimeUnavailableError
from memplan.ir.roles import LOSS_SCALE
from memplan.proto.edit import copied
from memplan.runtime.installed import require_runtime
from memplan.units import counted

_DIRECTIONS = 4  # at most, where some tell nothing
_AGAIN, _MOST = 3, 2  # further directions where one differs, and how many of them have to
_UNSETTLED = 0.05  # of the size of a derivative: what is less well known tells nothing
_MOVED = 0.02  # of the size of a weight; the size of one that is 0
_INPUTS = (1, 0, 2)  # kinds of made-up inputs that are tried
_LONGEST = 300
_PATIENCE = 60  # seconds


@dataclass(frozen=True, slots=True)
class Measure:
    """Lengths of steps, in sizes of the weights, what may differ, in derivatives of usual size, the
    rounding of the forward graph, and how many directions have to agree: the share of one tensor in
    a direction is seldom as small as an exact tolerance."""

    steps: tuple[float, ...]
    tolerance: float
    epsilon: float
    directions: int


_EXACT = Measure((1e-6, 1e-7), 1e-6, 2.0**-52, 1)
_SINGLE_GRADIENTS = Measure((1e-6, 1e-7), 1e-3, 2.0**-52, 2)
"""The gradients alone have parts in float32."""
_PARTLY = Measure((1e-3, 1e-4), 1e-2, 2.0**-30, 3)
"""Parts of the forward graph, too: rounding of single elements mostly cancels out in a loss."""
_SINGLE = Measure((1e-2, 2e-3), 2e-2, 2.0**-23, 3)
_CONSTANTS: Mapping[int, float] = {
    onnx.TensorProto.FLOAT16: 2.0**-9,
    onnx.TensorProto.BFLOAT16: 2.0**-6,
}
"""What the rounding of some constants of a gradient comes to, in narrow types."""


def checked(
    flat: onnx.ModelProto,
    training: onnx.ModelProto,
    request: Request,
    sink: GradientSink,
    path: Path,
    dims: Mapping[str, int],
) -> GradientCheck:
    """Hold the gradients of a training graph against the flat graph that it was made of.

    Args:
        flat: see :func:`memplan.autodiff.forward.annotate.flat_copy`; it is not changed.
        training: the finished training graph.
        request: what was asked for.
        sink: what took its gradients.
        path: the file, beside which its weights may lie.
        dims: sizes of symbolic dimensions that are known; others are chosen.

    Raises:
        GradientsDifferError: they are not its gradients.
    """
    seeds = request.grad_ys or (None,) * len(request.ys)
    try:
        forward = finished(copied(flat))
    except MemplanError as error:
        return skipped(error.message)
    ys = dict(zip(request.ys, seeds, strict=True))
    taken = {**sink.taken, **{x: output for output, x in sink.gradients.items()}}
    problem = Differentiated(forward, training, ys, taken, path, dims)
    found = check_gradients(problem)
    require_equal(found)
    return found


def check_gradients(problem: Differentiated) -> GradientCheck:
    """Compare gradients with central differences.

    Args:
        problem: the graphs, and which tensors are gradients of which.
    """
    begin = time.perf_counter()
    try:
        require_runtime()
        with np.errstate(all="ignore"):
            found = _compared(problem)
    except (NotComparableError, RuntimeUnavailableError) as error:
        found = skipped(str(error))
    except MemoryError:
        found = skipped("there is too little memory")
    return replace(found, seconds=time.perf_counter() - begin)


def _compared(problem: Differentiated) -> GradientCheck:
    """At the first sizes and in the first precision in which the forward graph runs.

    Raises:
        NotComparableError: there are none.
    """
    made = {name for node in problem.training.graph.node for name in node.output}
    gradients = {x: name for x, name in problem.gradients.items() if name in made}
    if not gradients:
        raise NotComparableError("the graph has no gradients in tensors of their own")
    forward = part_of(problem.forward, _ends(problem))
    reasons = []
    for at in bounds(forward, problem):
        comparison = Comparison(problem, at, gradients)
        for exact in (True, False):
            try:
                return comparison.run(exact)
            except NoKernelError as error:
                reasons.append(str(error))
            except BrokenGraphError as error:
                if not exact:
                    return GradientCheck(DIFFERS, f"the training graph does not run: {error}")
    raise NotComparableError(f"the forward graph does not run: {reasons[-1][:_LONGEST]}")


def _ends(problem: Differentiated) -> list[str]:
    """Outputs of the forward graph: what was differentiated, and what its gradients begin with."""
    made = {name for node in problem.forward.graph.node for name in node.output}
    return [*problem.ys, *(s for s in problem.ys.values() if isinstance(s, str) and s in made)]


def _begun(value: Array, generator: np.random.Generator) -> Array:
    """Where a weight that has no value begins: so that layers neither vanish nor explode."""
    if value.min() > 0:
        return value  # what has to be positive was made so
    if value.ndim < 2:
        return 0.5 + 0.1 * generator.standard_normal(value.shape)
    fan = max(value.shape[0], value.size // value.shape[0])
    return generator.standard_normal(value.shape) / math.sqrt(fan)


def _root_mean_square(value: Array) -> float:
    return float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0


class Comparison:
    """Both graphs at certain sizes."""

    def __init__(self, problem: Differentiated, at: Bound, gradients: dict[str, str]) -> None:
        """Prepare copies of both.

        Raises:
            NotComparableError: there is too little memory, or draws cannot be fed.
        """
        self.problem, self.at, self.gradients = problem, at, gradients
        forward = at.forward
        training = part_of(at.sized(problem.training), list(gradients.values()))
        self.values: dict[str, Array] = feed_both(forward, training, at.prepared.types)
        self.draws = len(self.values)
        computed = {name for node in forward.graph.node for name in node.output}
        self.computed = {x for x in gradients if x in computed}
        with_offsets(forward, self.computed, at.prepared.types, self.values)
        require_room(at.prepared, (forward, training))
        for model in (forward, training):
            take_weights(model, problem.path, gradients, self.values)
        self.forward, self.training = forward, training
        self.found: dict[str, Array] = {}
        self.sizes: dict[str, float] = {}
        self.noise = 0.0
        self.directions = 0

    def run(self, exact: bool) -> GradientCheck:
        """Compare, in float64 or in the types of the graphs.

        Raises:
            NoKernelError: the forward graph does not run so.
            BrokenGraphError: it does, and the other one does not.
            NotComparableError: its results are no numbers.
        """
        self.begin(exact)
        worst: float | None = None
        for number in range(_DIRECTIONS):
            off = self.off(self.gradients, number)
            if off is None:
                continue
            if off > self.measure.tolerance:
                if self._persists(self.gradients, number):
                    return self._answer(off, self._wrong())
                continue
            worst = max(worst or 0.0, off)
            self.directions += 1
            if self.directions == self.measure.directions:
                break
        if worst is None:
            raise NotComparableError("its differences do not settle, however short a step is")
        return self._answer(worst, ())

    def begin(self, exact: bool) -> None:
        """Open sessions, find inputs, and compute the gradients. See :meth:`run`."""
        self.pair = open_pair(self.forward, self.training, exact)
        forward, training = self.pair.single
        self.measure = _EXACT if exact else _SINGLE
        if exact and (forward or training):
            self.measure = _PARTLY if forward else _SINGLE_GRADIENTS
        kinds = {each.dtype for each in self.at.prepared.types.values()}
        rounding = max(_CONSTANTS.get(kind, 0.0) for kind in kinds)
        self.measure = replace(self.measure, tolerance=max(self.measure.tolerance, rounding))
        self._find_inputs(self.pair)
        outputs = self.pair.training.run(self._fed(self.now, self.pair.training.inputs))
        for x, name in self.gradients.items():
            value, grad = self.now[self._slot(x)], outputs[name]
            if grad.shape != value.shape and x not in self.computed:
                raise BrokenGraphError(f"'{name}' has the shape {grad.shape}, '{x}' {value.shape}")
            self.found[x] = np.broadcast_to(grad, value.shape)
            self.sizes[x] = self._size(x)
        self._level()

    def _size(self, x: str) -> float:
        array = self.here if x in self.computed else self.now
        size = _root_mean_square(array[x]) if x in array else 0.0
        return size if size > 0 and math.isfinite(size) else _MOVED

    def _level(self) -> None:
        """Scale down what contributes more than the median."""
        parts = {x: float(np.linalg.norm(self.found[x])) * self.sizes[x] for x in self.gradients}
        known = [part for part in parts.values() if part > 0 and math.isfinite(part)]
        middle = float(np.median(known)) if known else 0.0
        for x, part in parts.items():
            if part > middle > 0 and math.isfinite(part):
                self.sizes[x] *= middle / part

    # -- one point ---------------------------------------------------------------------------------

    def _find_inputs(self, pair: Pair) -> None:
        """Inputs on which the forward graph gives numbers, and weights a little off where they are.

        Raises:
            NoKernelError, NotComparableError: see :meth:`run`.
        """
        failure: NoKernelError | None = None
        for draw in _INPUTS:
            self.now = self._point(draw)
            try:
                self.here = pair.forward.run(self._fed(self.now, pair.forward.inputs))
                self._require_time(pair.forward.seconds)
            except NoKernelError as error:
                failure = error
                continue
            self._require_shapes()
            self.loss = self._objective(self.here)
            if math.isfinite(self.loss):
                self.noise = self._rounding()
                return
        if failure is not None:
            raise failure
        raise NotComparableError("what the forward graph gives is no number on made-up inputs")

    def _require_shapes(self) -> None:
        """Refuse what a made-up size or index made of another shape than the file states.

        Raises:
            NotComparableError: there is such an output.
        """
        for y in self.problem.ys:
            sizes, shape = self.at.prepared.types[y].sizes, self.here[y].shape
            if sizes is not None and sizes != shape:
                raise NotComparableError(
                    f"on made-up inputs '{y}' has the shape {list(shape)}, not {list(sizes)}"
                )

    def _require_time(self, seconds: float) -> None:
        """Refuse what would take minutes: two runs for every direction, and one with gradients,
        which is about three.

        Raises:
            NotComparableError: it would, by the time of one run.
        """
        needed = (3 + 2 * self.measure.directions) * seconds
        if needed > _PATIENCE:
            raise NotComparableError(
                f"that would take about {needed:.0f} s ({seconds:.0f} s for one run of the forward "
                f"graph), more than {_PATIENCE} s"
            )

    def _point(self, draw: int) -> dict[str, Array]:
        made = {**self.at.inputs(draw, self.problem.gradients), **self.values}
        generator = np.random.default_rng(11)
        for x in self.gradients:
            slot = self._slot(x)
            value = made[slot]
            if x not in self.computed and x not in self.values and value.size:
                value = _begun(value, generator)
            if x not in self.computed:
                size = _root_mean_square(value)
                moved = generator.standard_normal(value.shape)
                made[slot] = value + moved * (_MOVED * size if size else _MOVED)
        if LOSS_SCALE in made:  # gradients are compared before they are unscaled
            made[LOSS_SCALE] = np.ones_like(made[LOSS_SCALE])
        return made

    def _fed(self, values: dict[str, Array], inputs: Collection[str]) -> dict[str, Array]:
        """With gradients that are inputs, of any number."""
        seeds = {y: s for y, s in self.problem.ys.items() if isinstance(s, str) and s in inputs}
        for y, seed in seeds.items():
            if seed not in values:
                shape = self.here[y].shape
                values[seed] = np.random.default_rng(7).standard_normal(shape)
        missing = [name for name in inputs if name not in values]
        if missing:
            raise NotComparableError(f"nothing is known of the input '{missing[0]}'")
        return values

    def _objective(self, outputs: dict[str, Array]) -> float:
        """Σ ⟨y, what its gradient begins with⟩."""
        total = 0.0
        for y, seed in self.problem.ys.items():
            value = outputs[y]
            if isinstance(seed, str):
                if seed not in self.now and seed not in self.here:
                    self._fed(self.now, [seed])
                seed = self.now[seed] if seed in self.now else self.here[seed]
            total += float(np.sum(value if seed is None else value * seed))
        return total

    def _rounding(self) -> float:
        """How far the forward graph is off by its own rounding: what weights that are off by less
        than that change."""
        own = 64 * self.measure.epsilon * abs(self.loss)
        if self.measure.epsilon == _EXACT.epsilon:
            return own
        generator = np.random.default_rng(13)
        moved = dict(self.now)
        for x in self.gradients:
            value = moved[self._slot(x)]
            moved[self._slot(x)] = value * (1 + 2e-7 * generator.standard_normal(value.shape))
        return max(own, 8 * abs(self._objective(self.pair.forward.run(moved)) - self.loss))

    # -- one direction -----------------------------------------------------------------------------

    def off(self, xs: Collection[str], number: int) -> float | None:
        """How far the gradients of some tensors are from the differences along a direction, in
        derivatives of usual size; None where those tell nothing.

        A second, shorter step is taken where the first differs. What the two disagree by is
        granted: the derivative is not better known.
        """
        along = {x: self._direction(x, number) for x in xs}
        given = sum(float(np.sum(self.found[x] * along[x])) for x in xs)
        usual = math.hypot(*(np.linalg.norm(self.found[x]) * self.sizes[x] for x in xs))
        before: float | None = None
        off: float | None = None
        for step in self.measure.steps:
            slopes = self._slopes(along, step)
            if not all(map(math.isfinite, slopes)):
                continue
            if not math.isfinite(given):
                return math.inf
            error = max(min(slopes) - given, given - max(slopes), 0.0)
            size = max(usual, abs(slopes[0]))
            if not size:
                return 0.0
            granted = self.noise / step + (0.0 if before is None else abs(slopes[0] - before))
            before, off = slopes[0], None
            if granted <= _UNSETTLED * size:
                off = error / size
                if error <= self.measure.tolerance * size + granted:
                    return min(off, self.measure.tolerance)
            elif given == 0 and error <= granted:
                return 0.0
        return off

    def _slopes(self, along: Mapping[str, Array], step: float) -> list[float]:
        """The central difference; and those to both sides where tensors are computed: at a kink of
        what reads them, anything between is right."""
        ahead, behind = (self._moved(along, sign * step) for sign in (1, -1))
        slopes = [(ahead - behind) / (2 * step)]
        if self.computed.intersection(along):
            slopes += [(ahead - self.loss) / step, (self.loss - behind) / step]
        return slopes

    def _direction(self, x: str, number: int) -> Array:
        seed = [number, *x.encode()]
        shape = self.found[x].shape
        return np.random.default_rng(seed).standard_normal(shape) * self.sizes[x]

    def _moved(self, along: Mapping[str, Array], step: float) -> float:
        moved = dict(self.now)
        for x, direction in along.items():
            slot = self._slot(x)
            moved[slot] = moved[slot] + step * direction
        return self._objective(self.pair.forward.run(moved))

    def _slot(self, x: str) -> str:
        return offset_name(x) if x in self.computed else x

    def _persists(self, xs: Collection[str], number: int) -> bool:
        again = [self.off(xs, 100 + _AGAIN * number + k) for k in range(_AGAIN)]
        return sum(off is not None and off > self.measure.tolerance for off in again) >= _MOST

    # -- what is wrong -----------------------------------------------------------------------------

    def _is_wrong(self, x: str) -> float:
        """How far the gradient of one tensor is off; 0 where it is right."""
        off = self.off((x,), 1000) or 0.0
        return off if off > self.measure.tolerance and self._persists((x,), 1000) else 0.0

    def _wrong(self) -> tuple[WrongGradient, ...]:
        """All tensors whose gradient is wrong, the worst first."""
        errors = {x: self._is_wrong(x) for x in self.gradients}
        found = sorted((x for x in errors if errors[x]), key=lambda x: -errors[x])
        if not found:
            return (WrongGradient("all tensors together", math.nan),)
        return tuple(WrongGradient(x, errors[x]) for x in found)

    def _answer(self, error: float, wrong: Sequence[WrongGradient]) -> GradientCheck:
        hidden = [x for x in self.problem.gradients if x not in self.gradients]
        left = [
            f"{counted(len(hidden), 'gradient')} that no tensor of the graph holds ('{x}')"
            for x in hidden[:1]
        ]
        single = tuple(sorted({*self.pair.single[0], *self.pair.single[1]}))
        return GradientCheck(
            verdict=DIFFERS if wrong else EQUAL,
            error=error,
            tolerance=self.measure.tolerance,
            gradients=len(self.gradients),
            directions=self.directions,
            precision=self.pair.precision,
            single=single,
            draws=self.draws,
            dims=self.at.chosen,
            not_checked=tuple(left),
            wrong=tuple(wrong),
        )
