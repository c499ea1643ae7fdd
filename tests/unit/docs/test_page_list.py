"""How pages are followed (``tests/ort/test_pages.py``): what is run of them, and what counts as the
same output."""

import fnmatch
import re
from pathlib import Path

import pytest

from helpers.models import ROOT
from helpers.page_list import ELSEWHERE, PAGES
from helpers.pages import DOCS, agrees, examples, loose, same_words


def test_every_command_and_block_of_a_page_is_run_or_named() -> None:
    """A page that nothing follows is named, and so is what following a page leaves out."""
    readmes = (ROOT / name / "README.md" for name in ("benchmarks", "sample_models", "tools"))
    by_path = {(DOCS / page.path).resolve(): page for page in PAGES}
    elsewhere = {(DOCS / name).resolve() for name in ELSEWHERE}
    faults = []
    for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *readmes):
        text = path.read_text(encoding="utf-8")
        followed = {line for example in examples(str(path)) for line in example.commands}
        left = {block.text.splitlines()[0] for block in loose(str(path))}
        if path in elsewhere:
            faults += [] if left or followed else [f"{path}: listed, and has nothing to run"]
        elif path in by_path or left or followed:
            names = by_path[path].left_out if path in by_path else ()
            needed = {glob for glob in names if fnmatch.filter(left | followed, glob)}
            named = {line for glob in names for line in fnmatch.filter(left, glob)}
            faults += [f"{path}: {line}" for line in (left - named) | (set(names) - needed)]
            faults += [] if path in by_path else [f"{path}: not listed"]
        faults += [f"{path}: no fence: {code}" for code in re.findall(r"\n\n    (\S.*)", text)]
    assert faults == []


def test_a_test_that_is_said_to_run_a_page_names_it() -> None:
    for name, reason in ELSEWHERE.items():
        for test in re.findall(r"tests/[\w/]+\.py", reason):
            assert Path(name).name in (ROOT / test).read_text(encoding="utf-8"), f"{test}: {name}"
    for reason in (why for page in PAGES for why in page.left_out.values()):
        assert all((ROOT / test).exists() for test in re.findall(r"tests/[\w/]+\.py", reason))


def test_a_block_that_nothing_runs_is_loose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```\nmemplan strategies\n```\n\n```\ngreedy\n```\n\n```\nanother output\n```\n\n"
        "```sh\nmemplan device\n```\n\n```python\nimport nothing\n```\n\n"
        "```text\na --> b\n```\n\n```\nmemplan analyze MODEL\n```\n\n"
        "```\npip install x && memplan strategies\npytest\n```\n\n"
        "```\npip install x && memplan device\n```\n\n# Another\n\n```\nno output of it\n```\n"
    )
    assert [block.text.splitlines()[0] for block in loose(str(page))] == [
        "another output",
        "memplan device",
        "import nothing",
        "memplan analyze MODEL",
        "pip install x && memplan strategies",
        "no output of it",
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("peak 210 MiB within the budget\n", "peak 2 KiB within the\nbudget, in chunks\n", True),
        ("peak 210 MiB within the budget\n", "peak 210 MiB inside the budget\n", False),
        ("a row\n...\nbelow it\n", "below it\na row\n", True),
        ("gelu_5 is recomputed\n", "getitem is recomputed\n", True),
    ],
)
def test_words_of_a_page(shown: str, printed: str, same: bool) -> None:
    assert same_words(shown, printed) is same


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
