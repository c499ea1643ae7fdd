"""``memplan sweep`` as CSV: a line per point, bytes as integers, for a spreadsheet or a plot."""

from __future__ import annotations

import csv
import io

from memplan.api.sweep.sweep_result import Sweep, SweepPoint
from memplan.units import printable

_FORMULA = ("=", "+", "-", "@")


def sweep_csv(sweep: Sweep) -> str:
    """A head and a line per point. Columns are the fields of the JSON, the dimensions as
    ``dim.NAME``; what there is nothing to say of is empty."""
    dims = tuple(sweep.dims)
    rows = [_row(point, dims) for point in sweep.points]
    text = io.StringIO()
    heads = list(rows[0]) if rows else ["model"]
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writerow({head: _safe(head) for head in heads})
    writer.writerows(rows)
    return text.getvalue()


def _row(point: SweepPoint, dims: tuple[str, ...]) -> dict[str, object]:
    row: dict[str, object] = {"model": _safe(str(point.model))}
    row |= {f"dim.{name}": point.dims.get(name, "") for name in dims}
    values = point.as_json()
    error = point.failure
    for name in ("model", "dims", "error"):
        del values[name]
    row |= {name: "" if value is None else _safe(value) for name, value in values.items()}
    row["error"] = "" if error is None else _safe(error.message)
    return row


def _safe(value: object) -> object:
    """Texts on one line, and none that a spreadsheet would take for a formula: names and messages
    hold what others wrote."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
