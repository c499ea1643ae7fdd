"""Selectors: how users name tensors.

1. ``MODULE :: OPERATOR`` names what the forward part, loss included, makes: the tensors of the
   nodes whose operator matches the second glob, in the modules that match the first.
2. A module stands for all that is in it: ``blocks.0`` for ``blocks.0.mlp.fc1``, too.
3. Any other text is a glob of names: of computed tensors, or of the nodes that make them, gradients
   included. Names may have ``::`` in them, so a text with it is taken for both.
4. Globs are those of :mod:`fnmatch`, and case counts: ``*`` stands for any text, dots included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import NamedTuple

from memplan.errors import UsageError
from memplan.ir.graph import Graph
from memplan.ir.modules import NO_MODULE
from memplan.units import did_you_mean, listed

_SEPARATOR = "::"
_MOST_LEVELS = 64  # of modules in one another: no network has so many, but a file may
_SHOWN = 8
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Place(NamedTuple):
    """Where a node stands in the model that its author wrote."""

    module: str
    operator: str


@dataclass(frozen=True, slots=True)
class Selector:
    """A ``text`` of an ``option``, as the module says. Without ``::`` it names no place: ``module``
    and ``operator``, both globs, are empty."""

    option: str
    text: str
    module: str = ""
    operator: str = ""

    @property
    def names_places(self) -> bool:
        """Whether modules and operators are named, and not only names."""
        return bool(self.operator)

    @property
    def names_modules(self) -> bool:
        """Whether modules are named with all that they make."""
        return self.operator == "*"

    def within(self, module: str) -> str | None:
        """The outermost module that is named of one and those that it lies in; None: none is."""
        paths = (path for path in enclosing(module) if fnmatchcase(path, self.module))
        return next(paths, None)

    def matches(self, place: Place) -> bool:
        """Whether a node at a place is named."""
        return (
            self.names_places
            and fnmatchcase(place.operator, self.operator)
            and self.within(place.module) is not None
        )

    def named(self, graph: Graph) -> set[int]:
        """The computed tensors whose name, or whose node's name, the text is a glob of."""
        return {
            tensor.id
            for tensor in graph.tensors
            if tensor.producer >= 0
            and (
                fnmatchcase(tensor.name, self.text)
                or fnmatchcase(graph.nodes[tensor.producer].name, self.text)
            )
        }


def selector(option: str, text: str) -> Selector:
    """Read a selector."""
    module, separator, operator = (part.strip() for part in text.rpartition(_SEPARATOR))
    if not (separator and module and operator):
        return Selector(option, text)
    return Selector(option, text, module, operator)


def enclosing(module: str) -> Iterator[str]:
    """The paths of the modules that a module lies in, outermost first, and its own."""
    ends = (match.start() for match in re.finditer(r"\.", module))
    yield from (module[:end] for end in islice(ends, _MOST_LEVELS))
    yield module


def nothing_matches(selector: Selector, graph: Graph, places: Sequence[Place]) -> UsageError:
    """The error for a selector that matches nothing, with the nearest names.

    Args:
        selector: what was asked for.
        graph: where it was looked for.
        places: those of the forward part, in its order.
    """
    modules = dict.fromkeys(place.module for place in places if place.module != NO_MODULE)
    if not selector.names_places:
        return _no_name(selector, graph, modules)
    operators = dict.fromkeys(place.operator for place in places)
    what = f"{selector.option} {selector.text}"
    inside = [place for place in places if selector.within(place.module) is not None]
    if not inside:
        return UsageError(
            f"{what}: no module of the forward part matches '{selector.module}'",
            did_you_mean(selector.module, [*modules, *_patterns(modules)])
            + (f"modules: {_listed(_patterns(modules))}" if modules else _NO_MODULES),
        )
    if not any(fnmatchcase(each, selector.operator) for each in operators):
        return UsageError(
            f"{what}: no operator of the forward part matches '{selector.operator}'",
            did_you_mean(selector.operator, operators) + f"operators: {_listed(operators)}",
        )
    there = dict.fromkeys(place.operator for place in inside)
    return UsageError(
        f"{what}: no operator in these modules matches '{selector.operator}'",
        f"operators there: {_listed(there)}",
    )


_NO_MODULES = "the file tells no modules: write '* :: OPERATOR', or a name"


def _no_name(selector: Selector, graph: Graph, modules: Iterable[str]) -> UsageError:
    """The error for a glob of names."""
    computed = [tensor for tensor in graph.tensors if tensor.producer >= 0]
    names = [tensor.name for tensor in computed]
    names += [graph.nodes[tensor.producer].name for tensor in computed]
    as_module = Selector(selector.option, "", selector.text, "*")
    if any(as_module.within(module) is not None for module in modules):
        near = f"for all that a module makes, write '{selector.text} :: *'; "
    else:
        near = did_you_mean(selector.text, dict.fromkeys(names))
    return UsageError(
        f"{selector.option} {selector.text}: no tensor or node of that name",
        f"{near}names are listed by 'memplan analyze'; fusions may have renamed them "
        "(--optimize none keeps them), passes removed them (--passes none keeps them)",
    )


def _patterns(modules: Iterable[str]) -> list[str]:
    """Modules and those that they lie in, with ``*`` for the numbers of layers."""
    every = (path for module in modules for path in enclosing(module))
    return list(dict.fromkeys(_INDEX.sub("*", path) for path in every))


def _listed(found: Iterable[str]) -> str:
    return listed(list(found), _SHOWN)
