"""Rows of the tables about training: beside PyTorch, and with state in place."""

from __future__ import annotations

from typing import Any

from benchmarks.tables.rows import table


def beside_pytorch(record: dict[str, Any]) -> list[str]:
    """A row per configuration; times are held against PyTorch's eager step."""
    eager = record["results"][0]["seconds_median"]
    rows = []
    for row in record["results"]:
        if "failed" in row:
            rows.append([row["who"], "-", "-", "-", "-", "-"])
            continue
        planned = row.get("predicted_dynamic_bytes")
        extra = row.get("extra_time_estimated")
        rows.append(
            [
                row["who"],
                f"{row['growth_bytes'] / 1e6:.0f}",
                "" if planned is None else f"{planned / 1e6:.0f}",
                f"{1000 * row['seconds_median']:.0f}",
                f"{row['seconds_median'] / eager:.2f}",
                "" if extra is None else f"{100 * extra:.1f}%",
            ]
        )
    head = ["who", "growth MB", "predicted", "ms per step", "of eager's", "extra, estimated"]
    return table(head, rows)


def in_place(record: dict[str, Any]) -> list[str]:
    """A row per network and budget: the dynamic peak with state apart and in place."""
    rows = [
        [
            row["family"],
            row["share"],
            f"{row['apart_dynamic_peak_bytes']:,}",
            f"{row['in_place_dynamic_peak_bytes']:,}",
            f"{row['in_place_bytes']:,}",
            "yes" if row["equal"] else "no",
            "yes" if row["as_predicted"] else "no",
        ]
        for row in record["results"]
    ]
    head = [
        "network",
        "budget",
        "apart, B",
        "in place, B",
        "state, B",
        "bits equal",
        "as predicted",
    ]
    return table(head, rows)
