"""Rules of the proof about indices of pools, and what looks as if they applied."""

from __future__ import annotations

import pytest

from helpers.proofs import proof

HEAD = """g (float[2, 3, 4, 6] x) => (int64[2, 3, 1, 1] y)
<int64[2] first = {0, 0}, int64[2] second = {1, 1}, int64[2] axes = {2, 3}, int64[1] zero = {0},
 int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3},
 int64[2, 3, 1, 1] planes = {0, 18, 36, 54, 72, 90}>"""
FULL = (
    HEAD
    + """{ [pool] v, i = MaxPool <kernel_shape: ints = [1, 1]>(x)
 [cut] y = Slice(i, first, second, axes) }"""
)
ROW = (
    HEAD
    + """{ [row] r = Slice(x, zero, one, two) [pool] v, i = MaxPool <kernel_shape: ints = [1, 1]>(r)
 [cut] c = Slice(i, first, second, axes) [sum] y = Add(c, planes) }"""
)


def test_the_first_row_tells_where_planes_begin() -> None:
    found = proof(FULL, ROW)
    assert found.proved, found.reason
    assert found.explained


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("54, 72, 90}", "54, 72, 91}"),
        ("Slice(x, zero, one, two)", "Slice(x, one, two, two)"),
        ("Slice(x, zero, one, two)", "Slice(x, zero, one, three)"),
        ("Slice(i, first, second, axes)", "Slice(i, zero, one, three)"),
        ("[1, 1]>(r)", "[1, 1], storage_order: int = 1>(r)"),
        ("[1, 1]>(r)", "[1, 2], pads: ints = [0, 0, 0, 1]>(r)"),
        ("Add(c, planes)", "Sub(c, planes)"),
    ],
)
def test_what_only_looks_like_it(old: str, new: str) -> None:
    assert old in ROW
    assert proof(FULL, ROW.replace(old, new)).reason
