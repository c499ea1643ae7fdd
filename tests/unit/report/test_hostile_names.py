"""Whatever names hold is text: on a terminal, in the log of a CI service, and in a browser."""

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from helpers.reports import Page, data_of
from helpers.running import Memplan
from helpers.sweeps import a_sweep, point
from memplan.api.analysis import analyze
from memplan.api.diff.diffing import diff
from memplan.api.sweep.point import Failure
from memplan.errors import EXIT_MODEL
from memplan.report.html.page import page as page_of
from memplan.report.parts import Report
from memplan.report.tell.analysis import tell_analysis
from memplan.report.tell.diff import tell_diff
from memplan.report.tell.sweep import tell_sweep
from memplan.report.terminal.console import show
from memplan.report.terminal.render import render
from memplan.report.terminal.tables import line

# A title, colours, a cleared screen, workflow commands, a C1 introducer, a reversed direction.
EVIL = (
    "\x1b]0;title\x07\x1b[31mred\x1b[2J\n::error file=x.py::injected\r\n##[error]x\n"
    "##vso[task.complete]\x9b31m\u202ekcatta\u2028\x85\u200f[bold red]b[/] [x](y) | `c` *"
)
TAGS = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&amp;\''
CONTROL = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def evil_model(dim: int | str = 4, evil: str = EVIL, operator: str = "Relu") -> onnx.ModelProto:
    """A step whose every name is hostile."""
    domain = "" if operator == "Relu" else "theirs"
    nodes = [
        helper.make_node(operator, [f"x{evil}"], [f"a{evil}"], name=f"relu{evil}", domain=domain),
        helper.make_node("Mul", [f"a{evil}", f"w{evil}"], [f"::b{evil}"], name=f"::mul{evil}"),
        helper.make_node(
            "ReduceMean", [f"::b{evil}"], [f"loss{evil}"], name=f"mean{evil}", keepdims=0
        ),
        helper.make_node("Mul", [f"a{evil}", f"loss{evil}"], [f"w{evil}.grad"], name=f"g{evil}"),
    ]
    for node in nodes:
        node.metadata_props.add(key="memplan.module", value=evil)
    floats = {f"x{evil}": [dim, 64], f"a{evil}": [dim, 64], f"loss{evil}": []}
    floats[f"w{evil}.grad"] = [dim, 64]
    x, a, *outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in floats.items()
    )
    weight = helper.make_tensor(f"w{evil}", TensorProto.FLOAT, [64], [0.5] * 64)
    graph = helper.make_graph(nodes, f"graph{evil}", [x], outputs, [weight], value_info=[a])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("theirs", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def an_evil_sweep() -> Report:
    broken = Failure(f"bad {TAGS}{EVIL}", "mend it", EXIT_MODEL)
    evil = point(8, "8GiB", broken, model=f"{TAGS}{EVIL}.onnx", footprint=None)
    return tell_sweep(a_sweep(point(16, "8GiB"), evil), details=True)


EVERY_NAME = evil_model(evil=TAGS + EVIL, operator=f"odd{TAGS}{EVIL}")
REPORTS: dict[str, Callable[[], Report]] = {
    "analysis": lambda: tell_analysis(analyze(EVERY_NAME)),
    "diff": lambda: tell_diff(diff(evil_model(evil=""), EVERY_NAME), details=True),
    "sweep": an_evil_sweep,
}


def harmless(text: str) -> bool:
    """No control character, and no line that a CI service would obey."""
    return not CONTROL.search(text) and not any(
        text.lstrip().startswith("::") or "##[" in text or "##vso[" in text
        for text in text.split("\n")
    )


@pytest.mark.parametrize("name", REPORTS)
def test_names_in_a_report_are_shown_and_steer_nothing(name: str) -> None:
    told = REPORTS[name]()
    text = show(render(told.parts, details=True), stdout=False)
    assert "alert(1)" in text
    assert "[bold red]" in text
    assert harmless(text)
    page = page_of(told)  # which is written to a terminal or a CI log, too
    assert not CONTROL.search(page)
    assert not re.search("^::", page, re.MULTILINE)
    assert not re.search(r"https?://|url\(|@import|<link|src=[^x]", page)
    assert "default-src 'none'" in page
    assert re.search(r"script-src 'sha256-[\w+/=]{44}'", page)
    parsed = Page(page)
    assert parsed.tags["script"] == 2
    assert not parsed.tags["img"]
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    assert any("</script><script>alert(1)" in text for text in parsed.texts)


def test_the_names_in_the_data_of_a_chart_are_whole() -> None:
    (chart,) = data_of(page_of(REPORTS["analysis"]()))["charts"]
    assert len(chart["names"]) == len(EVERY_NAME.graph.node)
    assert all("</script>" in name for name in chart["names"])


@pytest.mark.parametrize(
    "command",
    [
        "analyze",
        "analyze -v",
        "analyze -q",
        "analyze -o -",
        "rewrite --budget 100% --optimize none --dry-run -v",
        "check --update",
        "diff",
        "validate --runs 1",
        "sweep --budget 100% --format csv",
    ],
)
@pytest.mark.parametrize("name", ["model.onnx", "::error::x.onnx"])
def test_hostile_names_are_escaped(
    name: str, command: str, inside: Memplan, tmp_path: Path
) -> None:
    onnx.save(evil_model(), tmp_path / name)
    both = command.startswith(("diff", "validate"))
    done = inside(*command.split(), *[name] * (1 + both))
    assert done.returncode == 0, done.stderr
    assert harmless(done.stdout)
    assert harmless(done.stderr)
    assert done.stderr == "" or "-v" in command  # the log
    if command.startswith("analyze"):
        assert r"\x1b]0;title" in done.stdout


def test_hostile_names_in_errors_are_escaped(inside: Memplan, tmp_path: Path) -> None:
    model = evil_model(f"N{EVIL}")
    onnx.save(model, tmp_path / "symbolic.onnx")
    model.graph.node[0].input[0] = f"nowhere{EVIL}"
    onnx.save(model, tmp_path / "damaged.onnx")
    for arguments in (
        ("analyze", "symbolic.onnx"),
        ("rewrite", "symbolic.onnx", "--budget", "50%"),
        ("grad", "symbolic.onnx", "-o", "o.onnx", "--loss", f"none{EVIL}"),
        ("analyze", "damaged.onnx"),
        ("check", "--update", "symbolic.onnx", "damaged.onnx"),
        ("analyze", f"absent{EVIL}.onnx"),
        ("analyze", f"--absent{EVIL}"),
        (f"absent{EVIL}",),
    ):
        done = inside(*arguments)
        assert done.returncode in (2, 3), done.stderr
        assert harmless(done.stderr), arguments
        assert harmless(done.stdout), arguments


def test_a_wrapped_line_begins_no_command() -> None:
    text = show(line("word " * 24 + "::error::x"), stdout=False)
    assert text.split("\n")[1] == r"\x3a:error::x"
    assert "##" not in show(line("a ##[group]b ##vso[task]"), stdout=False)
    assert show(line("aten::add has ## and ::"), stdout=False) == "aten::add has ## and ::\n"
