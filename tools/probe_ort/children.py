"""Cases in child processes: one that ends its process is told, and the rest carries on."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASE_SECONDS = 60
DIED = "died"
Look = Callable[[Any], Any]
"""At a case: what it showed, for JSON; None where there is nothing to tell."""


@dataclass(frozen=True)
class Probe:
    """How a table is measured.

    ``cases`` are looked at in children, whose ``environment`` has variables and libraries of a
    scratch folder, by what ``opened`` gives there; ``table`` takes all that was seen, by number.
    """

    cases: Callable[[], list]
    opened: Callable[[], Look]
    table: Callable[[list, dict[int, dict]], dict]
    environment: Callable[[Path], Mapping[str, str]] = lambda _: {}


def tell(cases: Iterable[tuple[int, Any]], look: Look) -> None:
    """In the child: look at numbered cases, and print ``[number, null]`` before each and ``[number,
    result]`` behind it."""
    for index, case in cases:
        print(json.dumps([index, None]), flush=True)
        signal.alarm(CASE_SECONDS)
        result = look(case)
        signal.alarm(0)
        print(json.dumps([index, result]), flush=True)


def told(command: list[str], environment: Mapping[str, str]) -> dict[int, Any]:
    """The results of all cases by number, as children tell them; None is left out.

    Args:
        command: with the number of the first case behind it, looks at that and those that follow.
        environment: of the children.

    Returns:
        Of a case that ended its process: ``{"died": status}``.
    """
    found: dict[int, Any] = {}
    first, last = 0, 0
    while True:
        child = [sys.executable, *command, str(first)]
        done = subprocess.run(
            child, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for line in done.stdout.splitlines():
            last, result = json.loads(line)
            if result is not None:
                found[last] = result
        if not done.returncode:
            return found
        if not done.stdout:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
        found[last], first = {DIED: done.returncode}, last + 1
