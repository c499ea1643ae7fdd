"""The JSON object of ``check`` (schema ``memplan.check/1``; fields are only ever added)."""

from __future__ import annotations

import json

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check.causes import causes_of
from memplan.api.check.checking import CheckResult, Unreadable, UpdateResult
from memplan.api.check.compare_locks import CheckEntry, diff
from memplan.api.check.lock import LockEntry
from memplan.api.check.verdict import verdict, worst_first
from memplan.api.versions import runtime_json

SCHEMA = "memplan.check/1"


def check_json(result: CheckResult) -> str:
    """The text of the object for a comparison."""
    base = result.base
    return _dump(
        [_entry(entry) for entry in result.entries],
        result.failures,
        verdict=_verdict(result),
        **({"base": {"ref": base.ref, "commit": base.commit}} if base is not None else {}),
    )


def _verdict(result: CheckResult) -> dict[str, object]:
    """What a person would be told first."""
    worst = next((e for e in worst_first(result.entries) if e.failed), None)
    return {
        "failed": result.failed or bool(result.failures),
        "text": verdict(result),
        "worst": worst.path if worst is not None else None,
        "cause": next((cause.line for cause in causes_of(worst)), None) if worst else None,
    }


def update_json(result: UpdateResult) -> str:
    """The same for an update; ``change`` says what happened to each entry."""
    pairs = zip(result.entries, result.changes, strict=True)
    entries = [{**_entry(entry), "change": str(change)} for entry, change in pairs]
    return _dump(entries, result.failures, updated=result.accepted)


def _dump(
    entries: list[dict[str, object]],
    failures: tuple[Unreadable, ...],
    verdict: dict[str, object] | None = None,
    **more: object,
) -> str:
    errors = [{"path": f.path, "message": f.error.message, "hint": f.error.hint} for f in failures]
    whole = {
        "schema": SCHEMA,
        **({"verdict": verdict} if verdict is not None else {}),
        "accounting_version": ACCOUNTING_VERSION,
        "runtime": runtime_json(),
        "entries": entries,
        "errors": errors,
        **more,
    }
    return json.dumps(whole, indent=2) + "\n"


def _entry(entry: CheckEntry) -> dict[str, object]:
    found: dict[str, object] = {
        "path": entry.path,
        "status": str(entry.status),
        "locked_peak_bytes": entry.locked_peak_bytes,
        "peak_bytes": entry.peak_bytes,
        "delta_bytes": entry.delta_bytes,
        "limit_bytes": entry.limit_bytes,
        "over_max_peak": entry.over_max_peak,
        "line": entry.line or None,
        "failed": entry.failed,
        "base_peak_bytes": entry.base.entry.peak_bytes if entry.base is not None else None,
        "base_problem": entry.base_problem or None,
        "causes": [
            {"kind": str(cause.kind), "text": cause.text, "detail": cause.detail}
            for cause in causes_of(entry)
        ],
    }
    if entry.now is not None:
        found |= _place(entry.now.entry)
        found |= {"peak_step": entry.now.step, "steps": entry.now.steps}
    if entry.locked is not None and entry.now is not None:
        found |= _difference(entry)
    return found


def _place(now: LockEntry) -> dict[str, object]:
    return {
        "session": now.session,
        "provider": now.provider,
        "dims": dict(now.dims),
        "peak_with_workspace_bytes": now.peak_with_workspace_bytes,
        "peak_node": now.peak_node,
        "state": now.state,
        "runtime": now.runtime,
        "as_loaded": now.as_loaded,
        "by_class": dict(now.classes),
    }


def _difference(entry: CheckEntry) -> dict[str, object]:
    assert entry.locked is not None
    assert entry.now is not None
    changes = diff(entry.locked, entry.now)
    return {
        "locked_peak_node": entry.locked.peak_node,
        "locked_runtime": entry.locked.runtime,
        "changed_fields": list(changes.fields),
        "by_class_delta": {c.name: c.delta_bytes for c in changes.classes},
        "new_at_peak": [
            {
                "name": delta.family.tensors.name,
                "class": delta.family.tensors.tensor_class,
                "count": delta.count,
                "count_is_exact": delta.exact,
                "nbytes": delta.family.tensors.nbytes,
                "held_by": delta.family.held_by,
            }
            for delta in changes.families
        ],
    }
