"""What all commands have in common: examples in the help, logging, options that are gone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from memplan.errors import UsageError
from memplan_cli.logs import logging_to_stderr
from memplan_cli.options import OPTIONS, RARELY, SHARED

# Of help texts, which are as wide as the terminal up to 100 columns.
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_DEFAULTS = re.compile(rb"^\s*\[\s*tool\s*\.\s*memplan\s*[.\]]", re.MULTILINE)
_IN_PYTHON = "memplan.SweepOptions(plan=memplan.RewriteOptions(...)), in Python"
_DASK = "memplan.sweep inside joblib.parallel_config(backend='dask'), in Python"
# What earlier versions had, by command, and what does it now: an option, an option with one of its
# values, or an argument.
GONE = {
    ("analyze", "--format chrome-trace"): "--format html, or torch-snapshot",
    ("analyze", "--frontier"): "memplan sweep MODEL --budget 40%,60%,80%",
    ("capture", "--clip-norm"): "return memplan.TorchStep(..., clip_norm=X) from FUNCTION",
    ("capture", "--clip-value"): "return memplan.TorchStep(..., clip_value=X) from FUNCTION",
    ("capture", "--ema"): "return memplan.TorchStep(..., ema=DECAY) from FUNCTION",
    ("capture", "--loss-scale"): "return memplan.TorchStep(..., scaler=SCALE) from FUNCTION",
    ("capture", "--via"): "leave it out: there is one way to capture",
    ("grad", "--checkpoints"): "memplan rewrite STEP --strategy memory (speed, collection, list)",
    ("grad", "--scan-recompute"): "memplan rewrite STEP --scan-recompute all",
    ("grad", "--weights embed"): "--weights copy",
    ("lower", "--accumulate"): "add up the outputs NAME_grad over the batches",
    ("lower", "--weights embed"): "--weights copy",
    ("plan-as", "jax"): "memplan plan-as torch PLAN",
    ("plan-as", "maxtext"): "memplan plan-as torch PLAN",
    ("rewrite", "--gap"): "--strategy 'search{gap=P}'",
    ("rewrite", "--host-link"): "--device gh200, or another whose link is as fast",
    ("rewrite", "--optimize basic"): "--optimize extended",
    ("rewrite", "--profile"): "memplan profile MODEL -o costs.json, and --costs costs.json",
    ("rewrite", "--seed"): "--strategy 'search{seed=N}'",
    ("rewrite", "--strict"): "leave it out: --plan refuses a graph that has changed",
    ("rewrite", "--weights embed"): "--weights copy",
    ("run", "--batch"): "--dim N=SIZE, where N is the size that MODEL leaves open",
    ("run", "--guard"): "the state is always guarded; memplan.Trainer(guard=False) does without",
    ("run", "--measure"): "memplan.Trainer(measure=True) and its measured_peaks()",
    ("run", "--no-guard"): "memplan.Trainer(guard=False)",
    ("run", "--no-spin"): "--threads 1, or memplan.Trainer(spin=False)",
    ("run", "--spin"): "idle threads spin; memplan.Trainer(spin=False) lets them sleep",
    ("sweep", "--address"): _DASK,
    ("sweep", "--backend"): _DASK,
    ("sweep", "--keep"): _IN_PYTHON,
    ("sweep", "--optimize"): _IN_PYTHON,
    ("sweep", "--passes"): _IN_PYTHON,
    ("sweep", "--recompute"): _IN_PYTHON,
    ("sweep", "--reserve"): "take it off the sizes of --budget and --fit",
    ("sweep", "--resume"): "give fewer models, sizes or budgets to a command",
    ("sweep", "--scan-recompute"): _IN_PYTHON,
    ("sweep", "--seed"): "--strategy 'search{seed=N}'",
    ("sweep", "--wrt"): _IN_PYTHON,
}
_LAST = {SHARED: 1, RARELY: 2}
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
    """A command with ``examples`` below its help, and options by headings above."""

    context_class = HelpContext

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments; what is gone is told with what does it now."""
        try:
            return super().parse_args(ctx, args)
        except (click.NoSuchOption, click.BadParameter) as error:
            _refuse_gone(self.name or "", error)
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; ``-v`` shows what memplan logs."""
        _refuse_defaults()
        with logging_to_stderr(ctx.params.get("verbose", 0)):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options by headings: its own first, those of all commands and the rare ones last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if row:
                other = SHARED if "--help" in param.opts else OPTIONS
                sections.setdefault(getattr(param, "heading", other), []).append(row)
        for heading in sorted(sections, key=lambda each: _LAST.get(each, 0)):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, each on a line of its own, to be copied."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


def _refuse_gone(command: str, error: click.NoSuchOption | click.BadParameter) -> None:
    """Refuse what earlier versions had.

    Raises:
        UsageError: ``error`` is about that.
    """
    for (place, name), instead in GONE.items():
        if place == command and _is_about(error, name):
            raise UsageError(f"{name} is gone", instead) from error


def _is_about(error: click.NoSuchOption | click.BadParameter, name: str) -> bool:
    """Whether an option, a value of one or an argument is what click does not know."""
    if isinstance(error, click.NoSuchOption):
        return error.option_name == name
    option, _, value = name.rpartition(" ")
    options = error.param.opts if isinstance(error.param, click.Option) else [""]
    return option in options and f"'{value}' is not " in error.message


def _refuse_defaults() -> None:
    """Refuse the table of defaults that earlier versions took from the nearest pyproject.toml:
    without them a command would do something else, in silence.

    Raises:
        UsageError: there is one.
    """
    try:
        here = Path.cwd()
        nearest = (f for p in (here, *here.parents) if (f := p / "pyproject.toml").is_file())
        text = next((file.read_bytes() for file in nearest), b"")
    except OSError:  # the current folder was deleted, or may not be searched
        return
    if _DEFAULTS.search(text):
        raise UsageError(
            "pyproject.toml: the table [tool.memplan] is no longer read",
            "delete it, and give its options on the command line",
        )


def memplan_command(name: str, *examples: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Declares a command of the program; ``examples`` are command lines for its help."""
    return click.command(name, cls=Command, examples=examples, context_settings=SETTINGS)
