"""Masks packed eight elements to a byte: proved where every element has a bit of its own."""

import pytest

from helpers.proofs import proof

HEAD = """g (float[16, 8] x, bool[16, 8] other) => (bool[16, 8] z)
<float ratio = {0.5}, bool on = {1}, int64[2] eight = {8, 16}, int64[2] back = {16, 8},
 int64[2] four = {4, 4}, int64[2] two = {2, 2}, int64[2] one = {1, 1}, int64[2] flat = {1, 128},
 int64[2] uneven = {3, 1}, uint8 top = {128}, uint8 half = {64}, uint8 u16 = {16}, uint8 u4 = {4},
 uint8 u2 = {2}, uint8 u32 = {32}, uint8[8, 1] weights = {128, 64, 32, 16, 8, 4, 2, 1},
 uint8[8, 1] turned = {64, 128, 32, 16, 8, 4, 2, 1}>"""
PLAIN = HEAD + "{ [d] y, m = Dropout(x, ratio, on) [n] z = Not(m) }"
PACK = """ [r] r = Reshape(m, eight) [c] c = Cast<to: int = 2>(r)
 [s4] a, b = Split<axis: int = 0>(c, four) [m4] b4 = Mul(b, u16) [a4] c4 = Add(b4, a)
 [s2] e, f = Split<axis: int = 0>(c4, two) [m2] f2 = Mul(f, u4) [a2] c2 = Add(f2, e)
 [s1] h, i = Split<axis: int = 0>(c2, one) [m1] i1 = Mul(i, u2) [a1] packed = Add(i1, h) """
UNPACK = """ [w] w = Mul(packed, weights) [back] v = Reshape(w, back)
 [top] u = GreaterOrEqual(v, top) """
PACKED = f"{HEAD} {{ [d] y, m = Dropout(x, ratio, on) {PACK} {UNPACK} [n] z = Not(u) }}"
CUDA = PACKED.replace(
    "[top] u = GreaterOrEqual(v, top)", "[t] t = Div(v, top) [top] u = Cast<to: int = 9>(t)"
)


@pytest.mark.parametrize("text", [PACKED, CUDA])
def test_every_element_comes_back(text: str) -> None:
    found = proof(PLAIN, text)
    assert found.proved, found.reason
    assert found.explained >= 14


def test_a_mask_is_unpacked_twice() -> None:
    once = PLAIN.replace("z = Not(m)", "o = Not(m) [x2] z = Xor(o, m)")
    again = """[w2] w2 = Mul(packed, weights) [back2] v2 = Reshape(w2, back)
 [top2] u2 = GreaterOrEqual(v2, top)"""
    twice = PACKED.replace("z = Not(u)", f"o = Not(u) {again} [x2] z = Xor(o, u2)")
    found = proof(once, twice)
    assert found.proved, found.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Mul(packed, weights)", "Mul(packed, turned)"),
        ("Mul(packed, weights)", "Mul(c, weights)"),
        ("[w] w = Mul(packed,", "[tw] twice = Add(packed, packed) [w] w = Mul(twice,"),
        ("GreaterOrEqual(v, top)", "GreaterOrEqual(v, half)"),
        ("Mul(b, u16)", "Mul(b, u32)"),
        ("Mul(f, u4)", "Mul(f, u2)"),
        ("Add(f2, e)", "Add(f2, f2)"),
        ("Add(b4, a)", "Add(b4, b)"),
        ("Add(i1, h)", "Sub(i1, h)"),
        ("Split<axis: int = 0>(c4, two)", "Split<axis: int = 0>(c4, uneven)"),
        ("Split<axis: int = 0>(c4, two)", "Split<axis: int = 1>(c4, eights)"),
        ("Reshape(m, eight)", "Reshape(other, eight)"),
        ("Reshape(m, eight)", "Transpose<perm: ints = [1, 0]>(m)"),
        ("Reshape(w, back)", "Transpose<perm: ints = [1, 0]>(w)"),
    ],
)
def test_what_only_looks_like_it(old: str, new: str) -> None:
    assert old in PACKED
    text = PACKED.replace(old, new).replace(
        "int64[2] flat", "int64[2] eights = {8, 8}, int64[2] flat"
    )
    assert proof(PLAIN, text).reason


def test_cuda_divides_by_what_leaves_the_top_bit() -> None:
    assert proof(PLAIN, CUDA.replace("Div(v, top)", "Div(v, half)")).reason
    assert proof(PLAIN, CUDA.replace("Cast<to: int = 9>(t)", "Cast<to: int = 9>(v)")).reason


def test_numbers_are_not_packed() -> None:
    """An element of a byte may be more than 1."""
    plain = PLAIN.replace("bool[16, 8] other", "uint8[16, 8] m").replace("[d] y, m", "[d] y, k")
    packed = PACKED.replace("bool[16, 8] other", "uint8[16, 8] m").replace("[d] y, m", "[d] y, k")
    plain = plain.replace("[n] z = Not(m)", "[n0] q = Cast<to: int = 9>(m) [n] z = Not(q)")
    assert proof(plain, packed).reason
