"""The record of ``benchmarks/capture/roads.py`` as rows of Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from benchmarks.tables.rows import Row, table

_HEAD = (
    "network",
    "road",
    "s",
    "error of loss",
    "error of gradients",
    "nodes",
    "stash kB",
    "peak kB",
)


def _rows(record: dict[str, Any], part: str) -> Iterator[Row]:
    return (row for row in record["results"] if row["part"] == part)


def compared(record: dict[str, Any], part: str) -> list[str]:
    """A row per network and road: what was compared, and what the graph takes."""
    rows = []
    for row in _rows(record, part):
        if "failure" in row:
            rows.append([row["name"], row["road"], row["failure"], *([""] * (len(_HEAD) - 3))])
            continue
        rows.append(
            [
                row["name"],
                row["road"],
                f"{row['seconds']:.1f}",
                f"{row['loss_error']:.0e}",
                f"{row['gradient_error']:.0e}",
                *_sizes(row),
            ]
        )
    return table(_HEAD, rows)


def _sizes(row: Row) -> list[str]:
    """Nodes, stash and peak, where they were looked at."""
    if "nodes" not in row:
        return ["", "", ""]
    return [
        f"{row['nodes']:,}",
        f"{row['stash_bytes'] / 1e3:,.0f}",
        f"{row['peak_bytes'] / 1e3:,.0f}",
    ]


def steps(record: dict[str, Any], introduction: str) -> list[str]:
    """A row per network: CPU time of a step in the graphs of both roads."""
    rows = [
        [
            row["name"],
            f"{row['grad_ms']:.3f}",
            f"{row['joint_ms']:.3f}",
            f"{row['joint_to_grad']:.2f}",
        ]
        for row in _rows(record, "steps")
        if "joint_to_grad" in row
    ]
    head = ("network", "grad ms", "joint ms", "joint / grad")
    return [introduction, *table(head, rows)] if rows else []


def libraries(record: dict[str, Any], introduction: str) -> list[str]:
    """The same for networks of libraries, where some were installed."""
    if not any(_rows(record, "libraries")):
        return []
    return [introduction, *compared(record, "libraries")]


def full(record: dict[str, Any]) -> list[str]:
    """A row per network at full size and road."""
    rows = []
    for row in _rows(record, "full"):
        peaks = {road["name"]: road["peak_bytes"] for road in row["roads"]}
        rows.append(
            [
                row["name"],
                row["road"],
                f"{row['seconds']:.0f}",
                f"{row['cpu_seconds']:.0f}" if "cpu_seconds" in row else "",
                f"{row['nodes']:,}",
                f"{row['weight_bytes'] / 1e6:,.0f}",
                f"{row['file_bytes'] / 1e6:,.0f}",
                f"{(row['rss_peak_bytes'] - row['rss_before_bytes']) / 1e6:,.0f}",
                ", ".join(
                    f"{name} {peak / 1e9:.2f}" for name, peak in peaks.items() if peak is not None
                ),
            ]
        )
    head = [
        "network",
        "road",
        "s",
        "s of CPU",
        "nodes",
        "weights MB",
        "files MB",
        "memory of the capture MB",
        "simulated peak GB",
    ]
    return table(head, rows)


def training(record: dict[str, Any]) -> list[str]:
    """A row per network and road: how far two trainings are apart."""
    rows = [
        [
            row["name"],
            row["road"],
            f"{row['peak_before_bytes'] / 1e6:.1f}",
            f"{row['peak_after_bytes'] / 1e6:.1f}",
            f"{row['first_loss']:.3f}",
            f"{row['last_loss']:.3f}",
            f"{row['largest_difference']:.1e}",
            f"{row['noise']:.1e}",
            f"{row['from_float64']:.1e}" if "from_float64" in row else "",
            f"{row['from_float64_pytorch']:.1e}" if "from_float64" in row else "",
        ]
        for row in _rows(record, "training")
    ]
    head = [
        "network",
        "road",
        "peak MB",
        "rewritten",
        "first loss",
        "last loss",
        "largest difference",
        "of PyTorch from itself",
        "from float64",
        "of PyTorch",
    ]
    return table(head, rows)


_CHECKED = (
    "step",
    "road",
    "verdict",
    "error of loss",
    "of gradients",
    "of updates",
    "PyTorch's own",
    "draws",
    "from float64",
    "PyTorch's",
    "s",
    "s of the check",
)


def checked(record: dict[str, Any], part: str) -> list[str]:
    """A row per step and road: what the check found, and what stands beside it."""
    rows = [_checked(row) for row in _rows(record, part) if row["verdict"] != "not run"]
    return [*table(_CHECKED, rows), *_left(record, part)]


def _checked(row: Row) -> list[str]:
    beside = row.get("independent", {})
    figures = (row.get(f"{each}_error") for each in ("loss", "gradient", "update", "own"))
    verdict = row["verdict"]
    if verdict == "right" and row.get("via", row["road"]) != row["road"]:
        verdict += f" ({row['via']})"
    return [
        row["name"],
        row["road"],
        f"{verdict}: {_short(row['words'])}" if row.get("words") else verdict,
        *(_figure(each) for each in figures),
        str(row.get("draws", "")),
        _figure(beside.get("gradient_error"))
        + (" (rounding)" if beside.get("verdict") == "rounding" else ""),
        _figure(beside.get("eager_gradient_error")),
        f"{row['capture_seconds']:.1f}",
        f"{row['check_seconds']:.1f}" if "check_seconds" in row else "",
    ]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"


def _short(words: str) -> str:
    """Without the place in a library."""
    return re.sub(r" \([^()]*:\d+\)$", "", words).replace("|", "/")


def _left(record: dict[str, Any], part: str) -> list[str]:
    """What no run has come to."""
    found: dict[str, list[str]] = {}
    for row in _rows(record, part):
        if row["verdict"] == "not run":
            found.setdefault(row["road"], []).append(row["name"])
    return [f"\nNot run by `{road}`: {', '.join(names)}." for road, names in found.items()]
