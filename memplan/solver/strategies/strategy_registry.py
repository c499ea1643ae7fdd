"""Who offers which strategy: memplan itself, and installed packages by entry points.

A package offers one by an entry point in the group ``memplan.strategies`` that names the class
(docs/extending.md). Nothing of a package is imported before its strategy is asked for or listed,
and one that cannot be used stops nobody who asks for another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from memplan.errors import UsageError
from memplan.solver.strategies.spec import NAME
from memplan.solver.strategy import Strategy

GROUP = "memplan.strategies"
OWN = "memplan"
"""The owner of built-in strategies."""
# Class variables of a strategy that may be left out.
_DEFAULTS = {
    "words": Mapping,
    "meanings": Mapping,
    "ignores_budget": bool,
    "takes_forms": bool,
    "clone_tags": Mapping,
}


@dataclass(frozen=True, slots=True)
class Offer:
    """A strategy's name, who brings it (``package version``) and how to get its class.

    ``load`` may raise anything: it runs the code of others.
    """

    name: str
    owner: str
    load: Callable[[], object]

    def strategy(self) -> type[Any]:
        """The class, imported and checked; what it leaves out of :class:`Strategy` is put there.

        Raises:
            UsageError: it cannot be imported, or is not a strategy.
        """
        try:
            found = self.load()
        except Exception as error:  # whatever the import of a foreign module raises
            raise self._unusable(f"{type(error).__name__}: {error}") from error
        # Ours may go by another name, too (auto).
        reason = "" if self.owner == OWN else why_not_a_strategy(found, self.name)
        if reason:
            raise self._unusable(reason)
        assert isinstance(found, type)
        for attribute in _DEFAULTS:
            if not hasattr(found, attribute):
                setattr(found, attribute, getattr(Strategy, attribute))
        return found

    def _unusable(self, reason: str) -> UsageError:
        return UsageError(
            f"strategy '{self.name}' of {self.owner} cannot be used: {reason}",
            f"repair or uninstall {self.owner}; 'memplan strategies' lists what works",
        )


def all_offers(built_in: Mapping[str, type[Any]]) -> dict[str, list[Offer]]:
    """Every offer by strategy name, sorted; the built-in one of a name comes first.

    More than one offer of a name is a conflict: see :func:`only`.
    """
    found: dict[str, list[Offer]] = {}
    for name, strategy in built_in.items():
        found[name] = [Offer(name, OWN, _given(strategy))]
    seen: set[tuple[str, str, str]] = set()
    for point in entry_points(group=GROUP):
        owner = _owner(point)
        # A package that lies on the path twice is still one owner.
        if (point.name, point.value, owner) not in seen:
            seen.add((point.name, point.value, owner))
            found.setdefault(point.name, []).append(Offer(point.name, owner, point.load))
    return dict(sorted(found.items()))


def only(offers: list[Offer]) -> Offer:
    """The one offer of a name.

    Raises:
        UsageError: there are several; the message names every owner.
    """
    if len(offers) > 1:
        owners = " and ".join(offer.owner for offer in offers)
        raise UsageError(
            f"strategy '{offers[0].name}' is offered by {owners}",
            "names are unique: rename one of them or uninstall its package",
        )
    return offers[0]


def why_not_a_strategy(found: object, name: str) -> str:
    """What is wrong with a class that is offered as the strategy ``name``; empty: nothing."""
    if not re.fullmatch(NAME, name):
        return "its name is not made of letters, digits, - and _"
    if not isinstance(found, type) or not is_dataclass(found):
        return f"{found!r} is not a dataclass"
    for attribute in ("name", "summary", "source"):
        if not isinstance(getattr(found, attribute, None), str):
            return f"{found.__name__} has no text '{attribute}'"
    if getattr(found, "name", "") != name:
        return f"its class is named '{getattr(found, 'name', '')}'"
    for attribute, wanted in _DEFAULTS.items():
        if not isinstance(getattr(found, attribute, getattr(Strategy, attribute)), wanted):
            return f"{found.__name__}.{attribute} is not a {wanted.__name__.lower()}"
    if not callable(getattr(found, "solve", None)):
        return f"{found.__name__} has no method 'solve'"
    for field in fields(found):
        if field.default is MISSING or not isinstance(field.default, int | str):
            return f"option '{field.name}' has no whole number or text as its default"
    return ""


def _given(strategy: type[Any]) -> Callable[[], object]:
    return lambda: strategy


def _owner(point: EntryPoint) -> str:
    dist = point.dist
    return f"{dist.name} {dist.version}" if dist is not None else point.value
