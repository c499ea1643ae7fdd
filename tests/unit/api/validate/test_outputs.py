"""Whether two models gave the same: the judgement over draws, runs and noise."""

from pathlib import Path
from typing import Any

import numpy as np

from helpers.graphs import graph_of, open_text
from memplan.api.validate.bench import Ran
from memplan.api.validate.cuda import scattered_sums
from memplan.api.validate.outputs import Judgement, judge
from memplan.runtime.archive import digests, save_arrays
from memplan.runtime.messages import Measurement

MODEL = open_text("g (float[4] x) => (float[4] p, float[4] q) { p = Neg(x)  q = Exp(x) }")
X = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
Arrays = list[np.ndarray]


def ran(folder: Path, label: str, *draws: Arrays, second: Arrays | None = None) -> Ran:
    """A model that gave these outputs, ``p`` and ``q``, and in its second run ``second``."""
    paths = []
    for k, outputs in enumerate(draws):
        paths.append(folder / f"{label}.{k}.npz")
        save_arrays(paths[-1], {f"o{i}": value for i, value in enumerate(outputs)})
    bits = digests(second if second is not None else draws[0])
    measured = Measurement(("p", "q"), (), 0, 0, 0, 0, second_run_digests=bits)
    return Ran(measured, tuple(paths))


class Bench:
    """Runs the original again with the result that was given."""

    def __init__(self, again: Ran | None) -> None:
        self.again = again

    def run(self, *_: Any, **__: Any) -> Ran:
        assert self.again is not None, "there was no reason to run it again"
        return self.again


def judged(first: Ran, second: Ran, again: Ran | None = None) -> Judgement:
    return judge(Bench(again), MODEL, "tuned", first, second)  # type: ignore[arg-type]


def test_equal_bits_need_no_further_run(tmp_path: Path) -> None:
    found = judged(ran(tmp_path, "a", [X, X], [2 * X, X]), ran(tmp_path, "b", [X, X], [2 * X, X]))
    assert (found.equality, found.findings, found.later_bits_equal) == ("bitwise", (), True)


def test_the_second_draw_counts(tmp_path: Path) -> None:
    first = ran(tmp_path, "a", [X, X], [X, X])
    found = judged(first, ran(tmp_path, "b", [X, X], [X, 2 * X]), first)
    assert found.equality == "different"
    assert found.findings == ("the outputs differ: q by 1 relative in draw 2",)


def test_the_noise_of_an_output_excuses_that_output_alone(tmp_path: Path) -> None:
    first = ran(tmp_path, "a", [X, X])
    noisy = ran(tmp_path, "again", [X * 1.5, X])
    assert judged(first, ran(tmp_path, "b", [X * 1.6, X]), noisy).equality == "tolerance"
    found = judged(first, ran(tmp_path, "c", [X, X * 1.6]), noisy)
    assert found.equality == "different"
    assert "the original differs from itself from run to run in 1 output" in found.notes[0]
    assert judged(first, ran(tmp_path, "d", [X * 4, X]), noisy).equality == "different"


def test_last_bits_are_within_tolerance(tmp_path: Path) -> None:
    first = ran(tmp_path, "a", [X, X])
    found = judged(first, ran(tmp_path, "b", [np.nextafter(X, np.float32(0)), X]), first)
    assert (found.equality, found.findings) == ("tolerance", ())
    assert not found.later_bits_equal


def test_the_second_run_of_a_session_counts(tmp_path: Path) -> None:
    first = ran(tmp_path, "a", [X, X])
    second = ran(tmp_path, "b", [X, X], second=[X, 2 * X])
    found = judged(first, second, first)
    assert found.equality == "different"
    assert found.findings[0].endswith("though not in the first: q")
    noisy = ran(tmp_path, "again", [X, X], second=[X, 3 * X])
    assert judged(first, second, noisy).equality == "bitwise"
    assert judged(first, second, noisy).notes[-1].endswith("bit by bit in these: q")


def test_an_output_is_vacuous_only_if_every_draw_is(tmp_path: Path) -> None:
    zero, five = 0 * X, 0 * X + 5
    first = ran(tmp_path, "a", [zero, five], [X, five])
    assert judged(first, first).vacuous == {"q": "always 5.0"}
    first = ran(tmp_path, "b", [zero * np.nan, five])
    assert judged(first, first).vacuous == {"p": "all NaN"}


def test_sums_at_indices_excuse_what_they_lead_to_and_nothing_else() -> None:
    graph = graph_of(
        """g (float[4] x, int64[4] at) => (float[4] p, float[4] q, float[4] r) {
        s = ScatterElements <axis = 0, reduction = "add"> (x, at, x)
        moved = ScatterElements <axis = 0> (x, at, x)
        p = Neg(s) q = Exp(x) r = Neg(moved)
    }"""
    )
    assert scattered_sums(graph) == {"s", "p"}
