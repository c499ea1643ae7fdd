"""The public placement instances: place, verify, time.

Instances are the CSV files of MiniMalloc (Moffitt, ASPLOS 2023; github.com/google/minimalloc,
``benchmarks/challenging``): one buffer per line with ``id,lower,upper,size``, live in
``lower`` ≤ t < ``upper``. Sizes are in bytes. The number in a name such as ``A.1048576.csv`` is the
capacity that the buffers must fit in; ``--capacity`` overrides it, and without either the lowest
height is looked for. Everything runs in one thread.

    python -m benchmarks.placing --instances DIR --seconds 60 --json results.json
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.record import write_record

# Best-fit in any order is above the optimum here, so that all compiled code runs once.
_WARM_UP = (
    (0, 3, 5, 1),
    (1, 4, 7, 1),
    (2, 1, 4, 2),
    (3, 1, 2, 2),
    (4, 5, 8, 2),
    (5, 2, 6, 1),
    (6, 7, 10, 2),
)

Buffer = tuple[int, int, int, int]
"""Id, lower, upper, size."""


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the report. ``capacity`` is None where the lowest height was asked for.

    ``solved``: the height is within the capacity, or proven to be the lowest.
    """

    instance: str
    buffers: int
    max_live: int
    height: int
    capacity: int | None
    solved: bool
    seconds: float


class VerificationError(Exception):
    """Offsets do not keep what they promise."""


# --- Placing ---------------------------------------------------------------------------------


def run_instance(path: Path, capacity: int | None, seconds: float, seed: int) -> Result:
    """Place the buffers of one file and verify the offsets.

    Raises:
        VerificationError: the offsets do not hold; nothing is to be reported.
    """
    buffers = read_instance(path)
    if capacity is None:
        capacity = capacity_of(path)
    started = time.perf_counter()
    offsets, proven = solve(buffers, capacity, seconds, seed)
    spent = time.perf_counter() - started
    height = verify(buffers, offsets)
    return Result(
        instance=path.name.split(".")[0],
        buffers=len(buffers),
        max_live=peak(buffers),
        height=height,
        capacity=capacity,
        solved=proven if capacity is None else height <= capacity,
        seconds=round(spent, 3),
    )


def solve(
    buffers: Sequence[Buffer], capacity: int | None, seconds: float, seed: int
) -> tuple[tuple[int, ...], bool]:
    """Offsets, and whether no lower height is possible."""
    import numpy as np

    from benchmarks.placing.place import place

    lower, upper, size = np.asarray(buffers, dtype=np.int64)[:, 1:].T
    placement = place(lower, upper, size, capacity, seconds=seconds, tolerance=0.0, seed=seed)
    return placement.offsets, placement.proven


# --- Reading and verifying: plain Python, nothing of memplan ------------------------------------


def read_instance(path: Path) -> list[Buffer]:
    """The buffers of one file."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [(int(r["id"]), int(r["lower"]), int(r["upper"]), int(r["size"])) for r in rows]


def capacity_of(path: Path) -> int | None:
    """The number in ``NAME.NUMBER.csv``."""
    parts = path.name.split(".")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else None


def peak(buffers: Sequence[Buffer]) -> int:
    """Max-live: the largest sum of sizes at any moment."""
    return max(
        sum(size for _, lower, upper, size in buffers if lower <= moment < upper)
        for moment in {lower for _, lower, _, _ in buffers}
    )


def verify(buffers: Sequence[Buffer], offsets: Sequence[int]) -> int:
    """The height of a placement.

    Raises:
        VerificationError: an offset is missing or negative, or two buffers overlap.
    """
    if len(offsets) != len(buffers):
        raise VerificationError(f"{len(offsets)} offsets for {len(buffers)} buffers")
    for k, (name, lower, upper, size) in enumerate(buffers):
        if offsets[k] < 0:
            raise VerificationError(f"buffer {name} lies at {offsets[k]}")
        for m in range(k):
            other, first, last, nbytes = buffers[m]
            together = lower < last and first < upper
            if together and offsets[k] < offsets[m] + nbytes and offsets[m] < offsets[k] + size:
                raise VerificationError(f"buffers {other} and {name} overlap")
    return max(offset + size for offset, (_, _, _, size) in zip(offsets, buffers, strict=True))


# --- Command line -----------------------------------------------------------------------------


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.placing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--instances", type=Path, required=True, help="folder with *.csv")
    parser.add_argument("--capacity", type=int, help="bytes, for all instances")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit per instance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, required=True, help="where the results go, as a list")
    parser.add_argument("--record", type=Path, help="the same with versions, CPUs and command")
    return parser.parse_args(argv)


def command_of(options: argparse.Namespace) -> str:
    """The command without paths."""
    command = ["python -m benchmarks.placing --instances DIR --json FILE"]
    command += [f"--capacity {options.capacity}"] * (options.capacity is not None)
    return " ".join([*command, f"--seconds {options.seconds:g}", f"--seed {options.seed}"])


def row(result: Result) -> str:
    """One line of the table."""
    capacity = "-" if result.capacity is None else str(result.capacity)
    return (
        f"{result.instance:<12}{result.buffers:>8}{result.max_live:>12}{result.height:>12}"
        f"{capacity:>12}{result.seconds:>10.2f}  {'solved' if result.solved else 'not solved'}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the instances one by one; results are written after each. 1: one was not solved."""
    options = arguments(argv)
    started = time.perf_counter()
    solve(_WARM_UP, None, 60.0, 0)
    print(f"compiled or loaded in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    results: list[Result] = []
    print(
        f"{'instance':<12}{'buffers':>8}{'max-live':>12}{'height':>12}{'capacity':>12}{'seconds':>10}"
    )
    for path in sorted(options.instances.glob("*.csv")):
        result = run_instance(path, options.capacity, options.seconds, options.seed)
        results.append(result)
        print(row(result), flush=True)
        rows = [asdict(item) for item in results]
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
        if options.record is not None:
            write_record(options.record, command_of(options), rows)
    print(f"{'total':<56}{sum(result.seconds for result in results):>10.2f}")
    return 0 if all(result.solved for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
