"""Rows of the tables about training: beside PyTorch, and with state in place."""

from __future__ import annotations

from typing import Any

from benchmarks.tables.rows import table


def beside_pytorch(record: dict[str, Any]) -> list[str]:
    """A row per network and configuration, held against PyTorch's eager step."""
    eager = {r["model"]: r for r in record["results"] if r["who"] == "PyTorch eager"}
    rows = []
    for row in record["results"]:
        if "seconds_median" not in row:
            rows.append([row["model"], row["who"], *["-"] * 6])
            continue
        first = eager[row["model"]]
        planned, rounds = row.get("predicted_dynamic_bytes"), row["seconds_by_round"]
        rows.append(
            [
                row["model"],
                row["who"],
                f"{row['growth_bytes'] / 1e6:.0f}",
                f"{row['growth_bytes'] / first['growth_bytes']:.2f}",
                "" if planned is None else f"{planned / 1e6:.0f}",
                f"{1000 * row['seconds_median']:.0f}",
                f"{1000 * min(rounds):.0f} to {1000 * max(rounds):.0f}" if rounds[1:] else "one",
                f"{row['seconds_median'] / first['seconds_median']:.2f}",
            ]
        )
    memory, seconds = ("growth MB", "of eager's", "predicted"), ("ms", "rounds", "of eager's")
    return [
        *table(["network", "configuration", *memory, *seconds], rows),
        f"\nLosses differ from eager's by at most {_apart(record, eager):.0e} of their size.",
    ]


def _apart(record: dict[str, Any], eager: dict[str, Any]) -> float:
    """The largest relative difference of a loss from the eager one of the same step."""
    return max(
        abs(loss / wanted - 1)
        for row in record["results"]
        for loss, wanted in zip(row.get("losses", ()), eager[row["model"]]["losses"], strict=False)
    )


def loading(record: dict[str, Any]) -> list[str]:
    """A row per network: what making a trainer took, before and after."""
    sides = {(row["model"], row["tree"]): row for row in record["results"]}
    rows = []
    for model in dict.fromkeys(model for model, _ in sides):
        pair = [sides[model, tree] for tree in ("before", "after")]
        rows.append(
            [
                model,
                f"{pair[0]['state_bytes'] / 1e6:.0f}",
                *(f"{row['seconds']:.2f}" for row in pair),
                *(f"{row['growth_bytes'] / 1e6:.0f}" for row in pair),
                *(f"{row['highest_growth_bytes'] / 1e6:.0f}" for row in pair),
            ]
        )
    what = ("seconds", "growth MB", "at most")
    return table(
        [
            "network",
            "state MB",
            *(f"{each}, {when}" for each in what for when in ("before", "after")),
        ],
        rows,
    )


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
