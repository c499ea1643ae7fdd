"""Gradients of random graphs held against central differences of the forward graph in float64.

    python tools/fuzz --command values --count 10000 --seed 1

Forward and training graph are evaluated by ONNX Runtime's float64 kernels, or by ``onnx.reference``
where it has none (tests/helpers/float64_ops.py has operators that it gets wrong).
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import onnx
from drafts import Case, drawn
from ended import Ended
from evaluators import Array, Evaluator, NotEvaluatedError, in_kind
from onnx import TensorProto, helper

import memplan
from helpers.node_tests import DOUBLE, MODULES
from memplan.errors import EXIT_BUG, MemplanError
from memplan.proto import native

STEPS = (1e-5, 1e-4, 1e-6, 3e-7)
"""Of central differences; a gradient is wrong if it differs at each of them."""
TOLERANCE, FLOOR = 2e-6, 1e-9
"""What a derivative along a direction may be off by: of the sum of all products of gradient and
direction, by absolute value; and what rounding may hide where terms of a gradient cancel, or a
slope is nearly flat. The gradients that are fed are of size 1."""
_ROUNDING = 1e-14  # of a sum of products in float64, relative to the sum of absolute values
_DIRECTIONS = 2
_NAMED = re.compile(r"'[^']*'|\d+")


# -- one case --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a case ended: ``right``, ``refused``, ``skipped``, a ``kink``, or a defect, and what is
    said of it."""

    kind: str
    text: str = ""

    @property
    def is_defect(self) -> bool:
        return self.kind not in ("right", "refused", "skipped", "kink")


def judged(case: Case) -> Verdict:
    """Differentiate a case with memplan, and hold every gradient against differences."""
    try:
        forward = Evaluator(_opened(in_kind(case.model, DOUBLE)), case.feeds)
    except NotEvaluatedError as error:
        return Verdict("skipped", f"no evaluator in float64: {error}")
    except Exception as error:  # the random graph itself
        return Verdict("skipped", f"the forward graph does not run: {error}")
    if _is_inferred_otherwise(case.model, forward.first):
        return Verdict("skipped", "ONNX infers another shape than the runtime makes")
    if not all(np.isfinite(v).all() for v in forward.first.values() if v.dtype.kind == "f"):
        return Verdict("skipped", "the forward graph is not finite")
    return _differentiated(case, forward)


