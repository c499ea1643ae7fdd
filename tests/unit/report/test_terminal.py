"""Text reports: tables that fit a terminal, and lists that do not fill it."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper
from rich.console import Console

from helpers.graphs import parse
from helpers.reports import text_of
from helpers.running import Memplan
from helpers.state_graphs import state_step
from memplan.api.analysis import analyze
from memplan.api.validate.proof import proof_line
from memplan.api.validate.validation import Run
from memplan.equivalence.prove import Equivalence
from memplan.report.parts import Report
from memplan.report.tell.names import listed
from memplan.report.tell.rewrite import equivalence_line
from memplan.report.tell.state import state_lines
from memplan.report.tell.validate import runs_table
from memplan.report.terminal import tables
from memplan.report.terminal.tables import shortened


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


def test_grad_says_once_what_every_tensor_has(inside: Memplan, tmp_path: Path) -> None:
    """``grad -v`` listed 150 lines of names."""
    count = 40
    weights = [f"block.{k}.weight" for k in range(count)]
    products = " ".join(f"h{k + 1} = MatMul (h{k}, w{k})" for k in range(count))
    model = parse(f"g (float[4,4] h0) => (float[4,4] h{count}) {{ {products} }}")
    for node, weight in zip(model.graph.node, weights, strict=True):
        node.input[1] = weight
        model.graph.initializer.append(helper.make_tensor(weight, 1, [4, 4], [0.1] * 16))
    onnx.save(model, tmp_path / "forward.onnx")
    options = ("--loss", "mse", "--logits", f"h{count}", "--optimizer", "adamw", "-v")
    done = inside("grad", "forward.onnx", "-o", "step.onnx", *options)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    each = "and for each NAME of the 40 tensors: "
    assert (
        f"new inputs: targets, lr, step, weight_decay, {each}NAME, NAME.exp_avg, NAME.exp_avg_sq "
        in text
    )
    assert f"{each}NAME_new, NAME.exp_avg_new, NAME.exp_avg_sq_new " in text
    assert text.count("block.7.weight") == 1


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Equivalence(None, kept=1), "equivalent by construction: 1 node unchanged"),
        (
            Equivalence(None, kept=9, recomputed=2, explained=3, pins=1),
            "equivalent by construction: 9 nodes unchanged, 2 recomputed, 3 explained by a rule, "
            "1 pin",
        ),
        (
            Equivalence(None, kept=9, assumed=("loop_a", "loop_b")),
            "equivalent by construction (9 nodes unchanged) apart from 2 loops with a new body "
            "(loop_a and 1 more), whose outputs validate compares",
        ),
    ],
)
def test_the_line_says_what_was_proved(found: Equivalence, text: str) -> None:
    assert equivalence_line(found) == text


@pytest.mark.parametrize(
    "taken", [{}, {"rounded": ("y",)}, {"assumed": ("loop",)}], ids=["alone", "rounded", "assumed"]
)
def test_random_numbers_in_another_order_are_told_beside_all_else(taken: dict[str, Any]) -> None:
    found = Equivalence(None, kept=5, redrawn=True, **taken)
    assert "drawn in another order" in equivalence_line(found)
    assert "drawn in another order" in proof_line(found)


def test_second_buffers_are_told_with_the_reason() -> None:
    lines = state_lines(analyze(state_step(3), state="in-place").graph)
    assert "over the old values" in lines[0]
    assert "in a second buffer" in lines[1]


def test_nothing_is_said_of_state_in_memory_of_the_run() -> None:
    assert state_lines(analyze(state_step(3)).graph) == []
