"""``memplan device``."""

from __future__ import annotations

import json

import click

from memplan_cli.options import configuration_option, emit, output_options


@click.command("device")
@click.option(
    "--provider",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Exit with 5 if this provider does not start.",
)
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@output_options
@configuration_option
def command(provider: str, form: str, quiet: bool, verbose: int, color: str, force: bool) -> int:
    """Say what the runtime, the GPU and the machine are, and which providers really start."""
    from memplan.runtime.device import describe_device, require

    require(provider)
    device = describe_device()
    if form == "json":
        emit(json.dumps(device.as_json(), indent=2) + "\n", None, force)
    elif not quiet:
        from memplan.report.terminal.device import device_text

        emit(device_text(device), None, force)
    return 0
