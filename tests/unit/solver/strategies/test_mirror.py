"""Backward mirroring against its source (gradient.cc of MXNet), worked by hand."""

from collections import deque
from pathlib import Path

import onnx
import pytest

from helpers.models import SAMPLES
from helpers.problems import Case
from helpers.steps import check, problem_of
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.errors import InfeasibleError
from memplan.proto.metadata import node_metadata
from memplan.solver.strategies.builtin import parse_strategy
from memplan.solver.strategies.keepset import step_of
from memplan.solver.strategies.mirror import MirrorGraph, cheap_nodes
from memplan.units import parse_size

SECONDS = 30.0
KIND = "mirror{function=kind}"


def graph_of(case: Case, cheap: str, last: str = "loss") -> MirrorGraph:
    """The graph in which the mirror function accepts ``cheap``."""
    return MirrorGraph(step_of(problem_of(case, 1, last)), {case.place[n] for n in cheap.split()})


def mirrored(case: Case, cheap: str, test: bool = True) -> str:
    """Names of the nodes on the mirror path."""
    return names(case, graph_of(case, cheap).mirrored(test))


def names(case: Case, nodes: object) -> str:
    """Names of nodes, in order."""
    return " ".join(case.ops[n].name for n in sorted(nodes))  # type: ignore[call-overload]


def plan(case: Case, intensive: str, text: str) -> str:
    """The sequence of a strategy, after the checks that every decision must pass."""
    problem = problem_of(case, 1, intensive=intensive)
    decision = parse_strategy(text).solve(problem, SECONDS).decision
    check(problem, decision, case)
    return case.text(decision.sequence)


def layer(gradient_reads: str, act: int = 4) -> Case:
    """x → m (a product) → c (its activation) → n (a product) → loss. The gradient of c reads what
    is named; that of n reads its own input c, as products do."""
    return Case(f"""
        m(x):4$9  c(m):{act}  n(c):4$9  loss(n)!  gn(loss c):4  gc(gn {gradient_reads}):4
        gm(gc):4!""")


# --- What is on the path -------------------------------------------------------------------------

# A step, what its mirror function accepts, and what of it is on the path.
MIRRORED: dict[str, tuple[Case, str, str]] = {
    # GELU: m is stored anyway. Off the path, c would be allocated, and m not be released.
    "its gradient reads its input": (layer("m"), "c loss", "c"),
    # ReLU: c instead of m is as many bytes, and no recomputation.
    "its gradient reads its output": (layer("c"), "c loss", ""),
    "a byte more than its input": (layer("c", act=5), "c loss", "c"),
    "a byte less": (layer("c", act=3), "c loss", ""),
    # m's four bytes are released by c and d together; c alone would be worth it at any size of d.
    "a group that is no larger": (
        Case("m(x):4  c(m):2  d(m):2  n(c d)  loss(n)!  g(loss c d):4!"),
        "c d",
        "",
    ),
    "a group stays as a whole": (
        Case("m(x):4  c(m):2  d(m):3  n(c d)  loss(n)!  g(loss c d):4!"),
        "c d",
        "c d",
    ),
    # c leaves (4 for 4), then e may: its input c is released (nobody else reads it) for e's two.
    # f is four times as large as its input: it stays.
    "the frontier moves on behind what has left": (
        Case("m(x):4  c(m):4  e(c):2  f(e):8  n(f)  loss(n)!  g(loss f):4!"),
        "c e f",
        "f",
    ),
    # c stays (m is read by the gradient); so e, which would release more than it takes, does too.
    "what waits for one on the path": (
        Case("m(x):4  c(m):4  e(c)  n(e):4  loss(n)!  g(loss e m):4!"),
        "c e",
        "c e",
    ),
}


@pytest.mark.parametrize(("case", "cheap", "found"), MIRRORED.values(), ids=MIRRORED)
def test_what_is_mirrored(case: Case, cheap: str, found: str) -> None:
    assert mirrored(case, cheap) == found
    again = f"loss {found} " if found else "loss "
    assert again in plan(case, "m n", KIND)


def test_bytes_that_are_allocated_and_released() -> None:
    for reads, released in (("m", 0), ("c", 4)):
        case = layer(reads)
        edge = {case.place["c"]}
        assert graph_of(case, "c loss").storage(edge, edge)[1] == released


