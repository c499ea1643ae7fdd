"""Text reports: tables that fit, and names that cannot steer a terminal or a CI service."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

from helpers.reports import text_of
from helpers.running import Memplan, runner
from memplan.api.analysis import analyze
from memplan.api.validate.validation import Run
from memplan.report.parts import Report, Table
from memplan.report.tell.analysis import tell_analysis
from memplan.report.tell.names import listed
from memplan.report.tell.validate import runs_table
from memplan.report.terminal import tables
from memplan.report.terminal.console import show
from memplan.report.terminal.tables import line, shortened

# A title, colours, a cleared screen, workflow commands, a C1 introducer, a reversed direction.
EVIL = (
    "\x1b]0;title\x07\x1b[31mred\x1b[2J\n::error file=x.py::injected\r\n##[error]x\n"
    "##vso[task.complete]\x9b31m\u202ekcatta\u2028\x85\u200f"
)
CONTROL = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def evil_model(dim: int | str = 4) -> onnx.ModelProto:
    """A step whose every name is hostile."""
    nodes = [
        helper.make_node("Relu", [f"x{EVIL}"], [f"a{EVIL}"], name=f"relu{EVIL}"),
        helper.make_node("Mul", [f"a{EVIL}", f"w{EVIL}"], [f"::b{EVIL}"], name=f"::mul{EVIL}"),
        helper.make_node(
            "ReduceMean", [f"::b{EVIL}"], [f"loss{EVIL}"], name=f"mean{EVIL}", keepdims=0
        ),
        helper.make_node("Mul", [f"a{EVIL}", f"loss{EVIL}"], [f"w{EVIL}.grad"], name=f"g{EVIL}"),
    ]
    graph = helper.make_graph(
        nodes,
        f"graph{EVIL}",
        [helper.make_tensor_value_info(f"x{EVIL}", TensorProto.FLOAT, [dim, 64])],
        [
            helper.make_tensor_value_info(f"loss{EVIL}", TensorProto.FLOAT, []),
            helper.make_tensor_value_info(f"w{EVIL}.grad", TensorProto.FLOAT, [dim, 64]),
        ],
        [helper.make_tensor(f"w{EVIL}", TensorProto.FLOAT, [64], [0.5] * 64)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    return runner(tmp_path, monkeypatch, capfd)


def harmless(text: str) -> bool:
    """No control character, and no line that a CI service would obey."""
    return not CONTROL.search(text) and not any(
        text.lstrip().startswith("::") or "##[" in text or "##vso[" in text
        for text in text.split("\n")
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze",),
        ("analyze", "-v"),
        ("analyze", "-q"),
        ("analyze", "-o", "-"),
        ("rewrite", "--budget", "100%", "--optimize", "none", "--dry-run", "-v"),
        ("check", "--update"),
    ],
)
@pytest.mark.parametrize("name", ["model.onnx", "::error::x.onnx"])
def test_hostile_names_are_escaped(
    name: str, arguments: tuple[str, ...], run: Memplan, tmp_path: Path
) -> None:
    onnx.save(evil_model(), tmp_path / name)
    done = run(*arguments, name)
    assert done.returncode == 0, done.stderr
    assert harmless(done.stdout)
    assert harmless(done.stderr)
    assert done.stderr == "" or "-v" in arguments  # the log
    if arguments[0] == "analyze":
        assert r"\x1b]0;title" in done.stdout


def test_hostile_names_in_errors_are_escaped(run: Memplan, tmp_path: Path) -> None:
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
        done = run(*arguments)
        assert done.returncode in (2, 3), done.stderr
        assert harmless(done.stderr), arguments
        assert harmless(done.stdout), arguments


def test_a_wrapped_line_begins_no_command() -> None:
    text = show(line("word " * 24 + "::error::x"), stdout=False)
    assert text.split("\n")[1] == r"\x3a:error::x"
    assert "##" not in show(line("a ##[group]b ##vso[task]"), stdout=False)
    assert show(line("aten::add has ## and ::"), stdout=False) == "aten::add has ## and ::\n"


def test_markup_in_names_is_shown_as_it_is() -> None:
    table = tables.Table("[bold]title[/bold]", ("[red]head", "name"))
    table.row("[green]cell[/green]")
    text = show(table, stdout=False)
    assert "[bold]title[/bold]" in text
    assert "[green]cell[/green]" in text


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("blocks.0.attn", 13, "blocks.0.attn"),
        ("blocks.0.attn.dropout", 11, "block…opout"),
        ("blocks.0.attn.dropout", 10, "block…pout"),
        ("abc", 1, "…"),
        ("模型模型模型", 7, "模…型"),
    ],
)
def test_names_are_shortened_in_the_middle(text: str, width: int, expected: str) -> None:
    assert shortened(text, width) == expected


def test_no_cell_wraps_on_a_narrow_terminal() -> None:
    table = tables.Table("title", ("tensor", "name"), ("size", "number"), ("held by", "phrase"))
    table.row("transformer.blocks.11.attention.dropout_mask", "8.00 MiB", "MatMul " + "n" * 60)
    buffer = io.StringIO()
    Console(file=buffer, width=50).print(table)
    (row,) = buffer.getvalue().splitlines()[3:]
    assert re.fullmatch(r"transf\S*…\S*mask +8\.00 MiB +MatMul n+… *", row)


def test_lists_say_how_much_is_left_out() -> None:
    assert listed(["a"]) == "a"
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"
    assert listed(list("abcdefg"), details=True) == "a, b, c, d, e, f, g"


def test_stash_is_told_in_all_and_at_the_peak(tmp_path: Path) -> None:
    onnx.save(evil_model(), tmp_path / "m.onnx")
    analysis = analyze(tmp_path / "m.onnx")
    titles = [part.title for part in tell_analysis(analysis).parts if isinstance(part, Table)]
    stash = r"Stash: \S+ \S+ in all, \S+ \S+ of it at the peak; \d+ tensors? made .*"
    assert any(re.fullmatch(stash, title) for title in titles)


def test_what_validate_measured_fits_80_columns() -> None:
    """Each row on one line: labels of two words a line filled the screen."""
    run = Run(
        *("", "tuned", 378_138_149, 378_138_149, 358_353_924, 378_138_149, 19_784_225),
        *(358_353_924, 358_353_924, (358_353_924,), 536_871_457, 364_986_368, 12.5, {}),
    )
    labels = ("original, extended fusions", "rewritten", "original, plain default")
    table = runs_table([replace(run, label=n) for n in labels])
    lines = text_of(Report([table]), width=80).splitlines()
    rows = [line for line in lines[5:] if line.strip()]
    assert len(rows) == 12
    assert all(re.match(r"\S.*[^ ]   +[\d-]", row) for row in rows)
    assert not any("…" in line for line in lines)


def test_grad_says_once_what_every_tensor_has(run: Memplan, tmp_path: Path) -> None:
    """``grad -v`` listed 150 lines of names."""
    count = 40
    weights = [f"block.{k}.weight" for k in range(count)]
    nodes = [
        helper.make_node("MatMul", [f"h{k}", weight], [f"h{k + 1}"])
        for k, weight in enumerate(weights)
    ]
    values = [helper.make_tensor_value_info(name, 1, [4, 4]) for name in ("h0", f"h{count}")]
    tensors = [helper.make_tensor(weight, 1, [4, 4], [0.1] * 16) for weight in weights]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    opset = [helper.make_opsetid("", 20)]
    onnx.save(
        helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "forward.onnx"
    )
    options = ("--loss", "mse", "--logits", f"h{count}", "--optimizer", "adamw", "-v")
    done = run("grad", "forward.onnx", "-o", "step.onnx", *options)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    each = "and for each NAME of the 40 tensors: "
    assert (
        f"new inputs: targets, lr, step, weight_decay, {each}NAME, NAME.exp_avg, NAME.exp_avg_sq "
        in text
    )
    assert f"{each}NAME_new, NAME.exp_avg_new, NAME.exp_avg_sq_new " in text
    assert text.count("block.7.weight") == 1
