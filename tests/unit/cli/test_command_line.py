"""The command line itself: options and their fields, help, suggestions, logs."""

import logging
import re
import subprocess
import sys
from dataclasses import MISSING
from importlib import import_module
from pathlib import Path

import click
import pytest

from helpers.refusals import assert_refused
from helpers.running import Memplan
from memplan.errors import EXIT_ENVIRONMENT, EXIT_USAGE
from memplan.option_fields import declared
from memplan.options import (
    GradOptions,
    LowerOptions,
    ProfileOptions,
    RewriteOptions,
    SweepOptions,
    TrainOptions,
    ValidateOptions,
)
from memplan.solver.strategies.builtin import Keep
from memplan_cli.command import GONE
from memplan_cli.main import COMMANDS, main


def command(name: str) -> click.Command:
    found: click.Command = import_module(f"memplan_cli.{name.replace('-', '_')}").command
    return found


OPTIONS = {
    "grad": (GradOptions,),
    "lower": (LowerOptions,),
    "profile": (ProfileOptions,),
    "rewrite": (RewriteOptions,),
    "run": (TrainOptions,),
    "sweep": (RewriteOptions, SweepOptions),
    "validate": (ValidateOptions,),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_a_command_takes_unless_told_otherwise_is_what_its_function_does(name: str) -> None:
    """Every option of the function is one of the command, but those of a point of a sweep."""
    given = command(name).make_context(name, [], resilient_parsing=True).params
    for kind in OPTIONS[name]:
        for option in declared(kind).values():
            if name == "sweep" and option.name not in ("loss", "strategy", "chunk", "fit_step"):
                continue
            if option.default is not MISSING and option.name != "reserve":
                assert given[option.name] == option.default


def test_rare_options_stand_last(inside: Memplan) -> None:
    text = inside("rewrite", "--help").stdout
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert headings == ["Options", "In all commands", "Rarely", "Examples"]
    assert "--strategy" in text.partition("\nRarely:\n")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_option_and_ends_with_examples(name: str, inside: Memplan) -> None:
    text = inside(name, "-h").stdout
    assert text == inside(name, "--help").stdout
    *_, examples = text.partition("\nExamples:\n")
    lines = examples.splitlines()
    assert 1 <= len(lines) <= 2
    assert any(line.startswith(f"  memplan {name}") for line in lines)
    assert all(len(line) <= 80 for line in text.splitlines())
    for option in command(name).params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, option.name


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_command_lines_that_parse(name: str) -> None:
    for example in command(name).examples:  # type: ignore[attr-defined]
        _, called, *arguments = example.split()
        parsed = command(called).make_context(called, arguments)
        assert parsed.params


@pytest.mark.parametrize(
    ("arguments", "problem", "meant"),
    [
        (["analyse"], "command 'analyse'", "'analyze'"),
        (["rewrit", "m.onnx"], "command 'rewrit'", "'rewrite'"),
        (["rewrite", "m.onnx", "--bugdet", "60%"], "option '--bugdet'", "'--budget'"),
        (["analyze", "m.onnx", "--providers", "cpu"], "option '--providers'", "'--provider'"),
    ],
)
def test_did_you_mean(arguments: list[str], problem: str, meant: str, inside: Memplan) -> None:
    done = inside(*arguments)
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error == f"error: unknown {problem}"
    assert hint.startswith("hint: did you mean ")
    assert meant in hint


@pytest.mark.parametrize(("place", "name"), GONE)
def test_what_is_gone_says_what_does_it_now(place: str, name: str, inside: Memplan) -> None:
    done = inside(place, *name.split())
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"error: {name} is gone", f"hint: {GONE[place, name]}"]
    assert done.stdout == ""


def test_windows_is_told_in_two_lines() -> None:
    source = "import sys; sys.platform = 'win32'; import memplan_cli"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert_refused(done, EXIT_ENVIRONMENT, "memplan runs on Linux and macOS", "WSL")


def test_a_command_like_no_other(inside: Memplan) -> None:
    assert inside("frobnicate").stderr.splitlines()[1] == "hint: see 'memplan --help'"


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ((), []),
        (("-v",), ["memplan.solver.strategies.builtin: told"]),
        (
            ("-vv",),
            [
                "memplan.solver.strategies.builtin: told",
                "memplan.solver.strategies.builtin: whispered",
            ],
        ),
    ],
)
def test_logs_go_to_stderr_as_asked(
    flags: tuple[str, ...], shown: list[str], inside: Memplan, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("memplan.solver.strategies.builtin")

    def as_text(*given: object) -> str:
        logger.info("told")
        logger.debug("whispered")
        return ""

    monkeypatch.setattr("memplan.solver.strategies.builtin.BUILT_IN", {Keep.name: Keep})
    monkeypatch.setattr("memplan_cli.strategies.as_text", as_text)
    assert inside("strategies", *flags).stderr.splitlines() == shown
    # Nothing is left behind for whoever uses the package in the same process.
    assert logging.getLogger("memplan").handlers == []
    assert logging.getLogger("memplan").level == logging.NOTSET


@pytest.mark.parametrize(("flag", "expected"), [("-v", False), ("-vv", True)])
def test_a_traceback_is_shown_on_demand(flag: str, expected: bool, inside: Memplan) -> None:
    done = inside("analyze", "absent\x1b[2J.onnx", flag)
    assert done.returncode == 3
    assert ("Traceback" in done.stderr) == expected
    assert done.stderr.splitlines()[0] == r"error: absent\x1b[2J.onnx does not exist"
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "rewrite m.onnx --budget 80% --effort 3 --time-limit 2",
            "error: --effort counts rounds of the search, --time-limit its",
        ),
        ("rewrite m.onnx --plan p.json --dim N=2", "error: --dim is decided by the plan"),
        ("rewrite m.onnx -o fits.onnx", "error: Missing option '--budget'"),
        ("grad m.onnx -o step.onnx", "error: Missing option '--loss'"),
        ("capture train.py:f -o -", "error: capture cannot write to stdout"),
    ],
)
def test_options_that_exclude_each_other(command: str, says: str, inside: Memplan) -> None:
    """Refused before the model is looked at, which is not there."""
    done = inside(*command.split())
    assert_refused(done, EXIT_USAGE, says)


def test_a_small_bare_number_was_a_percentage(inside: Memplan, tmp_path: Path) -> None:
    from helpers import odd_models as odd

    odd.saved(odd.training(), tmp_path, "m.onnx")
    done = inside("rewrite", "m.onnx", "--budget", "60", "--optimize", "none")
    assert done.returncode == 4
    assert "hint: a bare number is bytes; did you mean --budget 60%?" in done.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rewrite --strategy m", ["memory", "min-cut", "mirror"]),
        ("rewrite --strategy a", ["auto"]),
        ("grad --optimizer adag", ["adagrad"]),
        ("re", ["rewrite"]),
        ("rewrite --bu", ["--budget"]),
    ],
)
def test_a_shell_completes_commands_options_and_names(
    words: str,
    offered: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As docs/reference.md has bash ask for it."""
    monkeypatch.setenv("_MEMPLAN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"memplan {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit):
        main([])
    found = [line.split(",")[1] for line in capsys.readouterr().out.splitlines()]
    assert found == offered


def test_strategies_fit_a_terminal(inside: Memplan) -> None:
    assert all(len(line) <= 80 for line in inside("strategies").stdout.splitlines())
