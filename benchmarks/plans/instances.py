"""Rematerialization graphs that are not ONNX: the public node-link files, read and verified.

Instances are the networkx node-link JSON files of the Moccasin paper (Bartan et al., ICML 2023;
github.com/haoming-codes/moccasin): random layered graphs and the training graphs of Checkmate
(Jain et al., MLSys 2020). Accounting is theirs: at a step all results that are read later are in
memory, and the step's own result; a result dies after its last read before its next recomputation.
Plain Python from the JSON object on, nothing of memplan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Absorbs the rounding of ratio x peak, as the published budgets do.
_ROUNDING = 1e-9

_SHORT_NAMES = {
    r"random_layered_n(\d+)_.*": r"RL\1",
    r"fcn_8_vgg \(MLSys\).*": "FCN8",
    r"segnet \(MLSys\).*": "SegNet",
    r"vgg_unet \(MLSys\).*": "U-Net",
    r"(\w+) \(MLSys\).*": r"\1",
}


@dataclass(frozen=True, slots=True)
class Instance:
    """One graph; nodes are numbered 0..n-1 in its own input order.

    ``ids`` are the file's node ids by number. ``durations`` and ``sizes`` are whole numbers.
    """

    name: str
    ids: tuple[int, ...]
    durations: tuple[int, ...]
    sizes: tuple[int, ...]
    predecessors: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """What the independent check found: the budget, the plan's peak and its extra cost."""

    budget: int
    peak: int
    extra_cost_percent: float


class VerificationError(Exception):
    """A sequence does not keep what it promises."""


def short_name(path: Path) -> str:
    """The name used in the literature (``RL100``, ``U-Net``), or the file's stem."""
    for pattern, name in _SHORT_NAMES.items():
        match = re.fullmatch(pattern, path.stem)
        if match:
            return match.expand(name)
    return path.stem


def raw_graph(data: Mapping[str, Any]) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Node ids and (producer, reader) pairs of a node-link object, in file order."""
    ids = [node.get("id", node.get("name")) for node in data["nodes"]]
    links = data["links"]
    source, target = ("0", "1") if links and "0" in links[0] else ("source", "target")
    return ids, [(link[source], link[target]) for link in links]


def input_order(data: Mapping[str, Any]) -> list[Any]:
    """The instance's own order of node ids: the stored one, else a topological sort.

    The sort equals ``networkx.topological_sort``: Kahn's algorithm by generations, successors in
    the order of their links.
    """
    stored = data["graph"].get("order")
    if stored is not None:
        return list(stored)
    ids, links = raw_graph(data)
    successors: dict[Any, dict[Any, None]] = {node: {} for node in ids}
    for producer, reader in links:
        successors[producer][reader] = None
    waiting = dict.fromkeys(ids, 0)
    for readers in successors.values():
        for reader in readers:
            waiting[reader] += 1
    order = [node for node in ids if waiting[node] == 0]
    for node in order:  # grows while it is walked: a queue
        for reader in successors[node]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                order.append(reader)
    if len(order) != len(ids):
        raise ValueError("the graph has a cycle")
    return order


def load_instance(path: Path) -> Instance:
    """Read one JSON file."""
    data = json.loads(path.read_text())
    order = input_order(data)
    number = {node: k for k, node in enumerate(order)}
    _, links = raw_graph(data)
    reads: list[set[int]] = [set() for _ in order]
    for producer, reader in links:
        reads[number[reader]].add(number[producer])
    durations, sizes = _costs(data)
    return Instance(
        short_name(path),
        tuple(order),
        tuple(durations[node] for node in order),
        tuple(sizes[node] for node in order),
        tuple(tuple(sorted(found)) for found in reads),
    )


def _costs(data: Mapping[str, Any]) -> tuple[dict[Any, int], dict[Any, int]]:
    """Duration and size by node id."""
    durations, sizes = {}, {}
    for node in data["nodes"]:
        key = node.get("id", node.get("name"))
        durations[key] = int(node["duration"] if "duration" in node else node["cost_cpu"])
        sizes[key] = int(node["out_cost"] if "out_cost" in node else node["cost_ram"])
    return durations, sizes


def budget_of(ratio: float, peak: int) -> int:
    """The largest whole budget within ``ratio`` times ``peak``."""
    return int(ratio * peak + _ROUNDING)


def verify(data: Mapping[str, Any], ratio: float, order: str, sequence: Sequence[Any]) -> Verified:
    """Recompute peak and cost of ``sequence`` (node ids) from a node-link object.

    Raises:
        VerificationError: a node is missing or unknown, reads what was not computed, stands out of
            the input order (``order`` "fixed"), or the peak is over the budget.
    """
    ids, links = raw_graph(data)
    reads: dict[Any, set[Any]] = {node: set() for node in ids}
    for producer, reader in links:
        reads[reader].add(producer)
    durations, sizes = _costs(data)
    original = input_order(data)
    _check_complete(ids, sequence)
    if order == "fixed" and list(dict.fromkeys(sequence)) != original:
        raise VerificationError("first computations are not in the input order")
    return _verified(reads, sizes, durations, original, ratio, sequence)


def verify_instance(instance: Instance, ratio: float, sequence: Sequence[int]) -> Verified:
    """The same for an instance whose ids are its numbers and whose order is free.

    Raises:
        VerificationError: see :func:`verify`.
    """
    ids = range(len(instance.ids))
    reads: dict[Any, set[Any]] = {k: set(found) for k, found in enumerate(instance.predecessors)}
    sizes, durations = dict(enumerate(instance.sizes)), dict(enumerate(instance.durations))
    _check_complete(ids, sequence)
    return _verified(reads, sizes, durations, ids, ratio, sequence)


def _verified(
    reads: Mapping[Any, set[Any]],
    sizes: Mapping[Any, int],
    durations: Mapping[Any, int],
    original: Sequence[Any],
    ratio: float,
    sequence: Sequence[Any],
) -> Verified:
    budget = budget_of(ratio, _peak(reads, sizes, original))
    peak = _peak(reads, sizes, sequence)
    if peak > budget:
        raise VerificationError(f"peak {peak} is over the budget {budget}")
    base = sum(durations[node] for node in original)
    extra = sum(durations[node] for node in sequence) - base
    return Verified(budget, peak, 100 * extra / base)


def _check_complete(ids: Sequence[Any], sequence: Sequence[Any]) -> None:
    missing, unknown = set(ids) - set(sequence), set(sequence) - set(ids)
    if missing:
        raise VerificationError(f"{len(missing)} nodes are never computed")
    if unknown:
        raise VerificationError(f"unknown nodes: {sorted(unknown)[:5]}")


def _peak(reads: Mapping[Any, set[Any]], sizes: Mapping[Any, int], sequence: Sequence[Any]) -> int:
    """Largest sum of results in memory over all steps."""
    latest: dict[Any, int] = {}
    last_read = list(range(len(sequence)))  # an unread result counts at its own step
    for step, node in enumerate(sequence):
        for source in reads[node]:
            if source not in latest:
                raise VerificationError(f"step {step}: {node} reads {source} before it is computed")
            last_read[latest[source]] = step
        latest[node] = step
    dying: dict[int, int] = {}
    peak = live = 0
    for step, node in enumerate(sequence):
        live += sizes[node]
        peak = max(peak, live)
        dying[last_read[step]] = dying.get(last_read[step], 0) + sizes[node]
        live -= dying.pop(step, 0)
    return peak