def _opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, of whose stored values others can be fed."""
    for tensor in model.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(value)
    return model


def _is_inferred_otherwise(model: onnx.ModelProto, made: Mapping[str, Array]) -> bool:
    """Whether an output has other sizes than ONNX infers (pools whose last window would begin
    behind the image): ONNX Runtime then refuses what reads it beside a tensor of its true shape."""
    bare = onnx.ModelProto.FromString(model.SerializeToString())
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in onnx.shape_inference.infer_shapes(bare).graph.output:
        dims = value.type.tensor_type.shape.dim
        pairs = zip(dims, made[value.name].shape, strict=False) if value.name in made else ()
        if any(dim.HasField("dim_value") and dim.dim_value != size for dim, size in pairs):
            return True
    return False


def _differentiated(case: Case, forward: Evaluator) -> Verdict:
    while True:
        seeds = {f"seed_{y}": weight for y, weight in case.weights.items()}
        try:
            model = case.model if forward.is_valid else in_kind(case.model, TensorProto.FLOAT)
            made = memplan.gradients(model, list(case.ys), list(case.xs), list(seeds), check=False)
            break
        except MemplanError as error:
            if error.exit_code == EXIT_BUG or "do not fit its operator" in str(error):
                return Verdict("wrong node", f"{error}")
            flat, rest = _without_influence(case, str(error))
            if flat is None:
                return Verdict("refused", str(error))
            zeros = {x: 0 * case.feeds[x] for x in flat.xs}
            verdict = _compared(flat, forward, zeros)
            if verdict.kind != "right":
                return replace(verdict, text=f"called without influence: {verdict.text}")
            if not rest.xs or not rest.ys:
                return Verdict("right")
            case = rest
        except Exception as error:  # what nobody expected is what is looked for
            return Verdict("crash", f"{type(error).__name__}: {error}")
    return _run(case, forward, made, {**case.feeds, **seeds})


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


def _run(
    case: Case, forward: Evaluator, made: onnx.ModelProto, feeds: Mapping[str, Array]
) -> Verdict:
    """Run the training graph and compare."""
    made = in_kind(made, DOUBLE, TensorProto.FLOAT)
    given = {value.name for value in made.graph.input}
    try:
        trained = Evaluator(made, {name: array for name, array in feeds.items() if name in given})
    except NotEvaluatedError as error:
        return Verdict("skipped", f"no evaluator of the training graph: {error}")
    except Exception as error:
        return Verdict("does not run", str(error))
    return _compared(case, forward, {x: trained.first[f"{x}_grad"] for x in case.xs})


def _compared(case: Case, forward: Evaluator, grads: Mapping[str, Array]) -> Verdict:
    for x, grad in grads.items():
        if grad.shape != case.feeds[x].shape:
            return Verdict("wrong", f"{x}: shape {grad.shape} is not {case.feeds[x].shape}")
    if not all(np.isfinite(grad).all() for grad in grads.values()):
        return Verdict("skipped", "a gradient is not finite")
    random = np.random.default_rng(5)
    for _ in range(_DIRECTIONS):
        ways = {
            x: random.choice([-1.0, 1.0], g.shape) * random.uniform(0.3, 1, g.shape)
            for x, g in grads.items()
        }
        verdict = _along(case, forward, grads, ways)
        if verdict.kind == "wrong":
            for x in grads:  # by itself
                alone = _along(case, forward, {x: grads[x]}, {x: ways[x]})
                if alone.kind == "wrong":
                    return replace(alone, text=f"{x}: {alone.text}")
        if verdict.kind != "right":
            return verdict
    return Verdict("right")


def _along(
    case: Case,
    forward: Evaluator,
    grads: Mapping[str, Array],
    ways: Mapping[str, Array],
) -> Verdict:
    """Compare along one direction; a difference must be there at every step, and the function
    smooth."""
    parts = [grads[x] * way for x, way in ways.items()]
    given = float(sum(part.sum() for part in parts))
    scale = float(sum(np.abs(part).sum() for part in parts))

    def objective(share: float) -> tuple[float, float]:
        moved = {x: case.feeds[x] + share * way for x, way in ways.items()}
        values = forward.run({**case.feeds, **moved})
        terms = [values[y] * weight for y, weight in case.weights.items()]
        total = sum(float(term.sum()) for term in terms)
        return total, sum(float(np.abs(term).sum()) for term in terms)

    found = []
    for step in STEPS:
        (ahead, size), (behind, _) = objective(step), objective(-step)
        wanted = (ahead - behind) / (2 * step)
        slack = TOLERANCE * (scale + abs(wanted)) + FLOOR + _ROUNDING * size / step
        if abs(wanted - given) <= slack:
            return Verdict("right")
        middle, _ = objective(0.0)
        sides = (ahead - middle) / step, (middle - behind) / step
        found.append((wanted, sides, slack))
    spread = max(w for w, _, _ in found) - min(w for w, _, _ in found)
    off = min(abs(w - given) for w, _, _ in found)
    bent = min(abs(s[0] - s[1]) for _, s, _ in found)
    if not np.isfinite(spread) or spread > off / 2 or bent > off / 2:
        return Verdict("kink", f"{given} and {found}")
    return Verdict("wrong", f"{given:.9g} is not {found[0][0]:.9g}")


# -- by number -------------------------------------------------------------------------------------


def examined(seed: int, number: int, modules: Sequence[str] = MODULES) -> Ended:
    """How the case ``number`` of a seed ended."""
    case = drawn(random.Random(f"{seed}/values/{number}"), modules)
    # A child for ONNX's C++ takes half the time, and these graphs are no danger to this process.
    with mock.patch.object(native, "_ask", native._directly):
        verdict = judged(case)
        kind, reason = verdict.kind, ""
        if kind in ("refused", "skipped"):
            reason = f": {_NAMED.sub('…', verdict.text)[:100]}"
        counts = {f"{kind}{reason}": 1}
        if not verdict.is_defect:
            return Ended(counts)
    ops = sorted({node.op_type for node in case.model.graph.node} - {"Constant"})
    message = f"{verdict.text}\n{onnx.printer.to_text(case.model)}"
    files = {"forward.onnx": case.model.SerializeToString()}
    return Ended(counts, f"{kind}: {', '.join(ops)}", message, files)
