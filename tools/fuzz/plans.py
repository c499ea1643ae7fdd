"""Rewrites of a random training graph at ten budgets: no plan is a bug, and what is said to work is
written."""

import random
import re
from pathlib import Path

from ended import Ended, called
from steps import training_graph

from memplan.errors import EXIT_BUG, EXIT_INFEASIBLE, EXIT_MODEL

SESSIONS = {"plans": "tuned", "plain-plans": "default"}
"""Commands, and the kind of session that they plan for."""
SHARES = (97, 93, 89, 85, 80, 75, 70, 65, 55, 45)  # of the peak before, in percent
_STRATEGIES = ("greedy", "greedy", "greedy", "auto", "search{iterations=6}")
_PASSES = ("all", "none", "none")
_TRY = re.compile(r"try ([\d,]+) B, or a little more")
_OUTPUT = Path("new.onnx")


def examined(command: str, seed: int, number: int) -> Ended:
    """How a graph and its first rewritten file are rewritten in a session of this kind.

    Returns:
        The first defect, if there is one; and how many rewrites ended with which exit code.
    """
    session, r = SESSIONS[command], random.Random(f"{seed}/{number}")
    data = training_graph(r)[1].SerializeToString()
    Path("model.onnx").write_bytes(data)
    codes: dict[str, int] = {}
    tries = [("model.onnx", f"{share}%") for share in SHARES]
    tried, own = "", False
    again: list[str] = []

    def ended(place: str = "", message: str = "") -> Ended:
        return Ended(codes, place, message, {"model.onnx": data})

    while tries:
        model, budget = tries.pop(0)
        options = ["--strategy", r.choice(_STRATEGIES), "--passes", r.choice(_PASSES)]
        # Mostly none: the runtime is asked for fusions in a process of its own.
        fused = session == "default" or r.random() < 0.1
        options += ["--optimize", "extended" if fused else "none"]
        if budget == tried:
            options = again
        _OUTPUT.unlink(missing_ok=True)
        arguments = ["rewrite", model, "--budget", budget, "--session", session, *options]
        code, place, message = called([*arguments, "--time-limit", "0.3", "-o", str(_OUTPUT)])
        what = f"exit {code}{' at the budget to try' if budget == tried else ''}"
        codes[what] = codes.get(what, 0) + 1
        told = " ".join(arguments)
        if code == EXIT_BUG:
            return ended(place, f"{told}: {message}")
        if code == 0 and not _OUTPUT.exists():
            return ended("nothing was written", told)
        if code not in (0, EXIT_INFEASIBLE, EXIT_MODEL):
            return ended(f"exit {code}", f"{told}: {message}")
        if code == 0 and not own:  # memplan's own output
            own = True
            Path("own.onnx").write_bytes(_OUTPUT.read_bytes())
            tries += [("own.onnx", "90%"), ("own.onnx", "70%")]
        worth = _TRY.search(message)
        if worth is not None and not tried:
            tried, again = worth[1].replace(",", ""), options
            tries.insert(0, (model, tried))
    return ended()
