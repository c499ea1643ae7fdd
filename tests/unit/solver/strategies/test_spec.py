"""Specs: text → an object, where a frozen dataclass says what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from memplan.errors import UsageError
from memplan.solver.strategies.spec import Option, Spec, build, did_you_mean, options_of, split_spec


@dataclass(frozen=True)
class Machine:
    """A number, a whole number, a word and a text."""

    name: ClassVar[str] = "machine"
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {"gear": ("low", "high")}
    rate: float = 0.5
    count: int = 3
    gear: str = "low"
    label: str = ""


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("a", Spec("a", {})),
        (" a-b_2 ", Spec("a-b_2", {})),
        ("a{}", Spec("a", {})),
        ("a{b=1, c = x y ,}", Spec("a", {"b": "1", "c": "x y"})),
        ("a{b}", Spec("a", {"b": ""})),
        ("a{b=c=d}", Spec("a", {"b": "c=d"})),
        ("", None),
        ("a b", None),
        ("a{b=1", None),
        ("a{b={}}", None),
        ("a}", None),
    ],
)
def test_a_spec_is_taken_apart(text: str, spec: Spec | None) -> None:
    assert split_spec(text) == spec


def built(text: str) -> Machine:
    """The machine of a text."""
    spec = split_spec(text)
    assert spec is not None
    return build(Machine, spec, "thing", "--thing: ")


def test_fields_are_options() -> None:
    assert built("machine") == Machine()
    assert built("machine{rate=2, count=7, gear=high, label=a b}") == Machine(2.0, 7, "high", "a b")
    assert isinstance(built("machine{rate=2}").rate, float)
    assert options_of(Machine) == (
        Option("rate", 0.5, ()),
        Option("count", 3, ()),
        Option("gear", "low", ("low", "high")),
        Option("label", "", ()),
    )
    assert [option.kind for option in options_of(Machine)] == ["number", "number", "text", "text"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("{cuont=1}", "thing 'machine' has no option 'cuont'", "did you mean 'count'? it has: "),
        ("{zzz=1}", "thing 'machine' has no option 'zzz'", "it has: count, gear, label, rate"),
        ("{rate=x}", "machine{rate=x}: expected a number of at least 0", ""),
        ("{rate=-1}", "machine{rate=-1}: expected a number of at least 0", ""),
        ("{rate=nan}", "machine{rate=nan}: expected a number of at least 0", ""),
        ("{rate=inf}", "machine{rate=inf}: expected a number of at least 0", ""),
        ("{rate}", "machine{rate=}: expected a number of at least 0", ""),
        ("{count=1.5}", "machine{count=1.5}: expected a whole number", ""),
        ("{gear=top}", "machine{gear=top}: unknown value", "values: low, high"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        built(f"machine{text}")
    assert caught.value.message == f"--thing: {message}"
    assert caught.value.hint.startswith(hint)


def test_near_names_are_proposed() -> None:
    assert did_you_mean("serach", ["search", "greedy"]) == "did you mean 'search'? "
    assert did_you_mean("x", ["search", "greedy"]) == ""
