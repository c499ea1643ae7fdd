"""``memplan device``."""

from __future__ import annotations

from memplan.options import ProfileOptions
from memplan_cli.command import memplan_command
from memplan_cli.options import Report, options, report_options
from memplan_cli.progress import waiting


@memplan_command("device", "memplan device", "memplan device --provider cuda --format json")
@options(
    ProfileOptions,
    "provider",
    help="Require this provider: exit with code 5 if it does not start.",
)
@report_options()
def command(provider: str, report: Report) -> int:
    """Show the runtime, the GPU and the machine, and which execution providers start."""
    from memplan.api.versions import measured_runtime
    from memplan.runtime.cuda_device import describe_device, require

    report.guard()
    with waiting(report, "starting providers"):
        require(provider)
        device = describe_device()
    if report.form == "json":
        report.emit_json({**device.as_json(), "measured_on": measured_runtime()})
    elif not report.quiet:
        from memplan.report.tell.device import tell_device

        report.emit(report.text_of(*tell_device(device).parts))
    return 0
