"""What ``--keep`` and ``--recompute`` mean in the graph that is planned.

The words are looked up in the file (:mod:`memplan.ir.places`), so fusions and passes do not change
what they mean. Modules and operators stand for what the forward part makes. Of that,
``--recompute`` has made again what would wait for the backward part, and what this is made of as
far as it is selected, too. Modules with ``*`` for the operator are recomputed as wholes: what one
of them makes for another waits, as in PyTorch's checkpoints. What is named, gradients included, is
recomputed whoever reads it. Where both options name a tensor, it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ir.matching import Selector, nothing_matches, selector
from memplan.ir.places import Origins, Places
from memplan.ops.memory import MemorySemantics, refusal, semantics
from memplan.simulate.opened import OpenModel

KEEP, RECOMPUTE = "--keep", "--recompute"


@dataclass(frozen=True, slots=True)
class Selectors:
    """What was asked for; ``origins``: the file's places, None where no selector names any."""

    every: tuple[Selector, ...] = ()
    origins: Origins | None = None


NO_SELECTORS = Selectors()


@dataclass(frozen=True, slots=True)
class Selection:
    """What a selector means in a graph, by tensor id.

    ``tensors`` are all that it selects: ``named`` by a glob of names, the others by their place;
    ``handed`` are those of them that one of the modules makes for another.
    """

    selector: Selector
    tensors: frozenset[int]
    named: frozenset[int]
    handed: frozenset[int]


def selectors_for(
    model: OpenModel, keep: Sequence[str] = (), recompute: Sequence[str] = ()
) -> Selectors:
    """Read what is to be kept and recomputed of a file.

    Raises:
        UsageError: nothing in the file is in such a module, or of such an operator.
    """
    given = [(KEEP, text) for text in keep] + [(RECOMPUTE, text) for text in recompute]
    every = tuple(selector(option, text) for option, text in given)
    if not any(each.names_places for each in every):
        return Selectors(every)
    origins = _origins(model)
    for each in every:
        found = any(map(each.matches, origins.forward))
        if each.names_places and not found and not each.named(model.graph):
            raise nothing_matches(each, model.graph, origins.forward)
    return Selectors(every, origins)


def _origins(model: OpenModel) -> Origins:
    return Origins(model.graph, model.modules, model.phases.forward)


def selections(asked: Selectors, model: OpenModel) -> tuple[Selection, ...]:
    """What the selectors mean in the file, or in what fusions and passes made of it.

    Raises:
        UsageError: a name is not there, or no longer.
    """
    graph, forward = model.graph, model.phases.forward
    known: dict[int, Places] = {}
    if asked.origins is not None:
        known = asked.origins.places(graph, model.modules, forward)
    found: list[Selection] = []
    for each in asked.every:
        named = frozenset(each.named(graph))
        if not named and not each.names_places:
            raise nothing_matches(each, graph, _origins(model).forward)
        matching = {p for p in frozenset().union(*known.values()) if each.matches(p)}
        placed = {t for t, places in known.items() if not matching.isdisjoint(places)}
        handed = _handed_on(graph, forward, each, {t: known[t] for t in placed}) - named
        found.append(Selection(each, named | placed, named, handed))
    return tuple(found)


def _handed_on(
    graph: Graph, forward: Set[int], selector: Selector, chosen: Mapping[int, Places]
) -> frozenset[int]:
    """What one of the modules that are selected as a whole makes for another of them."""
    if not selector.names_modules:
        return frozenset()
    modules = {t: {selector.within(p.module) for p in known} for t, known in chosen.items()}

    def goes_on(tensor: int) -> bool:
        readers = forward & set(graph.tensors[tensor].readers)
        made = (t for reader in readers for t in graph.nodes[reader].writes if t in modules)
        return any(modules[tensor].isdisjoint(modules[t]) for t in made)

    return frozenset(filter(goes_on, chosen))


def keep_and_force(
    found: Sequence[Selection], model: OpenModel, provider: str
) -> tuple[frozenset[int], frozenset[int]]:
    """The tensors that stay as they are, and those that are recomputed whatever the budget."""
    none = frozenset[int]()
    keep = none.union(*(each.tensors for each in found if each.selector.option == KEEP))
    wanted = [each for each in found if each.selector.option == RECOMPUTE]
    named = none.union(*(each.named for each in wanted)) - keep
    placed = none.union(*(each.tensors - each.handed for each in wanted)) - keep
    return keep, named | made_again(model.graph, model.phases.forward, placed, provider)


def made_again(graph: Graph, forward: Set[int], chosen: Set[int], provider: str) -> frozenset[int]:
    """Of the ``chosen`` tensors those that the backward part reads, directly or through views, and
    those that are read where these are made again. None that no operator makes again."""
    rules = semantics(provider)
    late: set[int] = set()  # tensors that are read once the forward part is over
    found: set[int] = set()
    for node in reversed(graph.nodes):
        if node.id not in forward:
            late.update(node.reads)
            continue
        waiting = late.intersection(node.writes)
        again = {t for t in waiting & chosen if not graph.tensors[t].is_output}
        if again and refusal(node.key, provider) is None:
            found |= again
            late.update(node.reads)
        else:
            late.update(_viewed(node, waiting, rules))
    return frozenset(found)


def _viewed(node: Node, outputs: Set[int], rules: MemorySemantics) -> set[int]:
    """The inputs that ``outputs`` of a node are views of."""
    slots = (k for k, t in enumerate(node.outputs) if t in outputs)
    sources = {rules.alias_input(node.key, slot) for slot in slots} - {None}
    return {node.inputs[k] for k in sources if k is not None} - {ABSENT}
