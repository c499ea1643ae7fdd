"""Small problems whose nodes may stand in many orders, and what is best for them by brute force."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

import numpy as np

from helpers.problems import Case, Op
from memplan.solver.evaluate import IMPOSSIBLE, evaluate
from memplan.solver.forms import with_makers
from memplan.solver.problem import NONE, Flags, Form, Ints, Problem


def loose_case(seed: int) -> Case:
    """A few nodes that read any of those before them: views, outputs in place, unread and pinned
    outputs, further outputs, workspace and rebuild rules among them."""
    draw = Random(seed)
    length = draw.randint(4, 6)
    ops = [Op("n0", "x", draw.randint(1, 6), float(draw.randint(1, 9)))]
    for k in range(1, length):
        reads = draw.sample(range(k), min(k, draw.choice([1, 1, 2, 2, 3])))
        if draw.random() < 0.5:
            reads = list(dict.fromkeys([k - 1, *reads]))
        like = draw.choice(["", "", "", "view", "inplace"])
        ops.append(
            Op(
                f"n{k}",
                " ".join(f"n{i}" for i in reads) + draw.choice(["", "", " x"]),
                0 if like == "view" else draw.randint(1, 6),
                0.0 if like == "view" else float(draw.randint(1, 9)),
                like,
                workspace=draw.choice([0, 0, 0, 3]),
                inside=draw.choice([0, 0, 0, 0, 2]),
                again=draw.random() > 0.15,
                output=draw.random() < 0.2,
                fleeting=draw.random() < 0.1,
                droppable=draw.random() < 0.3,
                more=((f"m{k}", draw.randint(1, 3)),) if draw.random() < 0.3 else (),
            )
        )
    for op in list(ops):
        for name, _ in op.more:
            if draw.random() < 0.5:
                reader = f"{name} n{draw.randint(0, length - 1)}"
                ops.append(Op(f"r{name}", reader, draw.randint(1, 3), float(draw.randint(1, 5))))
    return _with_rule(ops, draw)


def _with_rule(ops: list[Op], draw: Random) -> Case:
    """Some nodes that must not run again get a rule, which may read anything before them, or what
    they make beside (as a Dropout's mask)."""
    refused = [k for k, op in enumerate(ops) if not (op.again or op.like)]
    if refused and draw.random() < 0.7:
        place = refused[0]
        op = ops[place]
        sources = ["x", *(other.name for other in ops[:place]), *(name for name, _ in op.more)]
        rule = Op(f"{op.name}rule", draw.choice(sources), op.nbytes, float(draw.randint(1, 4)))
        ops.append(replace(rule, rebuilds=op.name))
    return Case(*ops)


@dataclass(frozen=True)
class Asked:
    """A case with all that a rewrite may ask of it: tensors that may be kept in another form, which
    may take no memory and may be one way of two to make them again; state that is written over;
    tensors that stay (``--keep``) or are made again in any case (``--recompute``)."""

    case: Case
    forms: tuple[Form, ...]
    start: Ints
    protected: Flags

    def problem(self, budget: int) -> Problem:
        """The problem for a budget."""
        movable = np.ones(len(self.case.ops), np.bool_)
        case = self.case
        return Problem(
            case.arrays, case.order, budget, self.start, self.protected, movable, forms=self.forms
        )


def asked_case(seed: int) -> Asked:
    """A :func:`loose_case` of which some tensors have other forms, are kept or made again, and
    whose input is written over by a node behind all that read it."""
    draw, case = Random(f"asked {seed}"), loose_case(seed)
    ops = [replace(op, again=False) if draw.random() < 0.1 else op for op in case.ops]
    ruled = {op.rebuilds for op in ops}
    plain = [op for op in ops if not (op.like or op.rebuilds or op.output or op.name in ruled)]
    packed = [draw.choice(large)] if (large := [op for op in plain if op.nbytes > 1]) else []
    if draw.random() < 0.4:
        packed = []
    elif draw.random() < 0.6:
        ops = [replace(op, again=False) if op in packed else op for op in ops]
    nodes = []
    for op in packed:
        encode, decode = _chain(op, draw)
        first = len(ops)
        ops += [*encode, *decode]
        nodes.append((op.name, tuple(range(first, first + len(encode))), len(ops) - 1))
    case = Case(*ops)
    forms = tuple(Form("other", case.tensors[name], *chain) for name, *chain in nodes)
    if draw.random() < 0.5:
        _write_over(case, draw)
    maker = case.arrays.maker.copy()
    for form in forms:
        node = next(k for k, op in enumerate(ops) if case.tensors[op.name] == form.tensor)
        maker[form.tensor] = node if ops[node].again else NONE
    case.arrays = with_makers(case.arrays._replace(maker=maker), forms)
    start, protected = case.order, np.zeros(len(ops), np.bool_)
    again = [k for k in case.order.tolist() if k in case.arrays.maker.tolist()]
    if again and draw.random() < 0.4:
        node = draw.choice(again)
        there = np.append(case.order, node)  # wherever it is: a bound may not count on its place
        if evaluate(case.arrays, there).total.max() < IMPOSSIBLE:
            start, protected[node] = there, True
    return Asked(case, forms, start, protected)


def _chain(op: Op, draw: Random) -> tuple[list[Op], list[Op]]:
    """Nodes that encode a tensor and that decode it, at times with one in between: what is taken
    off a number before it is narrowed and added again, or bytes that are put together."""
    parts = [draw.random() < 0.3 for _ in range(2)]
    small, cost = draw.randint(0, op.nbytes - 1), float(draw.randint(0, 3))
    name, half, wide = f"{op.name}small", f"{op.name}half", f"{op.name}wide"
    pack = Op(name, half if parts[0] else op.name, small, cost, again=False, fleeting=True)
    encode = [Op(half, f"{op.name} x", op.nbytes, 1.0, rebuilds=half, behind=op.name)] * parts[0]
    encode.append(replace(pack, rebuilds=name, behind=op.name))
    decode = [Op(wide, name, op.nbytes, 1.0, rebuilds=wide, behind=op.name)] * parts[1]
    back = Op(f"{op.name}back", wide if parts[1] else name, op.nbytes, float(draw.randint(1, 3)))
    return encode, [*decode, replace(back, rebuilds=op.name)]


def _write_over(case: Case, draw: Random) -> None:
    """Let a node write over the input, behind all that read it or a view of it."""
    arrays = case.arrays
    lying = {case.tensors["x"]}
    for w, t in enumerate(arrays.writes.tolist()):
        if int(arrays.alias_of[w]) in lying and not arrays.pinned[t]:
            lying.add(t)
    readers = [
        node
        for node in case.order.tolist()
        if lying & set(arrays.reads[arrays.read_start[node] : arrays.read_start[node + 1]].tolist())
    ]
    writers = [node for node in case.order.tolist() if node >= max(readers)]
    writer = draw.choice(writers)
    arrays = case.built([(node, writer) for node in readers if node != writer])
    overwriter = np.full(len(arrays.nbytes), NONE, np.int64)
    overwriter[sorted(lying)] = writer
    case.arrays = arrays._replace(overwriter=overwriter)


def every_sequence(case: Case, again: int, forms: Sequence[Form] = ()) -> Iterator[Ints]:
    """Every sequence in every order that dependences allow, with up to ``again`` runs more."""
    arrays = case.arrays
    count, wanted = len(case.ops), set(case.order.tolist())
    makers = {int(node) for node in (*arrays.maker, *arrays.others) if node != NONE}
    makers |= {node for form in forms for node in form.encode}
    reads = [
        [int(t) for t in arrays.reads[arrays.read_start[n] : arrays.read_start[n + 1]]]
        for n in range(count)
    ]
    writes = [
        [int(t) for t in arrays.writes[arrays.write_start[n] : arrays.write_start[n + 1]]]
        for n in range(count)
    ]
    resident = {t for t in range(len(arrays.nbytes)) if arrays.resident[t]}

    def grow(done: list[int], there: frozenset[int], left: int) -> Iterator[Ints]:
        ran = set(done)
        if wanted <= ran:
            yield np.asarray(done, np.int64)
        for node in range(count):
            first = node in wanted and node not in ran
            if not first and (left == 0 or node not in makers):
                continue
            if all(t in there for t in reads[node]):
                more = there | set(writes[node])
                yield from grow([*done, node], more, left if first else left - 1)

    yield from grow([], frozenset(resident), again)


def cheapest_by_peak(
    case: Case, again: int, most: int = 20_000, asked: Asked | None = None
) -> dict[int, float]:
    """Peak → the least extra cost of the sequences tried that reach it, and do as ``asked``."""
    base = float(case.arrays.cost[case.order].sum())
    found: dict[int, float] = {}
    forms = asked.forms if asked is not None else ()
    for sequence in islice(every_sequence(case, again, forms), most):
        peak = int(evaluate(case.arrays, sequence).total.max())
        if peak >= IMPOSSIBLE:  # it reads what was written over
            assert len(case.arrays.overwriter)
            continue
        if asked is not None and asked.problem(0).leaves_out_asked(sequence):
            continue
        cost = float(case.arrays.cost[sequence].sum()) - base
        found[peak] = min(cost, found.get(peak, cost))
    return found
