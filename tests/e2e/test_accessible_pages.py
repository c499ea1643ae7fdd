"""Pages for everybody, in Chromium: names, contrast, keyboard, narrow screens; skipped without it.

``MEMPLAN_AXE`` may name a file ``axe.min.js`` (npm: axe-core); its rules are then held, too.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import memplan
from helpers.chromium import PROGRAM, Chromium
from helpers.sweeps import batched, swept
from helpers.training_steps import long_skips
from memplan.report.html.page import page
from memplan.report.tell.analysis import tell_analysis
from memplan.report.tell.diff import tell_diff
from memplan.report.tell.sweep import tell_sweep

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs Chromium")
PAGES = ("analysis", "diff", "sweep")
AXE = os.environ.get("MEMPLAN_AXE", "")

# Everything that is wrong with a page, each as one line.
RULES = """
(() => {
  const wrong = [], say = (what, of) => wrong.push(what + ": " + of.outerHTML.slice(0, 120));
  const all = selector => [...document.querySelectorAll(selector)];
  const seen = element => element.checkVisibility({ visibilityProperty: true });
  const name = element => (element.getAttribute("aria-label") || element.textContent).trim();
  if (document.documentElement.lang !== "en" || !document.title) wrong.push("no language or title");
  if (all("main").length !== 1 || all("h1").length !== 1) wrong.push("not one main part and h1");
  let level = 1;
  for (const head of all("h1,h2,h3,h4").filter(seen)) {
    const own = Number(head.tagName[1]);
    if (own > level + 1) say("a level of headings is left out", head);
    level = own;
  }
  for (const each of all("button, input, a, [role=img], [role=region]").filter(seen))
    if (!name(each)) say("no name", each);
  const regions = all("[role=region]").map(name);
  if (new Set(regions).size < regions.length) wrong.push("regions of one name: " + regions);
  for (const table of all("table").filter(seen))
    if (!table.querySelector("th")) say("no head", table);
  for (const each of all("[tabindex]")) if (each.tabIndex > 0) say("order of tabs", each);
  if (document.scrollingElement.scrollWidth > innerWidth) wrong.push("wider than the screen");
  const numbers = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(
    c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4
  ).reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const color = numbers(getComputedStyle(each).backgroundColor);
      if (color.length === 3 || color[3] > 0.9) return color;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !seen(element) || element.closest("script, svg, .narrow")) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const two = [light(numbers(style.color)), light(behind(element))].sort((a, b) => b - a);
    const large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
    if ((two[0] + 0.05) / (two[1] + 0.05) < (large ? 3 : 4.5)) say("contrast", element);
  }
  return wrong;
})()
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of a small step."""
    folder = tmp_path_factory.mktemp("pages")
    model = long_skips()
    plan = memplan.RewriteOptions("min", strategy="greedy", passes="none", optimize="none")
    found = memplan.diff(model, memplan.rewrite(model, plan).model)
    whole = swept(batched(folder), "80%", "70%", dims={"N": (64, 128)})
    made = {
        "analysis": page(tell_analysis(found.old)),
        "diff": page(tell_diff(found, details=True)),
        "sweep": page(tell_sweep(whole)),
    }
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wrong_with_a_page(pages: Path, browser: Chromium, name: str) -> None:
    for width in (1280, 390):
        for dark in (False, True):
            browser.open(pages / f"{name}.html", width, dark=dark)
            assert browser.run(RULES) == [], (width, dark)
            if AXE:
                browser.run(f"{Path(AXE).read_text(encoding='utf-8')};0")
                found = browser.run("axe.run().then(all => all.violations.map(each => each.id))")
                assert found == [], (width, dark)


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_sorted_from_the_keyboard(pages: Path, browser: Chromium, name: str) -> None:
    browser.open(pages / f"{name}.html")
    browser.run("document.body.focus()")
    for _ in range(40):
        browser.press("Tab", 9)
        if browser.run("document.activeElement.closest('th') !== null"):
            break
    order = "document.activeElement.closest('th').getAttribute('aria-sort')"
    rows = "[...document.activeElement.closest('table').tBodies[0].rows].map(r => r.textContent)"
    found = []
    for _ in range(2):
        browser.press("Enter", 13)
        found.append((browser.run(order), browser.run(rows)))
    assert {direction for direction, _ in found} == {"ascending", "descending"}
    assert sorted(found[0][1]) == sorted(found[1][1])
