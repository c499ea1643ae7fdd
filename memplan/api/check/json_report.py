"""The JSON object of ``check`` (schema ``memplan.check/1``; fields are only ever added)."""

from __future__ import annotations

import json

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check.checking import CheckResult
from memplan.api.check.differences import changed_fields, class_changes, new_tensors
from memplan.api.check.finding import Finding, Kind, change_of, worst_first
from memplan.api.check.peak import Peak
from memplan.api.check.verdict import verdict
from memplan.api.versions import runtime_json

SCHEMA = "memplan.check/1"
# Of today's peak, under the names that they have in the lock.
_FIELDS = (
    *("session", "provider", "dims", "peak_with_workspace_bytes", "peak_node"),
    *("state", "runtime", "as_loaded"),
)


def check_json(result: CheckResult) -> str:
    """The text of the object for a comparison; for an update, ``change`` says what happened to each
    entry."""
    compared, base = result.updated is None, result.base
    entries = [
        {**_entry(each), **({} if compared else {"change": str(change_of(each))})}
        for each in result.entries
    ]
    whole = {
        "schema": SCHEMA,
        **({"verdict": _verdict(result)} if compared else {}),
        "accounting_version": ACCOUNTING_VERSION,
        "runtime": runtime_json(),
        "entries": entries,
        "errors": [
            {"path": path, "message": error.message, "hint": error.hint}
            for path, error in result.errors.items()
        ],
        **({} if compared else {"updated": result.updated}),
        **({"base": {"ref": base.ref, "commit": base.commit}} if base is not None else {}),
    }
    return json.dumps(whole, indent=2) + "\n"


def _verdict(result: CheckResult) -> dict[str, object]:
    """What a person would be told first."""
    worst = next((each for each in worst_first(result.entries) if each.failed), None)
    return {
        "failed": result.failed or bool(result.errors),
        "text": verdict(result),
        "changed": [each.path for each in worst_first(result.findings) if each.kind is not Kind.OK],
        "worst": worst.path if worst is not None else None,
        "cause": worst.causes[0].line if worst is not None and worst.causes else None,
    }


def _entry(finding: Finding) -> dict[str, object]:
    now, locked, base = finding.now, finding.locked, finding.base
    found: dict[str, object] = {
        "path": finding.path,
        "status": str(finding.status),
        "locked_peak_bytes": locked.peak_bytes if locked is not None else None,
        "peak_bytes": now.peak_bytes if now is not None else None,
        "delta_bytes": now.peak_bytes - locked.peak_bytes if now and locked else None,
        "limit_bytes": finding.limit_bytes,
        "over_max_peak": finding.over_cap_bytes > 0,
        "line": finding.line or None,
        "failed": finding.failed,
        "base_peak_bytes": base.peak_bytes if base is not None else None,
        "base_problem": finding.base_problem or None,
        "causes": [
            {"kind": str(cause.kind), "text": cause.text, "detail": cause.detail}
            for cause in finding.causes
        ],
    }
    if now is not None:
        found |= {name: getattr(now, name) for name in _FIELDS}
        found |= {"by_class": now.classes, "peak_step": now.step, "steps": now.steps}
    if now is not None and locked is not None:
        found |= _difference(locked, now)
    return found


def _difference(locked: Peak, now: Peak) -> dict[str, object]:
    return {
        "locked_peak_node": locked.peak_node,
        "locked_runtime": locked.runtime,
        "changed_fields": list(changed_fields(locked, now)),
        "by_class_delta": class_changes(locked, now),
        "new_at_peak": [
            {
                "name": new.tensors.name,
                "class": new.tensors.tensor_class,
                "count": new.count,
                "count_is_exact": new.exact,
                "nbytes": new.tensors.nbytes,
                "held_by": new.tensors.held_by,
                "module": new.tensors.module or None,
                "line": new.tensors.line or None,
            }
            for new in new_tensors(locked, now)
        ],
    }
