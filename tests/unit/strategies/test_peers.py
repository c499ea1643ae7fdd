"""The published peers: hand-worked decisions, and plans that are what they claim to be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.models import SAMPLES
from helpers.problems import Case, Op
from helpers.steps import chain, check, problem_of, random_step
from helpers.training_steps import saved_step, with_dropout
from memplan.api.rewrite.run import RewriteOptions, rewrite
from memplan.errors import InfeasibleError, UsageError
from memplan.ir.graph import Phase
from memplan.simulate.opened import open_model
from memplan.solver.evaluate import IMPOSSIBLE
from memplan.solver.maxflow import Network
from memplan.solver.problem import Ints
from memplan.solver.search import anytime as search
from memplan.strategies.builtin import parse_strategy
from memplan.strategies.dtr import Dtr
from memplan.strategies.dtr_machine import GivenUp, Machine, Neighbours, _Classes, _Frame
from memplan.strategies.keepset import judge, step_of, without_unread
from memplan.strategies.knapsack import Knapsack, Packing, spread
from memplan.strategies.links import boundary, links_of
from memplan.strategies.mincut import MinCut, StashGraph
from memplan.strategies.segments import Segments, _counts, _Forward
from memplan.units import parse_size

SECONDS = 30.0
PEERS = (
    "segments",
    "segments{count=3}",
    "dtr",
    "dtr{heuristic=h_local}",
    "knapsack",
    "knapsack{budget=50}",
    "knapsack{cut=0}",
    "min-cut",
    "min-cut{ban=0}",
)


@pytest.fixture(scope="module", autouse=True)
def machine_code() -> None:
    """Compile before any time limit runs."""
    search.warm_up()


def embeds(longer: Ints, shorter: Ints) -> bool:
    """Whether ``shorter`` stands in ``longer``, in order."""
    rest = iter(longer.tolist())
    return all(node in rest for node in shorter.tolist())


# --- Segments --------------------------------------------------------------------------------


def test_two_segments_of_a_chain() -> None:
    # Kept: f4, which crosses the cut, and the last segment f5..f8; f1..f3 run again before b3.
    # At b8: f4..f8, the loss and b8 itself are 7 bytes; without recomputation 10.
    case = chain(8)
    problem = problem_of(case, 7)
    assert case.peak(case.order) == 10
    decision = Segments(count=2).solve(problem, SECONDS).decision
    assert case.text(decision.sequence) == (
        "f1 f2 f3 f4 f5 f6 f7 f8 loss b8 b7 b6 b5 b4 f1 f2 f3 b3 b2 b1"
    )
    assert (decision.peak, decision.extra_cost, decision.feasible) == (7, 3.0, True)


@pytest.mark.parametrize(
    ("length", "budget", "extra", "peak"),
    [
        (9, 11, 0.0, 11),  # fits as it is
        (9, 8, 3.0, 8),  # two segments: f4 and f5..f9 stay
        (9, 7, 4.0, 7),  # three: f3, f6 and f7..f9 stay
        (9, 6, 4.0, 7),  # more cuts keep more: seven bytes are the least
    ],
)
def test_a_sweep_takes_the_cheapest_count_that_fits(
    length: int, budget: int, extra: float, peak: int
) -> None:
    case = chain(length)
    decision = Segments().solve(problem_of(case, budget), SECONDS).decision
    assert (decision.peak, decision.extra_cost, decision.feasible) == (peak, extra, peak <= budget)


def test_cuts_are_where_fewest_bytes_cross() -> None:
    # f4 is thin; the equal share would be behind f3.
    case = Case(
        Op("f1", "x", 4),
        Op("f2", "f1", 4),
        Op("f3", "f2", 4),
        Op("f4", "f3", 1),
        Op("f5", "f4", 4),
        Op("f6", "f5", 4),
        Op("loss", "f6"),
        *(Op(f"b{k}", f"f{k} " + (f"b{k + 1}" if k < 6 else "loss")) for k in range(6, 0, -1)),
        resident="x",
    )
    forward = _Forward(step_of(problem_of(case, 1)))
    assert forward.crossing.tolist() == [0, 4, 4, 4, 1, 4, 4]
    assert forward.cuts(2) == [4]
    assert {case.ops[root - 1].name for root in forward.kept([4])} == {"f4", "f5", "f6", "loss"}


def test_a_skip_across_a_cut_is_kept() -> None:
    case = Case(
        Op("s", "x", 2),
        Op("f1", "s"),
        Op("f2", "f1"),
        Op("f3", "f2"),
        Op("f4", "f3 s"),
        Op("loss", "f4"),
        Op("b4", "loss f3 s"),
        Op("b3", "b4 f2"),
        Op("b2", "b3 f1"),
        Op("b1", "b2 s", output=True),
        resident="x",
    )
    forward = _Forward(step_of(problem_of(case, 1)))
    assert case.tensors["s"] in forward.kept([2])
    assert case.tensors["f1"] in forward.kept([2])
    assert case.tensors["f1"] not in forward.kept([3])


def test_counts_go_on_beyond_the_ones_tried_one_by_one() -> None:
    assert _counts(1) == []
    assert _counts(4) == [2, 3, 4]
    assert _counts(100)[-3:] == [60, 75, 93]


# --- Keep sets -------------------------------------------------------------------------------


def test_what_is_dropped_comes_back_before_its_first_reader_only() -> None:
    case = chain(4)
    step = step_of(problem_of(case, 1))
    assert [case.ops[root - 1].name for root in step.stash] == ["f1", "f2", "f3", "f4", "loss"]
    sequence = step.sequence_for({case.tensors[name] for name in ["f2", "f4", "loss"]})
    assert case.text(sequence) == "f1 f2 f3 f4 loss b4 f3 b3 b2 f1 b1"


def test_what_nobody_reads_is_not_run() -> None:
    # late is read in the backward part alone: dropped, its first run would be held to the end.
    case = Case(
        Op("late", "x", 4),
        Op("f", "x", 4),
        Op("loss", "f"),
        Op("b", "loss f"),
        Op("end", "b late", output=True),
        resident="x",
    )
    problem = problem_of(case, 8)
    twice = case.sequence("late f loss b late end")
    assert case.text(without_unread(problem, twice)) == "f loss b late end"
    problem.movable[case.place["late"]] = False
    assert without_unread(problem, twice).tolist() == twice.tolist()
    problem.movable[:] = True
    problem.protected[case.place["late"]] = True
    assert without_unread(problem, twice).tolist() == twice.tolist()


def test_of_several_useless_runs_one_stays() -> None:
    case = Case(Op("a", "x"), Op("loss", "x"), Op("b", "loss", output=True), resident="x")
    sequence = case.sequence("a a a loss b")
    assert case.text(without_unread(problem_of(case, 9), sequence)) == "a loss b"


def test_without_forward_nodes_the_boundary_peers_refuse() -> None:
    case = chain(4)
    unknown = replace(problem_of(case, 4), forward=None)
    for name in ("segments", "knapsack", "min-cut"):
        with pytest.raises(UsageError, match="no forward nodes are known"):
            parse_strategy(name).solve(unknown, SECONDS)
    with pytest.raises(UsageError):
        boundary(replace(unknown, forward=np.zeros(len(case.ops), np.bool_)))
    assert parse_strategy("dtr").solve(unknown, SECONDS).decision.sequence is not None


def test_a_view_that_stands_late_does_not_move_the_boundary() -> None:
    case = Case(
        Op("a", "x", 4),
        Op("loss", "a"),
        Op("b", "loss"),
        Op("v", "a", 0, 0.0, "view"),
        Op("end", "v b", output=True),
        resident="x",
    )
    problem = replace(
        case.problem(9), forward=np.asarray([True, True, False, True, False]), intensive=None
    )
    assert boundary(problem) == 2
    step = step_of(problem)
    assert step.stash == [case.tensors["a"], case.tensors["loss"]]
    assert case.text(step.sequence_for(set())) == "a loss a loss b v end"


def test_storages_are_known_by_what_they_were_allocated_for() -> None:
    case = Case(
        Op("a", "x", 4),
        Op("v", "a", 0, 0.0, "view"),
        Op("w", "v", 0, 0.0, "view"),
        Op("o", "w", 4, 0.0, "view", output=True),
        Op("u", "x", 0, 0.0, "view"),
        Op("n", "a", 4),
        Op("drop", "n", 4, again=False),
        Op("end", "o drop u", output=True),
        resident="x",
    )
    links, place = links_of(case.problem(9)), case.tensors
    roots = {name: links.root[place[name]] for name in ["a", "v", "w", "o", "u", "n"]}
    assert roots == {
        "a": place["a"],
        "v": place["a"],
        "w": place["a"],
        "o": place["o"],  # an output is a copy
        "u": place["x"],
        "n": place["n"],
    }
    assert links.fixed == {place[name] for name in ("x", "o", "drop", "end")}
    assert links.nbytes[place["x"]] == 0


def test_a_rebuild_rule_stands_in_for_what_must_not_run_again() -> None:
    case = Case(
        Op("a", "x", 4),
        Op("drop", "a", 4, again=False, more=(("mask", 1),)),
        Op("loss", "drop"),
        Op("b", "loss drop mask"),
        Op("end", "b a", output=True),
        Op("cast", "mask", 4, 0.5, rebuilds="cast", behind="drop"),
        Op("again", "cast a", 4, 0.5, rebuilds="drop"),
        resident="x",
    )
    step = step_of(problem_of(case, 1))
    kept = {case.tensors["a"], case.tensors["loss"]}
    assert case.text(step.sequence_for(kept)) == "a drop loss cast again b end"


# --- Knapsack --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "weights", "room", "best"),
    [
        ([1.0, 5.0, 3.0], [4, 4, 2], 6, [1, 2]),
        ([1.0, 5.0, 3.0], [4, 4, 2], 10, [0, 1, 2]),
        ([1.0, 5.0, 3.0], [4, 4, 2], 5, [1]),
        ([1.0, 5.0, 3.0], [4, 4, 2], 3, [2]),
        ([1.0, 5.0, 3.0], [4, 4, 2], 1, []),
        ([6.0, 10.0, 12.0], [1, 2, 3], 5, [1, 2]),  # by value per weight it would be 0 and 1
        ([2.0, 9.0], [0, 11], 10, [0]),  # nothing weighs nothing; too heavy for any room
    ],
)
def test_a_knapsack(values: list[float], weights: list[int], room: int, best: list[int]) -> None:
    assert Packing(values, weights, most=10).chosen(room) == best


def test_a_knapsack_against_all_subsets() -> None:
    draw = np.random.default_rng(5)
    for _ in range(20):
        values = draw.integers(1, 30, 8).astype(float)
        weights = draw.integers(0, 9, 8)
        packing = Packing(values.tolist(), weights.tolist(), most=20)
        subsets = (np.arange(256)[:, None] >> np.arange(8)) & 1
        for room in (0, 7, 20):
            best = (subsets @ values)[subsets @ weights <= room].max()
            chosen = packing.chosen(room)
            assert values[chosen].sum() == best
            assert weights[chosen].sum() <= room


def test_shares_are_spread_from_the_start() -> None:
    shares = spread(40, 10_000)
    assert sorted(shares) == [250 * k for k in range(41)]
    assert shares[:4] == [0, 10_000, 5000, 2500]


SIZES = Case(
    Op("a", "x", 4, 1.0),
    Op("b", "a", 4, 5.0),
    Op("c", "b", 2, 3.0),
    Op("loss", "c", 0),
    Op("gc", "loss c b", 2),
    Op("gb", "gc a", 4),
    Op("ga", "gb a", 4, output=True),
    resident="x",
)


def test_the_plain_knapsack_keeps_what_is_worth_most() -> None:
    # Of ten bytes of stash six may stay: b and c, worth eight seconds; a runs again.
    problem = problem_of(SIZES, 10)
    assert SIZES.peak(SIZES.order) == 12
    decision = Knapsack(budget=60, cut=0).solve(problem, SECONDS).decision
    assert SIZES.text(decision.sequence) == "a b c loss gc a gb ga"
    assert decision.extra_cost == 1.0


def test_a_sweep_takes_the_cheapest_share_that_fits() -> None:
    for budget in (12, 10, 9):
        swept = Knapsack(cut=0).solve(problem_of(SIZES, budget), SECONDS).decision
        each = [
            Knapsack(budget=share, cut=0).solve(problem_of(SIZES, budget), SECONDS).decision
            for share in range(1, 101)
        ]
        costs = [decision.extra_cost for decision in each if decision.feasible]
        assert swept.feasible == bool(costs)
        assert swept.extra_cost == min(costs, default=swept.extra_cost)


# --- Minimum cut -----------------------------------------------------------------------------


def test_the_maximum_flow_of_a_textbook_network() -> None:
    # Cormen, Leiserson, Rivest, Stein: 'Introduction to Algorithms', figure 26.1: 23.
    network = Network(6)
    for source, target, capacity in (
        (0, 2, 16),
        (0, 3, 13),
        (3, 2, 4),
        (2, 4, 12),
        (4, 3, 9),
        (3, 5, 14),
        (5, 4, 7),
        (4, 1, 20),
        (5, 1, 4),
    ):
        network.connect(source, target, capacity)
    assert network.saturate() == 23
    assert network.source_side() == {0, 2, 3, 5}


def test_a_flow_that_gets_late_is_no_answer() -> None:
    network = Network(3)
    network.connect(0, 2, 1)
    network.connect(2, 1, 1)
    assert network.saturate(lambda: True) is None


def test_flows_against_cuts_by_brute_force() -> None:
    draw = np.random.default_rng(2)
    for _ in range(400):
        edges = [tuple(draw.integers(0, 7, 2).tolist()) for _ in range(16)]
        rooms = draw.integers(0, 9, 16).tolist()
        network = Network(7)
        for (a, b), room in zip(edges, rooms, strict=True):
            network.connect(a, b, room)
        cuts = [
            sum(
                room
                for (a, b), room in zip(edges, rooms, strict=True)
                if a in side and b not in side
            )
            for side in ({0} | {2 + k for k in range(5) if mask >> k & 1} for mask in range(32))
        ]
        assert network.saturate() == min(cuts)


WIDE = Case(  # m is a matrix product, r its activation, e a wide result: backward reads r and e
    Op("m", "x", 400, 9.0),
    Op("r", "m", 400),
    Op("e", "r", 1000),
    Op("loss", "e", 0, output=True),
    Op("ge", "loss e", 1000),
    Op("gr", "ge r", 400, output=True),
    resident="x",
)


@pytest.mark.parametrize(
    ("ban", "kept", "plan"),
    [
        (1, "r", "m r e loss e ge gr"),
        # Nothing need be kept: all of it can be made from the input again.
        (0, "", "m r e loss m r e ge gr"),
    ],
)
def test_the_cut_of_fewest_bytes(ban: int, kept: str, plan: str) -> None:
    problem = problem_of(WIDE, 1, intensive="m")
    graph = StashGraph(step_of(problem))
    assert graph.expensive() == {WIDE.place["m"]}
    banned = graph.expensive() if ban else set[int]()
    cut = graph.cut(banned, lambda: False)
    assert cut is not None
    # The loss has no bytes.
    assert cut - {WIDE.tensors["loss"]} == {WIDE.tensors[name] for name in kept.split()}
    decision = MinCut(ban=ban).solve(problem, SECONDS).decision
    assert WIDE.text(decision.sequence) == plan
    assert not decision.feasible


def test_a_reduction_is_not_run_again() -> None:
    case = Case(
        Op("f", "x", 100),
        Op("mean", "f", 10),
        Op("n", "f mean", 100),
        Op("loss", "n", 25),
        Op("b", "loss n mean", 100, output=True),
        resident="x",
    )
    assert StashGraph(step_of(problem_of(case, 1))).expensive() == {case.place["mean"]}


def test_what_cannot_run_again_is_cut_behind() -> None:
    case = Case(
        Op("noise", "x", 100, again=False),
        Op("f", "noise", 300),
        Op("loss", "f", 0),
        Op("b", "loss f", 300, output=True),
        resident="x",
    )
    cut = StashGraph(step_of(problem_of(case, 1))).cut(set(), lambda: False)
    assert cut is not None
    assert case.tensors["noise"] in cut
    assert case.tensors["f"] not in cut


def test_the_knapsack_frees_banned_nodes_that_do_not_fit() -> None:
    # m1 and m2 are banned; a share for one of them keeps the dearer one.
    case = Case(
        Op("m1", "x", 400, 2.0),
        Op("m2", "m1", 400, 7.0),
        Op("loss", "m2", 0),
        Op("g2", "loss m2 m1", 400),
        Op("g1", "g2 m1", 400, output=True),
        resident="x",
    )
    problem = problem_of(case, 1, intensive="m1 m2")
    plans = {
        share: case.text(Knapsack(budget=share).solve(problem, SECONDS).decision.sequence)
        for share in (40, 60, 100)
    }
    assert plans == {
        40: "m1 m2 loss m1 m2 g2 g1",
        60: "m1 m2 loss m1 g2 g1",
        100: "m1 m2 loss g2 g1",
    }


def test_the_whole_share_is_the_minimum_cut() -> None:
    # Both products together are more than the whole (their sum), but they are not run again.
    case = Case(
        Op("m1", "x", 400, 2.0),
        Op("m2", "x", 400, 7.0),
        Op("sum", "m1 m2", 500),
        Op("loss", "sum", 0, output=True),
        Op("g", "loss sum", 400, output=True),
        resident="x",
    )
    problem = problem_of(case, 1, intensive="m1 m2")
    whole = Knapsack(budget=100).solve(problem, SECONDS).decision
    assert whole.sequence.tolist() == case.order.tolist()
    assert MinCut().solve(problem, SECONDS).decision.sequence.tolist() == case.order.tolist()
    assert Knapsack(budget=99).solve(problem, SECONDS).decision.extra_cost > 0


# --- DTR -------------------------------------------------------------------------------------


@pytest.mark.parametrize("heuristic", ["h_eq", "h_local"])
@pytest.mark.parametrize("budget", range(5, 11))
def test_dtr_keeps_its_budget_on_a_chain(heuristic: str, budget: int) -> None:
    case = chain(12)
    problem = problem_of(case, budget)
    decision = Dtr(heuristic).solve(problem, SECONDS).decision
    check(problem, decision, case)
    assert decision.feasible
    assert decision.extra_cost >= 12 + 2 - budget  # every byte less is one more to make again


@pytest.mark.parametrize(
    ("sizes", "costs", "read", "budget", "victim"),
    [
        ((3, 3), (5.0, 5.0, 5.0), "x", 11, "a"),  # a is staler
        ((3, 3), (5.0, 5.0, 5.0), "a", 11, "b"),  # a has been read meanwhile
        ((3, 3), (9.0, 1.0, 9.0), "x", 11, "b"),  # b is cheaper
        ((3, 4), (5.0, 5.0, 45.0), "x", 12, "b"),  # b is larger, and they are nearly as stale
    ],
)
def test_dtr_evicts_what_is_stale_large_and_cheap(
    sizes: tuple[int, int], costs: tuple[float, float, float], read: str, budget: int, victim: str
) -> None:
    # When wide runs there is no room for both a and b; c is in use.
    case = Case(
        Op("a", "x", sizes[0], costs[0]),
        Op("b", "x", sizes[1], costs[1]),
        Op("c", "x", 3, costs[2]),
        Op("n", read, 0),
        Op("wide", "c", 3),
        Op("w", "wide"),
        Op("join", "w a b c n", output=True),
        resident="x",
    )
    problem = case.problem(budget)
    run = Machine(problem, links_of(problem), budget, None, np.inf).run()
    assert case.text(run) == f"a b c n wide w {victim} join"


@pytest.mark.parametrize(("equal", "again"), [(False, "e a"), (True, "b")])
def test_what_is_gone_beside_a_storage_makes_it_dearer_to_h_eq(equal: bool, again: str) -> None:
    # a alone is cheaper than b, but e, of which it is made, is gone when wide needs room.
    case = Case(
        Op("e", "x", 3, 4.0),
        Op("a", "e", 3, 4.0),
        Op("b", "x", 3, 6.0),
        Op("c", "x", 3, 45.0),
        Op("wide", "c", 5),
        Op("w", "wide"),
        Op("join", "w a b c", output=True),
        resident="x",
    )
    problem = case.problem(13)
    links = links_of(problem)
    run = Machine(problem, links, 13, Neighbours.of(links) if equal else None, np.inf).run()
    assert case.text(run) == f"e a b c wide w {again} join"


def test_evicted_neighbours_count_once() -> None:
    # 0 - 1 - 2 - 3 in a row, 4 beside 1 and 3; costs 1, 2, 4, 8, 16.
    pairs = {0: [1], 1: [0, 2, 4], 2: [1, 3], 3: [2, 4], 4: [1, 3]}
    table = np.full((6, 3), 5, np.int64)
    for root, near in pairs.items():
        table[root, : len(near)] = near
    classes = _Classes(Neighbours(table), np.asarray([1.0, 2.0, 4.0, 8.0, 16.0]))

    def around() -> list[float]:
        return classes.around(np.arange(5)).tolist()

    classes.evicted(1)
    assert around() == [2.0, 0.0, 2.0, 0.0, 2.0]
    classes.evicted(3)  # not next to 1: a class of its own; 2 and 4 see both
    assert around() == [2.0, 0.0, 10.0, 8.0 - 8.0, 10.0]
    classes.evicted(2)  # joins them
    assert around()[4] == 14.0
    classes.made(3)  # leaves, but nothing is split
    assert around()[4] == 6.0
    assert around()[0] == 6.0
    classes.made(1)
    classes.made(2)
    assert around() == [0.0] * 5


def test_a_run_that_cannot_go_on_says_so() -> None:
    problem = problem_of(chain(6), 2)
    with pytest.raises(GivenUp):
        Machine(problem, links_of(problem), 2, None, np.inf).run()
    with pytest.raises(GivenUp):  # no time left
        Machine(problem, links_of(problem), 99, None, time.perf_counter() - 1).run()


def test_dtr_does_not_give_back_what_an_evicted_tensor_is_made_from() -> None:
    # The program reads mask last at s, but a has been evicted and can only be made from it.
    case = Case(
        Op("mask", "x", 1, again=False),
        Op("a", "mask", 3),
        Op("n", "a"),
        Op("p", "n", 4),
        Op("q", "p", 4),
        Op("s", "q mask"),
        Op("join", "a s", output=True),
        resident="x",
    )
    decision = Dtr().solve(case.problem(9), SECONDS).decision
    assert case.text(decision.sequence) == "mask a n p q s a join"
    assert decision.feasible


def test_dtr_does_not_evict_what_cannot_be_made_any_more() -> None:
    # a is the cheapest to evict, but mask, of which it was made, has been given back; so z goes.
    case = Case(
        Op("mask", "x", 1, again=False),
        Op("a", "mask", 3),
        Op("z", "x", 3, 50.0),
        Op("n", "a mask"),
        Op("p", "n", 4),
        Op("q", "p", 4),
        Op("r", "q"),
        Op("join", "a z r", output=True),
        resident="x",
    )
    problem = case.problem(11)
    run = Machine(problem, links_of(problem), 11, None, np.inf).run()
    assert case.text(run) == "mask a z n p q r z join"
    with pytest.raises(GivenUp):
        Machine(problem, links_of(problem), 8, None, np.inf).run()


def test_dtr_knows_of_outputs_that_overwrite_an_input() -> None:
    case = Case(
        Op("a", "x", 4), Op("r", "a", 4, 1.0, "inplace"), Op("end", "r", output=True), resident="x"
    )
    problem = case.problem(5)
    run = Machine(problem, links_of(problem), 5, None, np.inf).run()
    assert run.tolist() == case.order.tolist()
    assert case.peak(run) == 5


def test_dtr_does_not_evict_what_waits_for_the_rest() -> None:
    # join has u and lacks f, which is made from u, and e. When e needs room, g must go, not u.
    case = Case(
        Op("u", "x", 3),
        Op("e", "x", 3),
        Op("f", "u", 3),
        Op("wide", "x", 11),
        Op("w", "wide"),
        Op("g", "x", 3, 100.0),
        Op("h", "u w"),
        Op("join", "u e f h"),
        Op("end", "g join", output=True),
        resident="x",
    )
    problem = case.problem(12)
    run = Machine(problem, links_of(problem), 12, None, np.inf).run()
    assert case.text(run) == "u e f wide w g u h f e join g end"


def test_dtr_runs_again_with_what_its_accounting_wasted() -> None:
    better = 0
    for seed in range(40):
        _, problem = random_step(seed)
        links = links_of(problem)
        try:
            run = Machine(problem, links, problem.budget, Neighbours.of(links), np.inf).run()
        except GivenUp:
            continue
        once, several = judge(problem, run), Dtr().solve(problem, SECONDS).decision
        assert several.feasible >= once.feasible
        if once.feasible:
            assert several.extra_cost <= once.extra_cost
            better += several.extra_cost < once.extra_cost
    assert better > 0


class Watched(Machine):
    """Checks that what a node reads is in memory, and the sum of what is."""

    def _compute(self, frame: _Frame, program: bool) -> None:
        assert all(self.there[t] for t in self.links.reads[frame.node])
        super()._compute(frame, program)
        live = {root for root, is_live in enumerate(self.live) if is_live}
        assert self.memory == sum(self.links.nbytes[root] for root in live)
        assert self.memory <= self.budget


# --- All of them -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PEERS)
def test_plans_of_random_steps_are_what_they_say(name: str) -> None:
    lower = 0
    for seed in range(60):
        case, problem = random_step(seed)
        decision = parse_strategy(name).solve(problem, SECONDS).decision
        check(problem, decision, case)
        lower += decision.peak < case.peak(case.order)
    assert lower > 10  # else nothing was tried


@pytest.mark.parametrize("name", PEERS)
def test_recomputations_that_were_asked_for_stay(name: str) -> None:
    case = chain(8)
    start = "f1 f2 f3 f4 f5 f6 f7 f8 loss b8 b7 b6 b5 b4 b3 f2 b2 b1"
    for budget in (9, 7):
        problem = problem_of(case, budget, start=start, protected="f2")
        decision = parse_strategy(name).solve(problem, SECONDS).decision
        check(problem, decision, case)
        assert decision.sequence.tolist().count(case.place["f2"]) >= 2


@pytest.mark.parametrize("seed", range(20))
def test_the_original_sequence_stands_in_every_plan(seed: int) -> None:
    case, problem = random_step(seed)
    step, draw = step_of(problem), np.random.default_rng(seed)
    for share in (0.0, 0.5, 1.0):
        kept = {root for root in step.stash if draw.random() < share}
        sequence = step.sequence_for(kept)
        assert embeds(sequence, problem.start)
        assert judge(problem, sequence).peak < IMPOSSIBLE
    room = int(0.8 * case.peak(case.order))
    links = links_of(problem)
    for neighbours in (None, Neighbours.of(links)):
        try:
            run = Watched(problem, links, room, neighbours, np.inf).run()
        except GivenUp:
            continue
        assert embeds(run, problem.start)


@pytest.mark.parametrize("name", PEERS)
def test_a_budget_that_holds_changes_nothing(name: str) -> None:
    case = chain(6)
    decision = parse_strategy(name).solve(problem_of(case, 8), SECONDS).decision
    assert decision.sequence.tolist() == case.order.tolist()
    assert (decision.peak, decision.extra_cost, decision.feasible) == (8, 0.0, True)


@pytest.mark.parametrize("name", PEERS)
def test_time_that_is_over_is_respected(name: str) -> None:
    case, problem = random_step(1, 400)
    begin = time.perf_counter()
    decision = parse_strategy(name).solve(problem, 0.0).decision
    assert time.perf_counter() - begin < 2.0
    check(problem, decision, case)


def test_progress_is_told_of_plans_that_fit() -> None:
    told: list[tuple[int, float]] = []
    case = chain(9)
    decision = (
        Segments()
        .solve(problem_of(case, 8), SECONDS, lambda peak, extra: told.append((peak, extra)))
        .decision
    )
    assert told[-1] == (decision.peak, decision.extra_cost / 19)


# --- As strategies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("segments", Segments(0)),
        ("segments{count=4}", Segments(4)),
        ("dtr", Dtr("h_eq")),
        ("dtr{heuristic=h_local}", Dtr("h_local")),
        ("knapsack{budget=30, cut=0}", Knapsack(30, 0)),
        ("min-cut{ban=0}", MinCut(0)),
    ],
)
def test_peers_by_name(text: str, wanted: object) -> None:
    assert parse_strategy(text) == wanted


def test_a_wrong_word_is_explained() -> None:
    with pytest.raises(UsageError) as caught:
        parse_strategy("dtr{heuristic=h_best}")
    assert caught.value.message == "dtr{heuristic=h_best}: there is no such word"
    assert caught.value.hint == "words: h_eq, h_local"


def test_encoding_tells_forward_and_intensive_nodes() -> None:
    from memplan.planning.planner import PlanRequest, prepare
    from memplan.simulate.session import session_kind

    model = open_model(SAMPLES / "unet.onnx")
    count: Callable[..., list[float]] = lambda graph: [1.0] * len(graph.nodes)  # noqa: E731
    request = PlanRequest(model.graph, session_kind("tuned", "cpu"), 0, count)
    assert prepare(request).encoded.problem(1).forward is None
    problem = prepare(replace(request, forward=model.phases.forward)).encoded.problem(1)
    assert problem.forward is not None
    assert problem.intensive is not None
    for node, phase in zip(model.graph.nodes, model.phases.of, strict=True):
        assert problem.forward[node.id] == (phase in (Phase.FORWARD, Phase.LOSS))
        if node.op in ("Conv", "ConvTranspose", "MatMul", "Relu", "Add"):
            assert problem.intensive[node.id] == (node.op not in ("Relu", "Add"))
    assert problem.forward.any()
    assert problem.intensive.any()


@pytest.mark.parametrize("name", [name for name in PEERS if name != "min-cut{ban=0}"])
def test_a_model_rewritten_by_a_peer_passes_every_check(name: str, tmp_path: Path) -> None:
    # The plan is written and simulated by code that knows nothing of planners.
    options = RewriteOptions(parse_size("85%"), strategy=name, optimize="none")
    result = rewrite(saved_step(with_dropout, tmp_path), options, dry_run=True)
    assert result.timeline.peak_with_workspace_bytes <= result.budget_bytes
    assert result.plan.strategy == name.partition("{")[0]
    assert result.plan.clones > 0


def test_a_peer_that_does_not_fit_gives_no_model() -> None:
    # Everything runs again before the first gradient, and is then held as it was.
    options = RewriteOptions(parse_size("85%"), strategy="min-cut{ban=0}", optimize="none")
    with pytest.raises(InfeasibleError, match="no plan found"):
        rewrite(SAMPLES / "unet.onnx", options, dry_run=True)
