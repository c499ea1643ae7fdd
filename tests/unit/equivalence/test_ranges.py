"""Whole numbers in narrower types: proved where they fit in every run, and refused elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.graphs import parse
from helpers.proofs import proof
from memplan.equivalence.prove import Equivalence, Side, prove, reference_side
from memplan.shapes.prepare import prepare

HEAD = """g (float[2, 3, 8, 8] x, int64[2] free, bool[2] flag) => (int64[] z)
<int64[2] first = {0, 0}, int64[2] second = {1, 1}, int64[2] axes = {2, 3}, int64 two = {2},
 int64 big = {300}, int64[2, 1, 1, 1] batches = {0, 192}, int64[1, 3, 1, 1] channels = {0, 64, 128},
 int64[1, 1, 4, 1] rows = {0, 16, 32, 48}, int64[1, 1, 1, 4] columns = {0, 2, 4, 6},
 int64[1, 1, 4, 1] others = {0, 16, 32, 40}, int64[2, 2] wide = {1, 2, 3, 4}>"""
POOL = """[pool] v, i = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]>(x)
 [origin] same, own = MaxPool <kernel_shape: ints = [1, 1]>(x)
 [cut] planes = Slice(own, first, second, axes)"""
WITHIN = f"{HEAD} {{ {POOL} [t] t = Sub(i, planes) [use] z = Add(t, two) }}"
NARROW = f"""{HEAD} {{ {POOL} [t] t = Sub(i, planes) [w] w = Add(rows, columns) [s] s = Sub(t, w)
 [c] c = Cast <to: int = 2>(s) [b] b = Cast <to: int = 7>(c) [w2] w2 = Add(rows, columns)
 [a] a = Add(b, w2) [use] z = Add(a, two) }}"""
ALL = f"{HEAD} {{ {POOL} [use] z = Add(i, two) }}"
NARROW_ALL = (
    NARROW.replace("Sub(i, planes)", "Sub(i, p)")
    .replace("[t]", "[p] p = Add(batches, channels) [t]")
    .replace("Add(a, two)", "Add(e, two)")
    .replace("[use]", "[e] e = Add(a, p) [use]")
)


def on(provider: str, first: str, second: str) -> Equivalence:
    reference = reference_side(prepare(parse(first), Path("first.onnx"), {}))
    return prove(reference, Side(parse(second), Path()), provider)


@pytest.mark.parametrize(("first", "second"), [(WITHIN, NARROW), (ALL, NARROW_ALL)])
def test_an_index_of_a_window(first: str, second: str) -> None:
    found = on("cpu", first, second)
    assert found.proved, found.reason
    assert found.explained >= 5
    assert on("cuda", first, second).reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[a] a = Add(b, w2)", "[a] a = Sub(b, w2)"),
        ("w2 = Add(rows, columns)", "w2 = Add(others, columns)"),
        ("rows, columns)", "others, columns)"),
        ("to: int = 2>(s)", "to: int = 2>(t)"),
        ("to: int = 2>(s)", "to: int = 9>(s)"),
        ("Sub(t, w)", "Sub(i, w)"),
        ("strides: ints = [2, 2]>", "strides: ints = [2, 2], storage_order: int = 1>"),
    ],
)
def test_what_only_looks_like_it(old: str, new: str) -> None:
    assert old in NARROW
    first = WITHIN.replace(old, new) if "storage" in new else WITHIN
    assert proof(first, NARROW.replace(old, new)).reason


def narrowed(read: str, kind: int) -> tuple[str, str]:
    text = f"{HEAD} {{ {POOL} [t] t = {read} [use] z = Add(t, two) }}"
    return text, text.replace(
        "[use] z = Add(t,",
        f"[c] c = Cast <to: int = {kind}>(t) [b] b = Cast <to: int = 7>(c) [use] z = Add(b,",
    )


FITS = [
    ("Cast <to: int = 7>(flag)", 2),
    ("Identity(i)", 6),
    ("Identity(i)", 5),
    ("ArgMax <axis: int = 3>(x)", 3),
    ("Where(flag, first, second)", 2),
    ("Mul(first, second)", 2),
]
DOES_NOT = [
    ("Identity(free)", 6),
    ("Add(second, big)", 2),
    ("Sub(first, second)", 2),
    ("Identity(i)", 2),
    ("Abs(free)", 6),
    ("Where(flag, first, free)", 6),
    ("Cast <to: int = 7>(flag)", 1),
    ("Cast <to: int = 7>(flag)", 9),
]


@pytest.mark.parametrize(("read", "kind"), FITS)
def test_what_fits(read: str, kind: int) -> None:
    found = proof(*narrowed(read, kind))
    assert found.proved, found.reason


@pytest.mark.parametrize(("read", "kind"), DOES_NOT)
def test_what_does_not_fit_or_is_not_a_number(read: str, kind: int) -> None:
    assert proof(*narrowed(read, kind)).reason


def test_what_is_taken_and_given_back_may_not_widen() -> None:
    text = f"{HEAD} {{ [t] t = Abs(free) [use] z = Add(t, two) }}"
    other = text.replace("[use] z = Add(t,", "[s] s = Sub(t, W) [a] a = Add(s, W) [use] z = Add(a,")
    assert proof(text, other.replace("W", "second")).proved
    assert proof(text, other.replace("W", "wide")).reason
    floats = [
        t.replace("int64[2] free", "float[2] free")
        .replace("two = {2}", "two = {2}, float[2] f = {1, 2}")
        .replace("int64 two", "float two")
        .replace("int64[] z", "float[] z")
        .replace("W", "f")
        for t in (text, other)
    ]
    assert proof(*floats).reason


@pytest.mark.parametrize("written", ["", ", saturate: int = 1"])
def test_a_narrow_type_of_what_the_other_graph_adds(written: str) -> None:
    """Its type and shape follow from what it is made of; attributes may be written out."""
    head = "g (float[4, 6] x) => (int64[4, 6] z) <float zero = {0}>"
    mask = f"m = Greater(x, zero) i = Cast <to: int = 7{written}>(m)"
    there = f"{head} {{ {mask} a = Add(i, i) z = Add(a, i) }}"
    back = f"Cast <to: int = 7{written}>"
    here = f"""{head} {{ {mask} c = Cast <to: int = 2{written}>(i) b = {back}(c)
     a = Add(b, b) n = Cast <to: int = 2{written}>(a) w = {back}(n) z = Add(w, b) }}"""
    found = on("cpu", there, here)
    assert found.proved, found.reason
    assert on("cpu", there, here.replace("Add(w, b)", "Add(w, w)")).reason
