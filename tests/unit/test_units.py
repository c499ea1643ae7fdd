"""Sizes: what is accepted, what is refused with a way out, and how bytes are shown."""

import os
import shutil
import subprocess
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import EXIT_USAGE, UsageError
from memplan.units import (
    echo_size,
    format_bytes,
    format_delta,
    parse_size,
    printable,
    shell_word,
)

UNITS = {
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
    "B": 1,
    "": 1,
}


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1),
        ("4GB", 4_000_000_000),
        ("4GiB", 4_294_967_296),
        ("3.7GiB", 3_972_844_748),
        ("1.5kB", 1500),
        ("512 MiB", 536_870_912),
        (" 2 TB ", 2_000_000_000_000),
        ("4gb", 4_000_000_000),
        ("4gib", 4_294_967_296),
        ("7B", 7),
        ("0.001kB", 1),
    ],
)
def test_absolute_sizes(text: str, nbytes: int) -> None:
    spec = parse_size(text)
    assert spec.nbytes == nbytes
    assert spec.resolve(10) == nbytes


@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_whole_numbers_are_exact(number: int, unit: str, space: str) -> None:
    assert parse_size(f"{number}{space}{unit}").nbytes == number * UNITS[unit]


@pytest.mark.parametrize(
    ("text", "whole", "nbytes"),
    [("80%", 1000, 800), ("33.3%", 1000, 333), ("0.1%", 999, 0), ("150 %", 1000, 1500)],
)
def test_percentages_are_rounded_down(text: str, whole: int, nbytes: int) -> None:
    spec = parse_size(text)
    assert spec.nbytes is None
    assert spec.resolve(whole) == nbytes


def test_percentage_of_a_huge_peak_is_exact() -> None:
    # A float would be off by hundreds of bytes here.
    assert parse_size("99.9%").resolve(2**59 + 1) == int(Fraction(999, 1000) * (2**59 + 1))


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("4G", "4GB", "4GiB"),
        ("4g", "4GB", "4GiB"),
        ("1.5k", "1.5kB", "1.5KiB"),
        ("8M", "8MB", "8MiB"),
        ("2 T", "2TB", "2TiB"),
    ],
)
def test_an_ambiguous_unit_offers_both_and_both_work(text: str, first: str, second: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert caught.value.exit_code == EXIT_USAGE
    assert "ambiguous" in caught.value.message
    assert f"{first} " in caught.value.hint
    assert f"{second} " in caught.value.hint
    assert parse_size(first).nbytes != parse_size(second).nbytes


NO_SIZES = """abc 4X 4XB 0 0% 0GB 0.0 -1 -4GB +4GB 1.5 1. .5 1e6 1,000 1_000 % GB nan inf 0x10
    4GB4 ² ٤GB 0.1B 0.0001kB 99999999999GB"""


@pytest.mark.parametrize("text", [*NO_SIZES.split(), "", " ", "4 G B", "9" * 5000, "9" * 25 + "%"])
def test_what_is_no_size_is_refused_in_one_line_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert "\n" not in caught.value.message.replace(text, "")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (100 * 1024, "100 KiB"),
        (1024**2 - 1, "1024 KiB"),
        (3 * 1024**3, "3.00 GiB"),
        (-2048, "-2.00 KiB"),
        (5 * 1024**5, "5120 TiB"),
    ],
)
def test_bytes_for_people(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@given(st.integers(-(2**62), 2**62))
def test_shown_bytes_are_within_half_a_percent(nbytes: int) -> None:
    number, unit = format_bytes(nbytes).split()
    assert abs(float(number) * UNITS[unit] - nbytes) <= 0.005 * abs(nbytes)


def test_differences_carry_their_sign() -> None:
    assert format_delta(0) == "="
    assert format_delta(2048) == "+2.00 KiB"
    assert format_delta(-2048) == "-2.00 KiB"


def test_sizes_are_echoed_in_every_notation() -> None:
    spec = parse_size("4GB")
    assert echo_size(spec, spec.resolve(0)) == "4GB = 4,000,000,000 B (3.73 GiB)"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_word_for_a_shell_is_one_line_and_means_the_name() -> None:
    names = [
        "a.onnx",
        "a b",
        "a'b",
        "a\n::error::owned.onnx",
        "\x1b[2J'\\n",
        "ä\u202e\udcff\x85",
        "",
    ]
    for name in names:
        word = shell_word(name)
        assert printable(word) == word
        done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
        assert done.stdout == os.fsencode(name)
