"""The pictures of the documentation, made of what memplan prints today, in headless Chromium.

    python tools/screenshots.py            # docs/images/*.png; needs Chromium, takes half a minute

``docs/images/sources.json`` has the SHA-256 of every page that pictures were made of. The plan is
one that does not depend on the clock, so the same program gives the same pages.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SOURCES = "sources.json"
_SAMPLES = {"gpt": "gpt_dropout", "lstm": "lstm", "unet": "unet"}
_BUDGET = ("--budget", "60%", "--passes", "none", "--time-limit", "600")
_SEARCH = (*_BUDGET, "--strategy", "search{iterations=40}")
_QUICK = (*_BUDGET, "--strategy", "greedy", "--optimize", "none", "--force")

_PLAIN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>memplan</title><style>
:root { color-scheme: light dark; --ink: #1f2328; --bg: #fff; --line: #d1d9e0; --soft: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #f0f6fc; --bg: #0d1117; --line: #3d444d; --soft: #151b23; }
}
body { margin: 0; padding: 16px 20px; background: var(--bg); color: var(--ink);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
table { border-collapse: collapse; margin: 12px 0; }
th, td { border: 1px solid var(--line); padding: 5px 12px; }
td:not(:last-child) { white-space: nowrap; }
code, pre { font: 12.5px/1.45 ui-monospace, Menlo, Consolas, monospace; }
code { background: var(--soft); padding: 2px 5px; border-radius: 5px; }
pre { background: var(--soft); padding: 12px 14px; border-radius: 6px; overflow: hidden; }
pre code { padding: 0; }
</style>"""

_CHARTS_ALONE = """
main { display: grid; grid-template-columns: 1fr 1fr; gap: 10px; padding: 12px; }
main > :not(.legend, section:has(.chart)), h2 small, .floor, .note-floor, .steps,
section .legend { display: none; }
section { margin: 0; padding: 12px 14px 0; } .chart { padding-left: 58px; }
.plot { height: 236px; } .legend { grid-column: 1 / 3; justify-content: center; margin: 0; }
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """The upper left part of a page, at most so many CSS pixels; ``scale``: dots of each."""

    name: str
    width: int
    height: int
    scale: float = 1

    @property
    def files(self) -> Mapping[str, bool]:
        """Its files, and whether each is for a dark background."""
        return {f"{self.name}-light.png": False, f"{self.name}-dark.png": True}


PICTURES = (
    Picture("before-after", 800, 370, 1.5),
    Picture("analysis", 1200, 800),
    Picture("pull-request", 940, 700),
)


def pages(folder: Path) -> Mapping[str, str]:
    """Every page by name, made in an empty folder."""
    for name, sample in _SAMPLES.items():
        shutil.copy(ROOT / "sample_models" / f"{sample}.onnx", folder / f"{name}.onnx")
    _memplan(folder, "rewrite", "gpt.onnx", *_SEARCH, "-o", "fits.onnx")
    diff = _memplan(folder, "diff", "gpt.onnx", "fits.onnx", "--format", "html")
    made = {
        "analysis": _memplan(folder, "analyze", "gpt.onnx", "--format", "html"),
        "before-after": _charts(diff),
    }
    # A pull request that exports the model anew and forgets to rewrite it.
    new = (folder / "gpt.onnx").rename(folder / "new.onnx")
    _memplan(folder, "rewrite", "new.onnx", *_QUICK, "-o", "gpt.onnx")
    _memplan(folder, "check", "--update", *(f"{name}.onnx" for name in _SAMPLES))
    new.replace(folder / "gpt.onnx")
    told = _memplan(folder, "check", "--format", "markdown", fails=True)
    return {**made, "pull-request": _rendered(told)}


def _memplan(folder: Path, *words: str, fails: bool = False) -> str:
    """What the command prints."""
    program = [sys.executable, "-c", "from memplan_cli.main import run; run()", *words]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != int(fails):
        raise SystemExit(f"memplan {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def _charts(diff: str) -> str:
    """The two charts of a diff's page beside each other, with what their colours mean."""
    legend = "".join(
        f'<li><i class="swatch" style="background:var(--{name})"></i>{name}</li>'
        for name in ("weights", "output", "stash", "gradient", "activation")
    )
    page = diff.replace("</style>", f"{_CHARTS_ALONE}</style>", 1)
    return page.replace("</main>", f'<ul class="legend">{legend}</ul></main>', 1)


def _rendered(text: str) -> str:
    from markdown_it import MarkdownIt

    text = text.replace("<details>", "<details open>")
    content = MarkdownIt("commonmark").enable("table").render(text)
    return f"{_PLAIN}<body>{content}</body>"


def digests(made: Mapping[str, str]) -> dict[str, str]:
    """What ``sources.json`` has of these pages."""
    return {name: hashlib.sha256(made[name].encode()).hexdigest() for name in sorted(made)}


def draw(made: Mapping[str, str], folder: Path) -> None:
    """Write all pictures, and what they were made of."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.chromium import Chromium

    IMAGES.mkdir(exist_ok=True)
    with Chromium() as browser:
        for each in PICTURES:
            page = folder / f"{each.name}.html"
            page.write_text(made[each.name], encoding="utf-8")
            for name, dark in each.files.items():
                browser.open(page, each.width, each.height, dark=dark, scale=each.scale)
                whole = browser.run("Math.ceil(document.body.getBoundingClientRect().height)")
                content = browser.picture(each.width, min(each.height, whole))
                (IMAGES / name).write_bytes(content)
                print(f"{name}: {len(content):,} B")
    text = json.dumps(digests(made), indent=2)
    (IMAGES / SOURCES).write_text(f"{text}\n", encoding="utf-8")


def main() -> None:
    """Makes the pictures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        draw(pages(Path(name)), Path(name))


if __name__ == "__main__":
    main()
