"""Entry point: the command group, and failures turned into two lines and an exit code."""

from __future__ import annotations

import signal
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from memplan.errors import EXIT_BUG, EXIT_ENVIRONMENT, EXIT_USAGE, MemplanError
from memplan_cli.command import SETTINGS, HelpContext
from memplan_cli.failures import is_interrupt, refused_by_system, show_traceback, tell
from memplan_cli.signals import (
    TERMINATING,
    interrupt_on_signals,
    raise_lost_interrupts_again,
    received,
)
from memplan_cli.standard_files import (
    STDOUT,
    reserve_standard_files,
    silence,
    write_standard_files_whole,
)

# What shells expect of a program that a signal ends.
_SIGNALLED = 128
EXIT_PIPE = _SIGNALLED + signal.SIGPIPE

GROUPS = {
    "Look": {
        "analyze": "Account for every byte of a model's peak memory.",
        "diff": "Explain why one model needs more memory than another.",
        "device": "Show the runtime, the machine and the providers that start.",
    },
    "Fit": {
        "rewrite": "Rewrite a training graph to fit a memory budget.",
        "validate": "Prove and measure that a rewritten model keeps its promises.",
        "sweep": "Plan many sizes and budgets; find the largest batch that fits.",
        "profile": "Measure how long each node takes, for 'rewrite --costs'.",
        "strategies": "List the planning strategies, with their sources and options.",
        "plan-as": "Print a plan as a checkpoint policy for PyTorch.",
    },
    "Guard": {
        "check": "Fail when a model's peak exceeds its committed limit (for CI).",
    },
    "Make a step": {
        "capture": "Capture a PyTorch training step as an ONNX training graph.",
        "grad": "Turn a forward graph into a training graph.",
        "lower": "Convert an onnxruntime-training graph to standard operators.",
    },
    "Train": {
        "run": "Train with a training step: data in, losses and checkpoints out.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}


class ReaderGone(Exception):
    """Nobody reads our output any more (``memplan ... | head``).

    For click that is exit code 1, which would be a finding; and a gate must not look as if it had
    passed.
    """


class NoSuchCommand(click.UsageError):
    """A command that does not exist; ``possibilities`` have similar names."""

    def __init__(self, name: str, ctx: click.Context) -> None:
        super().__init__(f"unknown command '{name}'", ctx)
        self.possibilities = get_close_matches(name, COMMANDS)


class LazyGroup(click.Group):
    """Imports a command's module only when that command runs: ``--help`` stays fast."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"memplan_cli.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; one that does not exist is told without importing the others."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            raise NoSuchCommand(name, ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and tell a broken pipe from other failures."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands in groups, without importing them."""
        width = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


@click.group(cls=LazyGroup, context_settings=SETTINGS)
@click.version_option(package_name="memplan", message="memplan %(version)s")
def cli() -> None:
    """Plan, prove and guard the memory of ONNX training graphs."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code (see memplan/errors.py)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if not arguments:
            cli.main(["--help"], prog_name="memplan", standalone_mode=False)
            return EXIT_USAGE
        result = cli.main(arguments, prog_name="memplan", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except ReaderGone:
        silence(STDOUT)
        return EXIT_PIPE
    except (Exception, KeyboardInterrupt) as error:
        message, hint, code = _told(error)
        tell(message, hint)
        show_traceback(arguments)
        return code


def _told(error: BaseException) -> tuple[str, str, int]:
    """Message, hint and exit code: a signal comes first, our bug last.

    An interrupt that a library does not expect leaves it in the middle of something, and it may say
    so in any words: numba's compiler, "no compiled object yet".
    """
    if isinstance(error, click.UsageError):
        return _usage_message(error), _usage_hint(error), error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), "", error.exit_code
    ended = isinstance(error, click.Abort | KeyboardInterrupt)
    cause = error.__cause__ if isinstance(error, click.Abort) else error
    if isinstance(cause, EOFError) and ended:  # for click, the end of any file is a Ctrl-D
        error = cause
    elif ended or received or (isinstance(error, SystemError) and is_interrupt(error)):
        # Its hint, if it has one, says what the command leaves behind.
        hint = getattr(cause, "hint", "") if ended else ""
        first = received[0] if received else signal.SIGINT
        word = TERMINATING.get(first, "interrupted")
        return word, hint or "nothing was written", _SIGNALLED + first
    if isinstance(error, MemplanError):
        return error.message, error.hint, error.exit_code
    refused = refused_by_system(error)
    if refused is not None:
        silence(STDOUT)
        return *refused, EXIT_ENVIRONMENT
    message = f"{type(error).__name__}: {error}"
    return message, "this is a bug in memplan; -vv shows where", EXIT_BUG


def _usage_message(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        return f"unknown option '{error.option_name}'"
    return error.format_message()


def _usage_hint(error: click.UsageError) -> str:
    """Where to look: a similar name, or the help."""
    ctx = error.ctx
    similar = getattr(error, "possibilities", None)
    if similar:
        return "did you mean " + " or ".join(f"'{name}'" for name in similar) + "?"
    if ctx is None:
        return "see 'memplan --help'"
    return f"see '{ctx.command_path} --help'"


def run() -> None:
    """The console script."""
    reserve_standard_files()
    write_standard_files_whole()
    interrupt_on_signals()
    raise_lost_interrupts_again()
    sys.exit(main())
