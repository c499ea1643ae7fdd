"""Selectors: modules and operators by globs, held against a reading that only knows fnmatch."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from memplan.ir.matching import Place, enclosing, selector

MODULES = st.lists(st.sampled_from(["blocks", "0", "11", "attn", "mlp"]), min_size=1, max_size=4)
GLOBS = st.lists(st.sampled_from(["blocks", "0", "*", "a*", "mlp", "1?"]), min_size=1, max_size=4)
OPERATORS = ["Gemm", "Softmax", "Gelu", "*", "G*"]


@settings(max_examples=tries(300))
@given(MODULES, GLOBS, st.sampled_from(OPERATORS), st.sampled_from(OPERATORS[:3]))
def test_it_is_fnmatch_over_a_module_and_those_around_it(
    module: list[str], globs: list[str], operator: str, own: str
) -> None:
    found = selector("--keep", f"{'.'.join(globs)} :: {operator}")
    around = [".".join(module[:count]) for count in range(1, len(module) + 1)]
    expected = fnmatchcase(own, operator) and any(fnmatchcase(m, ".".join(globs)) for m in around)
    assert list(enclosing(".".join(module))) == around
    assert found.matches(Place(".".join(module), own)) is expected


@pytest.mark.parametrize("text", ["softmax*", "a::", ":: Gemm", "::", "std::vector ::"])
def test_what_lacks_a_side_is_a_glob_of_names(text: str) -> None:
    assert not selector("--keep", text).names_places


def test_names_may_have_the_separator_in_them() -> None:
    found = selector("--keep", "main::block :: Gemm")
    assert (found.module, found.operator) == ("main::block", "Gemm")
