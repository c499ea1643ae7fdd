"""Gradients of random graphs, held against central differences as ``grad`` holds them.

    python tools/fuzz --command values --count 10000 --seed 1

The check of :mod:`memplan.api.grad.gradient_check` is fed numbers that the operators are defined
for, where it would make them up. What it finds wrong is a defect: of a rule or of the check.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import onnx
from drafts import Case, drawn
from ended import Ended

import memplan
from helpers.gradients import Array, in_float32, reference
from helpers.node_tests import MODULES
from memplan.api.grad import differentiate, gradient_check
from memplan.api.grad.check_graphs import feed_both
from memplan.api.grad.check_outcome import GradientsDifferError
from memplan.errors import EXIT_BUG, MemplanError
from memplan.proto import native

_NAMED = re.compile(r"'[^']*'|\d+")
_STEP, _FLAT = 1e-5, 1e-7
_NO_DEFECT = ("right", "refused", "skipped")


def judged(case: Case) -> tuple[str, str]:
    """How a case ended: ``right``, ``refused``, ``skipped``, or with a defect; and what is said."""
    while True:
        kind, said = _differentiated(case)
        if kind == "refused" and "type: tensor(double)" in said:  # ONNX has it in float32 alone
            case = replace(case, model=in_float32(case.model))
            kind, said = _differentiated(case)
        flat, rest = _without_influence(case, said) if kind == "refused" else (None, case)
        if flat is None:
            return kind, said
        try:
            slope = _slope(flat)
        except Exception as error:  # of ONNX's evaluator, which has not run the whole before
            return "skipped", f"ONNX's evaluator: {error}"
        if abs(slope) > _FLAT:
            return "wrong", f"a slope of {slope:.3g}: {said}"
        if not rest.xs or not rest.ys:
            return "right", ""
        case = rest


def _differentiated(case: Case) -> tuple[str, str]:
    seeds = {f"seed_{y}": weight for y, weight in case.weights.items()}

    def fed(*graphs: Any) -> dict[str, Array]:
        return {**feed_both(*graphs), **case.feeds, **seeds}

    with (
        mock.patch.object(gradient_check, "feed_both", fed),
        mock.patch.object(differentiate._LOG, "warning") as warned,
    ):
        try:
            memplan.gradients(case.model, case.ys, case.xs, list(seeds), dims=case.dims)
        except GradientsDifferError as error:
            return "wrong", error.message
        except MemplanError as error:
            if error.exit_code == EXIT_BUG or "do not fit its operator" in error.message:
                return "wrong node", error.message
            return "refused", error.message
        except Exception as error:  # what nobody expected is what is looked for
            return "crash", f"{type(error).__name__}: {error}"
    return ("skipped", warned.call_args.args[0]) if warned.called else ("right", "")


def _without_influence(case: Case, message: str) -> tuple[Case | None, Case]:
    """What the refusal calls without influence, and what is left of the case."""
    subject, said, others = message.partition(" does not depend on ")
    if not said:
        return None, case
    if "zero derivatives" in others:
        left = [x for x in case.xs if f"'{x}'" in others]
        return replace(case, xs=tuple(left)), replace(
            case, xs=tuple(x for x in case.xs if x not in left)
        )
    only = {y: w for y, w in case.weights.items() if f"'{y}'" == subject}
    rest = {y: w for y, w in case.weights.items() if y not in only}
    return replace(case, weights=only), replace(case, weights=rest)


def _slope(case: Case) -> float:
    """Of what is differentiated, along a random direction."""
    random = np.random.default_rng(5)
    ways = {x: random.uniform(-1, 1, case.feeds[x].shape) for x in case.xs}
    sums = []
    for step in (_STEP, -_STEP):
        moved = {x: case.feeds[x] + step * way for x, way in ways.items()}
        values = reference(case.model, {**case.feeds, **moved})
        sums.append(sum(float((values[y] * w).sum()) for y, w in case.weights.items()))
    return (sums[0] - sums[1]) / (2 * _STEP)


def examined(seed: int, number: int, modules: Sequence[str] = MODULES) -> Ended:
    """How the case ``number`` of a seed ended."""
    case = drawn(random.Random(f"{seed}/values/{number}"), modules)
    # A child for ONNX's C++ takes half the time, and these graphs are no danger to this process.
    with mock.patch.object(native, "_ask", native._directly):
        kind, said = judged(case)
    reason = f": {_NAMED.sub('…', said)[:100]}" if kind in ("refused", "skipped") else ""
    counts = {f"{kind}{reason}": 1}
    if kind in _NO_DEFECT:
        return Ended(counts)
    ops = sorted({node.op_type for node in case.model.graph.node} - {"Constant"})
    message = f"{said}\n{onnx.printer.to_text(case.model)}"
    files = {"forward.onnx": case.model.SerializeToString()}
    return Ended(counts, f"{kind}: {', '.join(ops)}", message, files)
