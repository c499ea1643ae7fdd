"""Entry point: the command group, and errors turned into two lines and an exit code."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module

import click
from click.core import ParameterSource

from memplan.errors import EXIT_BUG, EXIT_USAGE, MemplanError

COMMANDS = {
    "analyze": "Say what every byte of the peak is, and why it is alive.",
    "check": "Compare the peaks of models with a committed lock (for CI).",
    "rewrite": "Rewrite a training graph so that it fits a memory budget.",
    "validate": "Run two models, and prove the peaks and the equality of results.",
}


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
    except (click.Abort, KeyboardInterrupt):
        return _report("interrupted", "nothing was written", 130, arguments)
    except BrokenPipeError:
        # The reader of our output went away (memplan ... | head): no reason to complain.
        sys.stderr.close()
        return 0
    except Exception as error:  # the last resort: our bug, told in two lines
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