def test_without_the_storage_test_all_that_is_cheap_is_mirrored() -> None:
    case = layer("c")
    assert mirrored(case, "c loss", test=False) == "c loss"
    # The loss is a graph output: it is there anyway.
    assert plan(case, "m n", "mirror{function=kind,test=0}") == "m c n loss c gn gc gm"


# --- Subgraphs and groups ------------------------------------------------------------------------


def test_branches_that_read_the_same_belong_together() -> None:
    # The source's example: D feeds A, B and C; from head A alone only D → A would be seen.
    case = Case("p(x):4  D(p):4  A(D):4  B(D):4  C(D):4  s(A B)  loss(s C)!  g(loss D)!")
    graph = graph_of(case, "D")
    waiting: deque[int] = deque()
    assert names(case, graph.subgraph(case.place["A"], waiting)) == "D A B C"
    assert names(case, set(waiting)) == "p"
    alone = graph_of(case, "")
    assert names(case, alone.subgraph(case.place["s"], deque())) == "s"


def test_a_cheap_branch_is_followed_to_its_head() -> None:
    case = Case("p(x):4  d(p):4  A(d):4  b(d):4  c(b):4  H(c):4  loss(A H)!  g(loss d)!")
    graph = graph_of(case, "d b c")
    assert names(case, graph.subgraph(case.place["A"], deque())) == "d A b c H"


def test_groups_are_closed_under_shared_inputs() -> None:
    # The source's example: A and B read D, B and C read E.
    case = Case("""
        D(x):4  E(x):4  A(D):4  B(D E):4  C(E):4  F(x):4  L(F):4  s(A B C L)  loss(s)!
        g(loss A B C L)!""")
    graph = graph_of(case, "A B C L")
    edge = set(graph.frontier(graph.nodes))
    assert names(case, edge) == "A B C L"
    assert names(case, graph.group(case.place["A"], edge)) == "A B C"
    assert names(case, graph.group(case.place["L"], edge)) == "L"


# --- The mirror function -------------------------------------------------------------------------


def test_cheap_by_cost_per_byte() -> None:
    case = Case("m(x):2$40  a(m):4$4  b(a):4$8  c(b):4$16  r(c):4?  loss(r):4$4!  g(loss)!")
    # Seconds per byte: 20, 1, 2, 4, 0.25, 1; the median is 1.5.
    step = step_of(problem_of(case, 1, intensive="b"))
    assert names(case, cheap_nodes(step, "cost", 1)) == "a loss"
    assert names(case, cheap_nodes(step, "cost", 2)) == "a b loss"
    assert names(case, cheap_nodes(step, "cost", 14)) == "m a b c loss"
    assert names(case, cheap_nodes(step, "kind", 1)) == "m a c loss"


def test_a_dropout_is_never_on_the_path() -> None:
    # A rebuild rule makes it again, not the node; as in MXNet, it is stored.
    case = Case("""
        a(x):4  drop(a):4?+mask:1  loss(drop)  b(loss drop mask)  end(b a)!
        cast(mask):4$0.5+rebuilds=cast+behind=drop  again(cast a):4$0.5+rebuilds=drop""")
    step = step_of(problem_of(case, 1))
    assert "drop" not in names(case, cheap_nodes(step, "kind", 1)).split()


# --- On graphs -----------------------------------------------------------------------------------


def test_clones_and_what_they_are_of_are_tagged(tmp_path: Path) -> None:
    options = RewriteOptions(parse_size("100%"), strategy="mirror", optimize="none", passes="none")
    result = rewrite(SAMPLES / "mlp_adamw.onnx", options, tmp_path / "out.onnx")
    assert result.plan.clones > 0
    assert result.timeline.peak_bytes < result.original.timeline.peak_bytes
    found = {n.name: node_metadata(n) for n in onnx.load(tmp_path / "out.onnx").graph.node}
    tagged = {name for name, values in found.items() if values.get("memplan.mirror_stage") == "1"}
    clones = {name for name, values in found.items() if values.get("memplan.role") == "recompute"}
    assert tagged == clones | set(result.plan.recomputed)
    assert len(clones) == result.plan.clones


def test_a_plan_that_costs_memory_is_refused() -> None:
    options = RewriteOptions(
        parse_size("100%"), strategy="mirror{function=kind,test=0}", optimize="none", passes="none"
    )
    with pytest.raises(InfeasibleError, match="strategy 'mirror' reaches a peak of"):
        rewrite(SAMPLES / "lstm.onnx", options, dry_run=True)
