"""Calls that a GPU's provider takes, and then fails at or computes wrongly.

``tables/<provider>.json`` lists them under ``faults``: ``tools/probe_ort`` ran every case of its
catalogue there and on the CPU, and names what sets those that failed apart from those that did not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memplan.ir.graph import Graph
from memplan.ops.instance import Instance, in_graph
from memplan.ops.memory import semantics
from memplan.providers import PROVIDERS
from memplan.units import counted

_NAMED = 3  # nodes that a sentence names


@dataclass(frozen=True, slots=True)
class Fault:
    """A node that a session opens and cannot run, or runs ``wrong``. ``why``: what its call has
    that working ones have not, as ``output 1``; ``said``: the runtime's words."""

    node: str
    op: str
    why: str
    said: str
    wrong: bool


def features(call: Instance) -> list[str]:
    """What can be said of a call before it runs, in the table's words; the most telling first."""
    plain = {n: v for n, v in call.attributes.items() if isinstance(v, int | str | bytes)}
    found = [f"{name} = {call.text(name, '')}" for name in sorted(plain)]
    for kind, slots in (("output", call.outputs), ("input", call.inputs)):
        found += [f"{kind} {slot}" for slot, tensor in enumerate(slots) if tensor is not None]
    shapes = [tensor.shape for tensor in call.inputs if tensor is not None]
    found += [f"rank {len(shape)} of input {slot}" for slot, shape in enumerate(shapes)]
    made = call.output(0)
    if len(shapes) > 1 and made is not None and all(shape != made.shape for shape in shapes):
        found.append("every input is broadcast")
    return found


def faults(graph: Graph, provider: str, host_nodes: frozenset[int]) -> Iterator[Fault]:
    """The nodes of a graph that the provider does not compute, though it takes them.

    Args:
        graph: shapes known.
        provider: see :mod:`memplan.providers`.
        host_nodes: the nodes that run on the CPU.
    """
    for node in graph.nodes:
        rows = () if node.id in host_nodes else semantics(provider).faults.get(node.key, ())
        if not rows:
            continue
        own = features(in_graph(graph, node))
        for why, said in rows:
            if why in own:
                yield Fault(node.name, node.key.lstrip(":"), why, said, said.startswith("WRONG"))
                break


def fault_notes(found: Sequence[Fault], provider: str) -> tuple[str, ...]:
    """What to tell of them, a sentence for each kind."""
    notes = []
    for op, why, said in dict.fromkeys((each.op, each.why, each.said) for each in found):
        alike = [each for each in found if (each.op, each.why) == (op, why)]
        names = ", ".join(f"'{each.node}'" for each in alike[:_NAMED])
        fails = "computes WRONG RESULTS" if alike[0].wrong else f"a step fails at it: {said}"
        notes.append(
            f"{PROVIDERS[provider].title} does not run {op} with {why} "
            f"({counted(len(alike), 'node')}: {names}{' ...' if len(alike) > _NAMED else ''}): "
            f"{fails}"
        )
    return tuple(notes)
