"""Every format of ``check``: what services demand of it, and what names may not do to it."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from helpers.locks import LOCK, MIB, an_entry, held, today
from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check.base import BaseCommit
from memplan.api.check.checking import CheckResult
from memplan.api.check.finding import Finding, Kind
from memplan.api.check.peak import TopTensors
from memplan.errors import ModelError
from memplan.report.check.formats import FORMATS, rendered
from memplan.report.check.markdown import MARKER, MOST_CHARACTERS, markdown
from memplan.report.check.services import (
    MOST,
    benchmark,
    code_quality,
    github_annotations,
    junit,
)


def entry(
    path: str = "models/gpt_tiny.train.onnx", grown: int = MIB, line: int = 9, **more: Any
) -> Finding:
    """A model whose peak of 100 MiB grew by so many bytes, all of it a stash."""
    locked = an_entry(path=path)
    top = (*locked.top, TopTensors("probs*", "stash", 12, grown // 12))
    now = today(locked, peak_bytes=locked.peak_bytes + grown, fingerprint="0" * 32, top=top)
    return held(locked, now, line, **more)


def result(*findings: Finding) -> CheckResult:
    return CheckResult(LOCK, findings)


def one_of_each() -> CheckResult:
    """Every status once, and a model that could not be read."""
    other = an_entry(path="other.onnx", accounting=ACCOUNTING_VERSION + 1)
    gone, bad, problem = Path("gone.onnx"), Path("bad.onnx"), ModelError("no\nmodel", "export it")
    return result(
        entry("grown.onnx"),
        entry("smaller.onnx", -MIB),
        entry("same.onnx", 0),
        held(other, today(an_entry(path="other.onnx"), peak_bytes=1)),
        Finding("gone.onnx", gone, Kind.MISSING, locked=an_entry(line=20)),
        held(None, today(an_entry(path="unknown.onnx"))),
        Finding("bad.onnx", bad, Kind.UNREADABLE, error=problem),
    )


class TestGithub:
    COMMAND = re.compile(
        r"::(error|warning|notice) file=([^,:]+),line=(\d+),title=([^,:]+)::([^\n]*)"
    )

    def commands(self, found: CheckResult) -> list[tuple[str, ...]]:
        lines = github_annotations(found).splitlines()
        return [m.groups() for line in lines if (m := self.COMMAND.fullmatch(line))]

    def test_nine_at_most_worst_first(self) -> None:
        found = result(*(entry(f"m{k:02}.onnx", k * MIB) for k in range(1, 13)))
        told = self.commands(found)
        assert len(told) == MOST
        assert [unquote(title) for _, _, _, title, _ in told][:2] == [
            "memplan: regressed: m12.onnx",
            "memplan: regressed: m11.onnx",
        ]
        assert "::error title=memplan::3 more findings" in github_annotations(found)
        assert github_annotations(found).endswith("memplan: 12 of 12 models need more memory\n")

    def test_a_finding_stands_at_its_line_and_says_cause_and_cure(self) -> None:
        ((level, file, line, _, data),) = self.commands(result(entry(grown=12 * MIB)))
        assert (level, file, line) == ("error", "memplan.lock", "9")
        text = unquote(data).splitlines()
        assert text[0].startswith("peak +12.0 MiB (+12.0%), 100 MiB -> 112 MiB, limit 100 MiB (")
        assert text[1] == "12 more tensors stay live into backward: probs*, 12 x 1.00 MiB"
        assert [part.split(":")[0] for part in text[2:]] == ["accept", "fit"]

    def test_levels(self) -> None:
        levels = {
            unquote(title).split()[1]: level
            for level, _, _, title, _ in self.commands(one_of_each())
        }
        assert levels == {
            "regressed:": "error",
            "missing:": "error",
            "orphan:": "error",
            "unreadable:": "error",
            "accounting-changed:": "warning",
            "improved:": "notice",
        }


class TestGitlab:
    def test_what_gitlab_requires(self) -> None:
        issues = json.loads(code_quality(one_of_each()))
        assert len(issues) == 6
        for issue in issues:
            assert set(issue) == {
                "description",
                "check_name",
                "fingerprint",
                "severity",
                "location",
            }
            assert all(
                isinstance(issue[name], str) and issue[name] for name in set(issue) - {"location"}
            )
            assert issue["severity"] in ("info", "minor", "major", "critical", "blocker")
            assert not issue["location"]["path"].startswith(("/", "./"))
            assert issue["location"]["lines"]["begin"] >= 1
        assert len({issue["fingerprint"] for issue in issues}) == len(issues)
        assert json.loads(code_quality(result(entry(grown=0)))) == []

    def test_the_fingerprint_is_of_lock_model_and_kind(self) -> None:
        def of(found: CheckResult) -> str:
            return str(json.loads(code_quality(found))[0]["fingerprint"])

        first = of(result(entry()))
        assert of(result(entry(grown=2 * MIB, line=77))) == first
        assert of(result(entry("models/other.onnx"))) != first
        assert of(replace(result(entry()), lock=Path("ci/other.lock"))) != first
        assert of(result(entry(grown=-MIB))) != first


class TestJUnit:
    # The elements and attributes of the schema that Jenkins' xUnit plugin has for JUnit.
    KNOWN: ClassVar[dict[str, set[str]]] = {
        "testsuites": {"name", "time", "tests", "failures", "errors"},
        "testsuite": {"name", "time", "tests", "failures", "errors", "skipped"},
        "testcase": {"name", "time", "classname"},
        "failure": {"type", "message"},
        "error": {"type", "message"},
        "skipped": {"type", "message"},
        "system-out": set[str](),
    }

    def test_a_case_per_model(self) -> None:
        root = ElementTree.fromstring(junit(one_of_each()))
        for element in root.iter():
            assert set(element.attrib) <= self.KNOWN[element.tag], element.tag
        (suite,) = root
        assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == [
            "7",
            "3",
            "1",
            "1",
        ]
        cases = {case.get("name"): case[0].tag for case in suite}
        assert cases == {
            "grown.onnx": "failure",
            "gone.onnx": "failure",
            "unknown.onnx": "failure",
            "bad.onnx": "error",
            "other.onnx": "skipped",
            "smaller.onnx": "system-out",
            "same.onnx": "system-out",
        }
        failure = suite[0][0]
        assert failure.get("type") == "regressed"
        assert "accept:  memplan check --update grown.onnx" in (failure.text or "")


class TestBenchmark:
    def test_what_the_action_reads(self) -> None:
        points = json.loads(benchmark(one_of_each()))
        assert [point["name"] for point in points[:2]] == ["grown.onnx N=32", "unknown.onnx N=32"]
        for point in points:
            assert set(point) == {"name", "unit", "value", "extra"}
            assert isinstance(point["value"], int)
            assert point["unit"] == "bytes"


class TestMarkdown:
    def test_the_verdict_comes_first_and_fits_a_phone(self) -> None:
        names = ["models/gpt_tiny.train.onnx", "a.onnx", "b.onnx", "c.onnx"]
        grown = [96 * MIB, 0, 0, 0]
        found = result(*(entry(n, g) for n, g in zip(names, grown, strict=True)))
        text = markdown(found)
        assert text.splitlines()[0] == (
            "**memplan: 1 of 4 models needs more memory** · gpt_tiny +96.0 MiB (+96.0%)"
        )
        assert "3 unchanged" in text
        assert "`a.onnx`" not in text
        assert text.endswith(f"{MARKER}memplan.lock -->\n")
        assert len(markdown(result(entry("m" * 500, 9 * MIB))).splitlines()[0]) < 110

    def test_good_news_and_no_news(self) -> None:
        assert markdown(result(entry(grown=0))).startswith("**memplan: 1 model unchanged**\n")
        text = markdown(result(entry(grown=-MIB)))
        assert text.startswith("**memplan: 1 of 1 model needs less memory** · gpt_tiny -1.00 MiB")

    def test_two_models_of_one_name_are_told_apart(self) -> None:
        text = markdown(result(entry("a/step.onnx", 0), entry("b/step.onnx", MIB)))
        assert text.splitlines()[0].endswith("** · `b/step.onnx` +1.00 MiB (+1.0%)")

    def test_unknown_is_a_row_of_its_own(self) -> None:
        table = markdown(one_of_each()).split("<details>")[0]
        for path, words in (
            ("other.onnx", "not comparable: record it again"),
            ("gone.onnx", "**missing: only the lock lists it**"),
            ("unknown.onnx", "**not in the lock**"),
            ("bad.onnx", "**could not be read**"),
        ):
            (row,) = [line for line in table.splitlines() if f"`{path}`" in line]
            assert words in row

    def test_the_base_has_a_column(self) -> None:
        locked = an_entry()
        now, base = today(locked, peak_bytes=130 * MIB), today(locked, peak_bytes=110 * MIB)
        found = held(locked, now, base=base)
        text = markdown(CheckResult(LOCK, (found,), BaseCommit("origin/main", "0123456789abcdef")))
        assert "| model | locked | base | now | change | why |" in text
        assert "| 100 MiB | 110 MiB | 130 MiB | **+30.0 MiB (+30.0%)** |" in text
        assert "base: the merge-base with `origin/main`, 012345678\n" in text

    @pytest.mark.parametrize("length", [10, 4000])
    def test_never_too_long(self, length: int) -> None:
        found = result(*(entry(f"{k}{'x' * length}.onnx", MIB + k) for k in range(800)))
        text = markdown(found)
        assert len(text) <= MOST_CHARACTERS
        (table,) = re.findall(r"^([\d,]+) models more$", text, re.MULTILINE)
        rows = text.count("\n| `")
        assert rows + int(table.replace(",", "")) == 800
        assert rows > 50
        (folded,) = re.findall(r"details of ([\d,]+) more", text)
        assert text.count("<details>") + int(folded.replace(",", "")) == 800
        assert text.count("<details>") == text.count("</details>")

    def test_text_in_a_block_cannot_end_it(self) -> None:
        text = markdown(result(entry("```` <b>.onnx")))
        assert "`````text\n" in text
        summary = re.search("<summary>(.*)</summary>", text)
        assert "<b>" not in summary[1]


def five() -> CheckResult:
    """Five models that grew by tensors whose module and line are known."""
    found = []
    for k in range(5):
        locked = an_entry(path=f"models/of/this/project/{'x' * 20}/step_{k}.train.onnx")
        made = TopTensors("probs*", "stash", 12, MIB, "MatMul mm", "blocks.*.attn", "model.py:31")
        grown = {"peak_bytes": 112 * MIB + k, "fingerprint": "0" * 32}
        found.append(held(locked, today(locked, top=(*locked.top, made), **grown)))
    return result(*found)


@pytest.mark.parametrize("form", FORMATS)
def test_five_changes_are_named_on_the_first_screen(form: str) -> None:
    first = "\n".join(rendered(five(), form).splitlines()[:12])
    assert all(f"step_{k}.train" in first for k in range(5))


@pytest.mark.parametrize("form", ["text", "json", "markdown", "github", "gitlab", "junit"])
def test_modules_stand_before_tensors_and_the_line_behind(form: str) -> None:
    text = rendered(five(), form).replace("`", "")
    assert re.search(r"blocks\.\*\.attn probs\*.*model\.py:31", text)


def test_no_line_of_a_comment_needs_scrolling_and_commands_stay_commands() -> None:
    text = markdown(five())
    assert "&#" not in text
    blocks = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 110
    (fit,) = re.findall(r"fit: +(.*?)\n\Z", blocks[0], re.DOTALL)
    assert "\\\n" in fit
    (plain,) = re.findall(r"fit: +(.*step_4.*)", rendered(five(), "text"))
    assert shlex.split(fit.replace("\\\n", " ")) == shlex.split(plain)


def test_a_lock_that_is_too_loose_is_a_finding_with_strict() -> None:
    assert not result(entry(grown=-MIB)).failed
    found = result(entry(grown=-MIB, strict=True))
    assert found.failed
    assert "the lock allows 1.00 MiB more than is needed (--strict)" in junit(found)
    assert "memplan check --update" in github_annotations(found)
    assert '"check_name": "memplan-too-loose"' in code_quality(found)
    assert "1 of 1 model locked too loosely" in markdown(found)


def outside_of_code(text: str) -> str:
    """Markdown without its spans of code."""
    return re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "", text)


@pytest.mark.parametrize(
    "name",
    [
        "p\n::error::x",
        "``` <b>|[a](http://b)",
        "]]>&<x>",
        "\x1b[2J\u202e",
        "--> @all #1 :tada: www.a.org",
    ],
)
def test_what_a_model_and_its_tensors_are_called_is_text(name: str) -> None:
    locked = an_entry(path=f"{name}.onnx")
    top = (*locked.top, TopTensors(name, "stash", 2, 60 * MIB))
    now = today(locked, peak_bytes=200 * MIB, fingerprint="0" * 32, top=top, peak_node=name)
    found = result(held(locked, now))
    texts = {form: rendered(found, form) for form in FORMATS}
    assert all(c.isprintable() or c == "\n" for text in texts.values() for c in text)
    assert texts["github"].count("\n") == 2
    ElementTree.fromstring(texts["junit"])
    table, _, folded = texts["markdown"].partition("<details>")
    assert "<" not in outside_of_code(table)
    (row,) = [line for line in table.splitlines() if line.startswith("| `")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 6
    steers = re.search(r"[#@]|\]\(|:tada:|www\.", outside_of_code(row))
    assert steers is None
    fence = re.search("^`+", folded, re.MULTILINE)
    assert len(re.findall(f"^{fence[0]}", folded, re.MULTILINE)) == 2
