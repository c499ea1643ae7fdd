"""Pages of the documentation that a reader follows from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.pages import agrees, follow

pytestmark = pytest.mark.ort


def test_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    follow("gradients.md", capsys)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 1.00 b\n", "a\n1.01  b\n", True),
        ("a 1.00 b\n", "a 1.10 b\n", False),
        ("a 1 b\n", "a 2 b\n", False),
        ("a\n...\nd\n", "a b c d\n", True),
        ("a\n...\nd\n", "a b d e\n", False),
        ("a\n...\n", "a b\n", True),
        ("...\nc\n...\n", "a b\n", False),
        ("a\n", "a b\n", False),
        ("peak +1.50%\n", "peak +1.52%\n", True),
        ("1.50%\n", "1.50\n", False),
    ],
)
def test_what_counts_as_the_output_of_a_page(shown: str, printed: str, same: bool) -> None:
    assert agrees(shown, printed) is same
