"""``memplan plan-as``."""

from __future__ import annotations

from pathlib import Path

import click

from memplan_cli.command import memplan_command
from memplan_cli.options import PATH, Report, report_options

SCHEMA = "memplan.policy/1"


@memplan_command(
    "plan-as",
    "memplan plan-as torch plan.json -o checkpoints.py",
)
@click.argument("target", type=click.Choice(["torch"]))
@click.argument("plan", type=PATH)
@report_options(output="Write the policy to this file; - is stdout.  [default: stdout]")
def command(target: str, plan: Path, report: Report) -> int:
    """Print a PLAN as a checkpoint policy for PyTorch.

    PLAN is a file from 'memplan rewrite --plan-out', made for a step from 'memplan capture'. The
    policy is a Python module that checkpoints the model's modules. stderr and the file say what it
    cannot express.
    """
    from memplan.planning.plan_file import read_plan
    from memplan.report.policies.torch_policy import torch_policy

    report.guard(plan)
    policy = torch_policy(read_plan(plan))
    if report.form == "json":
        fields = {"schema": SCHEMA, "target": target, "text": policy.text}
        report.emit_json({**fields, "notes": list(policy.notes)})
    else:
        report.emit(policy.text)
    if not report.quiet:
        for note in policy.notes:
            click.echo(f"not in the policy: {note}", err=True)
    return 0
