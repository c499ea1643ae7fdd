"""Entry point: the command group, and errors turned into two lines and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource

from memplan.errors import EXIT_BUG, EXIT_USAGE, MemplanError

# What shells expect of a program that a signal ends: 128 + SIGINT, 128 + SIGPIPE.
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

COMMANDS = {
    "analyze": "Say what every byte of the peak is, and why it is alive.",
    "check": "Compare the peaks of models with a committed lock (for CI).",
    "device": "Say what the runtime, the GPU and the machine are, and what starts.",
    "grad": "Turn a forward graph into a training graph in standard operators.",
    "profile": "Measure the seconds of every node, for plans that count with them.",
    "rewrite": "Rewrite a training graph so that it fits a memory budget.",
    "strategies": "List the ways to plan, their sources and their options.",
    "validate": "Run two models, and prove the peaks and the equality of results.",
}


class ReaderGone(Exception):
    """Nobody reads our output any more (``memplan ... | head``).

    For click that is exit code 1, which would be a finding; and a gate must not look as if it had
    passed.
    """


class LazyGroup(click.Group):
    """Imports a command's module only when that command runs: ``--help`` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"memplan_cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and tell a broken pipe from other failures."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # what rich makes of it
                raise ReaderGone from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
    except MemplanError as error:
        return _report(error.message, error.hint, error.exit_code, arguments)
    except click.UsageError as error:
        return _report(error.format_message(), _usage_hint(error), error.exit_code, arguments)
    except click.ClickException as error:
        return _report(error.format_message(), "", error.exit_code, arguments)
    except ReaderGone:
        # What is still buffered must not fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except click.Abort as error:
        if isinstance(error.__cause__, EOFError):  # for click, the end of any file is a Ctrl-D
            return _report_bug(error.__cause__, arguments)
        return _report("interrupted", "nothing was written", EXIT_INTERRUPTED, arguments)
    except KeyboardInterrupt:
        return _report("interrupted", "nothing was written", EXIT_INTERRUPTED, arguments)
    except Exception as error:  # the last resort: our bug, told in two lines
        return _report_bug(error, arguments)


def _report_bug(error: Exception, arguments: list[str]) -> int:
    message = f"{type(error).__name__}: {error}"
    return _report(message, "this is a bug in memplan; -vv shows where", EXIT_BUG, arguments)


def _usage_hint(error: click.UsageError) -> str:
    """Where to look: a value that nobody typed comes from a file."""
    ctx, parameter = error.ctx, getattr(error, "param", None)
    if ctx is None:
        return "see 'memplan --help'"
    name = parameter.name if parameter is not None else None
    if name and ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
        return "the value stands under [tool.memplan] in pyproject.toml"
    return f"see '{ctx.command_path} --help'"


def _report(message: str, hint: str, code: int, arguments: list[str]) -> int:
    click.echo(f"error: {_line(message)}", err=True)
    if hint:
        click.echo(f"hint: {_line(hint)}", err=True)
    if "-vv" in arguments:
        traceback.print_exc()
    return code


def _line(text: str) -> str:
    """``text`` on one line: names in a model may hold anything."""
    return " ".join(part.strip() for part in text.splitlines() if part.strip())


def run() -> None:
    """The console script."""
    sys.exit(main())
