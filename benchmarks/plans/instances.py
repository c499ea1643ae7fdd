"""Rematerialization graphs that are not ONNX: the public node-link files, read and verified.

Instances are the networkx node-link JSON files of the Moccasin paper (Bartan et al., ICML 2023;
github.com/haoming-codes/moccasin): random layered graphs and the training graphs of Checkmate
(Jain et al., MLSys 2020). Accounting is theirs: at a step all results that are read later are in
memory, and the step's own result; a result dies after its last read before its next recomputation.
Plain Python from the JSON object on, nothing of memplan.
"""

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


def input_order(
    data: Mapping[str, Any], ids: Sequence[Any], links: Sequence[tuple[Any, Any]]
) -> list[Any]:
    """The instance's own order of node ids: the stored one, else a topological sort.

    The sort equals ``networkx.topological_sort``: Kahn's algorithm by generations, successors in
    the order of their links.
    """
    stored = data["graph"].get("order")
    if stored is not None:
        return list(stored)
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
    return instance_of(short_name(path), json.loads(path.read_text()))


def instance_of(name: str, data: Mapping[str, Any]) -> Instance:
    """Read a node-link object."""
    nodes = {node.get("id", node.get("name")): node for node in data["nodes"]}
    ends = ("0", "1") if data["links"] and "0" in data["links"][0] else ("source", "target")
    links = [(link[ends[0]], link[ends[1]]) for link in data["links"]]
    order = input_order(data, list(nodes), links)
    number = {node: k for k, node in enumerate(order)}
    reads: list[set[int]] = [set() for _ in order]
    for producer, reader in links:
        reads[number[reader]].add(number[producer])

    def figures(*keys: str) -> tuple[int, ...]:
        first = next(key for key in keys if key in data["nodes"][0])
        return tuple(int(nodes[node][first]) for node in order)

    return Instance(
        name,
        tuple(order),
        figures("duration", "cost_cpu"),
        figures("out_cost", "cost_ram"),
        tuple(tuple(sorted(found)) for found in reads),
    )


def budget_of(ratio: float, peak: int) -> int:
    """The largest whole budget within ``ratio`` times ``peak``."""
    return int(ratio * peak + _ROUNDING)


def verify(instance: Instance, ratio: float, sequence: Sequence[Any], *, fixed: bool) -> Verified:
    """Recompute peak and cost of ``sequence`` (node ids).

    Raises:
        VerificationError: a node is missing or unknown, reads what was not computed, stands out of
            the input order (``fixed``), or the peak is over the budget.
    """
    missing, unknown = set(instance.ids) - set(sequence), set(sequence) - set(instance.ids)
    if missing:
        raise VerificationError(f"{len(missing)} nodes are never computed")
    if unknown:
        raise VerificationError(f"unknown nodes: {sorted(unknown)[:5]}")
    number = {node: k for k, node in enumerate(instance.ids)}
    numbers, original = [number[node] for node in sequence], range(len(instance.ids))
    if fixed and list(dict.fromkeys(numbers)) != list(original):
        raise VerificationError("first computations are not in the input order")
    budget, peak = budget_of(ratio, peak_of(instance, original)), peak_of(instance, numbers)
    if peak > budget:
        raise VerificationError(f"peak {peak} is over the budget {budget}")
    base = sum(instance.durations)
    extra = sum(instance.durations[node] for node in numbers) - base
    return Verified(budget, peak, 100 * extra / base)


def peak_of(instance: Instance, sequence: Sequence[int]) -> int:
    """Largest sum of results in memory over all steps."""
    latest: dict[int, int] = {}
    last_read = list(range(len(sequence)))  # an unread result counts at its own step
    for step, node in enumerate(sequence):
        for source in instance.predecessors[node]:
            if source not in latest:
                raise VerificationError(f"step {step}: {node} reads {source} before it is computed")
            last_read[latest[source]] = step
        latest[node] = step
    dying: dict[int, int] = {}
    peak = live = 0
    for step, node in enumerate(sequence):
        live += instance.sizes[node]
        peak = max(peak, live)
        dying[last_read[step]] = dying.get(last_read[step], 0) + instance.sizes[node]
        live -= dying.pop(step, 0)
    return peak
