"""Rewrites of a graph at ten budgets: no plan is a bug, and what is said to work is written."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from memplan.errors import EXIT_BUG, EXIT_INFEASIBLE, EXIT_MODEL

SHARES = (97, 93, 89, 85, 80, 75, 70, 65, 55, 45)  # of the peak before, in percent
_STRATEGIES = ("greedy", "greedy", "greedy", "auto", "search{iterations=6}")
_PASSES = ("all", "none", "none")
_BY_THE_CLOCK = "auto"  # what it reaches, it need not reach again
_WORKS = re.compile(r"a budget of at least ([\d,]+) B works")
_TRY = re.compile(r"try ([\d,]+) B, or a little more")
_OUTPUT = Path("new.onnx")

Ended = tuple[int, str, str]
"""Exit code, place of an unexpected exception, and message with hint."""


def rewritten_at_ten_budgets(
    call: Callable[[Sequence[str]], Ended], session: str, r: random.Random
) -> tuple[Ended, Mapping[str, int]]:
    """How ``model.onnx`` and its first rewritten file are rewritten in a session of this kind.

    Args:
        call: runs the program in this process.
        session: ``tuned`` or ``default``.
        r: draws strategies and fusions.

    Returns:
        The first defect, else exit code 0; and how many rewrites ended with which exit code.
    """
    codes: dict[str, int] = {}
    tries = [("model.onnx", f"{share}%") for share in SHARES]
    promised, tried, own = "", "", False
    again: list[str] = []
    while tries:
        model, budget = tries.pop(0)
        options = ["--strategy", r.choice(_STRATEGIES), "--passes", r.choice(_PASSES)]
        options += ["--optimize", _fusions(session, r)]
        if budget in (promised, tried):
            options = again
        _OUTPUT.unlink(missing_ok=True)
        arguments = ["rewrite", model, "--budget", budget, "--session", session, *options]
        code, place, message = call([*arguments, "--time-limit", "0.3", "-o", str(_OUTPUT)])
        what = f"exit {code}{' at the budget to try' if budget == tried else ''}"
        codes[what] = codes.get(what, 0) + 1
        told = " ".join(arguments)
        if code == EXIT_BUG:
            return (code, place, f"{told}: {message}"), codes
        if code == 0 and not _OUTPUT.exists():
            return (EXIT_BUG, "nothing was written", told), codes
        if budget == promised and code != 0:
            return (EXIT_BUG, "a budget that works does not", f"{told}: {message}"), codes
        if code not in (0, EXIT_INFEASIBLE, EXIT_MODEL):
            return (EXIT_BUG, f"exit {code}", f"{told}: {message}"), codes
        if code == 0 and not own:  # memplan's own output
            own = True
            Path("own.onnx").write_bytes(_OUTPUT.read_bytes())
            tries += [("own.onnx", "90%"), ("own.onnx", "70%")]
        works, worth = _WORKS.search(message), _TRY.search(message)
        if works is not None and not promised and _BY_THE_CLOCK not in options:
            promised, again = works[1].replace(",", ""), options
            tries.insert(0, (model, promised))
        elif worth is not None and not tried:
            tried, again = worth[1].replace(",", ""), options
            tries.insert(0, (model, tried))
    return (0, "", ""), codes


def _fusions(session: str, r: random.Random) -> str:
    """Mostly none: the runtime is asked for them in a process of its own."""
    return "extended" if session == "default" or r.random() < 0.1 else "none"
