"""The runtime that memplan's rules were measured on, and the one that is installed."""

from __future__ import annotations

from collections.abc import Mapping

from memplan.ops.memory import semantics
from memplan.runtime.installed import installed_runtime
from memplan.units import printable


def measured_runtime(provider: str = "cpu") -> str:
    """The runtime that the tables of ``provider`` were measured on: ``onnxruntime 1.31.1``; the
    installed one where its own were measured, and are the same."""
    tables, installed = semantics(provider), installed_runtime()
    return installed if installed in tables.same_on else tables.runtime


def version_notes(provider: str = "cpu") -> tuple[str, ...]:
    """What to know where another version is installed than the tables were measured on.

    Without an installed runtime nothing is known about the one that will load the model.
    """
    measured, installed = measured_runtime(provider), installed_runtime()
    if not installed or installed == measured:
        return ()
    return (
        f"memplan's rules were measured on {measured}, and {installed} is installed: figures may "
        "differ (pip install 'memplan[measured]' installs the measured version; "
        "tools/probe_ort in memplan's repository measures what changed)",
    )


def recorded_version_notes(metadata: Mapping[str, object]) -> tuple[str, ...]:
    """What to know where a file was planned with another runtime than the installed one.

    Args:
        metadata: of a rewritten file (:func:`memplan.proto.metadata.get_metadata`).
    """
    recorded = metadata.get("runtime")
    planned = recorded.get("installed") if isinstance(recorded, dict) else None
    installed = installed_runtime()
    if not isinstance(planned, str) or not installed or planned == installed:
        return ()
    return (f"the file was planned with {printable(planned)}, and {installed} is installed",)


def runtime_json(provider: str = "cpu") -> dict[str, str | None]:
    """Both versions, as reports state them; ``installed`` is None where there is none."""
    return {"measured_on": measured_runtime(provider), "installed": installed_runtime() or None}
