"""What all commands have in common: examples in the help, configuration, logging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from memplan.errors import UsageError
from memplan_cli.configuration import configured, log_defaults, source_of_defaults
from memplan_cli.logs import logging_to_stderr

# Of help texts, which are as wide as the terminal up to 100 columns.
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_UNBREAKABLE = str.maketrans("-", "\N{NON-BREAKING HYPHEN}")


class _Formatter(click.HelpFormatter):
    """Breaks no line at a hyphen: options and names stay whole."""

    def write_text(self, text: str) -> None:
        super().write_text(text.translate(_UNBREAKABLE))

    def write_dl(self, rows: Iterable[tuple[str, str]], *args: Any, **settings: Any) -> None:
        whole = [(name, text.translate(_UNBREAKABLE)) for name, text in rows]
        super().write_dl(whole, *args, **settings)

    def getvalue(self) -> str:
        return super().getvalue().replace("\N{NON-BREAKING HYPHEN}", "-")


class HelpContext(click.Context):
    """Of all commands, and of the program."""

    formatter_class = _Formatter


class Command(click.Command):
    """A command with ``examples`` below its help, and defaults from pyproject.toml."""

    context_class = HelpContext

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)
        # Eager: pyproject.toml is read before the other options, but not where --help is asked.
        self.params.append(
            click.Option(
                ["--_configuration"],
                is_eager=True,
                hidden=True,
                expose_value=False,
                callback=_configure,
            )
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; ``-v`` shows what memplan logs."""
        with logging_to_stderr(ctx.params.get("verbose", 0)):
            log_defaults(ctx)
            try:
                return super().invoke(ctx)
            except UsageError as error:
                error.hint = _with_source(error.hint, source_of_defaults(ctx))
                raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, each on a line of its own, to be copied."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


def _with_source(hint: str, source: str) -> str:
    """A hint that also tells which values nobody typed."""
    return "; ".join(part for part in (hint, source and f"configured: {source}") if part)


def _configure(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Fill click's default map from pyproject.toml."""
    ctx.default_map = configured(ctx)
    return value


def memplan_command(name: str, *examples: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Declares a command of the program; ``examples`` are command lines for its help."""
    return click.command(name, cls=Command, examples=examples, context_settings=SETTINGS)
