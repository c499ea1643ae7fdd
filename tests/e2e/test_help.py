"""Help, versions, colours and defaults of the command line."""

from importlib.metadata import version
from pathlib import Path

import pytest

from helpers.commands import succeeded
from helpers.running import Memplan

MODEL, OUT = "model.onnx", "model.memplan.onnx"


ESCAPE = "\x1b["


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command(flag: str, memplan: Memplan) -> None:
    text = succeeded(memplan(flag))
    assert text.startswith("Usage: memplan ")
    for command in ("analyze", "check", "profile", "rewrite", "strategies", "sweep", "validate"):
        assert f"\n  {command} " in text


def test_version(memplan: Memplan) -> None:
    assert succeeded(memplan("--version")) == f"memplan {version('memplan')}\n"


@pytest.mark.parametrize(
    ("arguments", "environment", "colored"),
    [
        ((), {}, False),  # stdout is no terminal
        (("--color", "always"), {}, True),
        (("--color", "auto"), {"NO_COLOR": "1"}, False),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colors(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    colored: bool,
    memplan: Memplan,
    model: Path,
) -> None:
    text = succeeded(memplan("analyze", MODEL, *arguments, **environment))
    assert (ESCAPE in text) == colored
