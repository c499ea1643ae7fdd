"""Which files the site of documents is made of, and what stands in its menu (a hook of MkDocs).

The pages are those of the repository, at their own places, so that a link that works there works
in the site: the README is the first page, `docs/guide.md` is `guide/`, what lies outside of `docs/`
is below `repository/`. Files that a page links to, or shows, come along. A new page stands in the
menu without being named here: where it belongs by its folder, else among the guides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FIRST = ("guide.md", "stay-in-pytorch.md", "torch-solver.md", "training.md", "ci.md")
REFERENCE = (
    "docs/reference.md",
    "docs/known-gaps.md",
    "docs/glossary.md",
    "docs/benchmarks.md",
    "docs/extending.md",
    "docs/ARCHITECTURE.md",
)
PROJECT = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "benchmarks/README.md",
    "benchmarks/results/TABLES.md",
    "sample_models/README.md",
    "tools/README.md",
)
STYLE = ROOT / "docs" / "site.css"
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"""(?:\]\(|\b(?:src|srcset|href)=["'])([^)"'\s#]+)""")
_TAG = re.compile(r"""\b(src|srcset|href)=(["'])(?!\w+:)([^"'\s#]+)""")


def pages() -> tuple[Path, ...]:
    """Every page of the site, the first one first."""
    below = sorted((ROOT / "docs").rglob("*.md"))
    return (ROOT / "README.md", *below, *(ROOT / name for name in PROJECT))


def targets(page: Path) -> tuple[str, ...]:
    """What a page links to or shows, without anchors and without what lies on other machines."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return tuple(each for each in _TARGET.findall(text) if not re.match(r"\w+:", each))


def linked_files() -> set[Path]:
    """Files of the repository that are no pages, and that pages link to or show."""
    found = {(page.parent / target).resolve() for page in pages() for target in targets(page)}
    return {path for path in found if path.is_file()} - set(pages()) | {STYLE}


def place(path: Path) -> str:
    """Where a file stands in the site."""
    name = path.relative_to(ROOT).as_posix()
    inside = name.removeprefix("docs/") if name.startswith("docs/") else f"repository/{name}"
    if path.suffix != ".md":
        return inside
    if name == "README.md":
        return "index.html"
    stem = inside.removesuffix(".md").removesuffix("/README")
    return f"{stem}/index.html"


def menu() -> list[dict[str, str | list[str]]]:
    """The menu: guides, commands, how it works, reference, the project."""
    docs = ROOT / "docs"
    guides = _names(docs.glob("*.md"))
    first = [f"docs/{name}" for name in FIRST if f"docs/{name}" in guides]
    others = [name for name in guides if name not in (*first, *REFERENCE)]
    return [
        {"Overview": "README.md"},
        {"Guides": first + others},
        {"Commands": _names((docs / "commands").glob("*.md"))},
        {"How it works": _names((docs / "how").glob("*.md"))},
        {"Reference": [name for name in REFERENCE if name in guides]},
        {"Project": list(PROJECT)},
    ]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """MkDocs asks before it looks for files."""
    config.nav = menu()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs asks which files there are; those of the theme stay."""
    from mkdocs.structure.files import File, Files

    theirs = [file for file in files if file.src_dir != config.docs_dir]
    ours = [
        File(
            path.relative_to(ROOT).as_posix(),
            str(ROOT),
            config.site_dir,
            config.use_directory_urls,
            dest_uri=place(path),
        )
        for path in (*pages(), *sorted(linked_files()))
    ]
    return Files([*theirs, *ours])


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """MkDocs follows links of Markdown by itself; those in HTML tags, as of pictures, are ours."""
    from mkdocs.utils import get_relative_url

    source = ROOT / page.file.src_uri

    def there(found: re.Match[str]) -> str:
        url = place((source.parent / found[3]).resolve()).removesuffix("index.html")
        return f"{found[1]}={found[2]}{get_relative_url(url, page.file.url)}"

    return _TAG.sub(there, markdown)


def _names(paths: Iterable[Path]) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)
