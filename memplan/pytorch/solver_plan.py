"""A joint graph planned, cut in two, and held against an independent walk through both halves."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from memplan.errors import InfeasibleError, MemplanError
from memplan.ops.cost import DEVICES
from memplan.pytorch.solver_costs import device_of, operator_costs
from memplan.pytorch.solver_joint import Joint, read_joint, value_of
from memplan.pytorch.solver_memory import StepMemory, step_memory
from memplan.pytorch.solver_options import SolverOptions
from memplan.pytorch.solver_problem import EncodedJoint, encode_joint
from memplan.pytorch.solver_report import TensorDecision, TorchReport
from memplan.pytorch.solver_split import Split, split
from memplan.pytorch.torch_internals import OPERATOR
from memplan.solver.strategies.builtin import Search
from memplan.solver.strategies.checked import checked
from memplan.solver.strategies.lowest_peak_strategy import Lowest
from memplan.solver.strategy import Outcome
from memplan.units import format_bytes

_MODEL = re.compile(r"^(L\['\w+'\]|\w+)(\.|$)")
"""How PyTorch spells the model itself at the head of a module's path."""


@dataclass(frozen=True, slots=True)
class _Solved:
    """A joint graph, what was asked of it, and the answer; bytes with the resident ones."""

    encoded: EncodedJoint
    costs: Sequence[float]
    outcome: Outcome
    budget_bytes: int
    baseline_bytes: int
    seconds: float


def plan_joint(
    module: fx.GraphModule, forward_outputs: int, options: SolverOptions
) -> tuple[Split, TorchReport]:
    """Plan a joint graph whose first ``forward_outputs`` outputs are those of the forward pass.

    Raises:
        InfeasibleError: no plan keeps the budget.
        ModelError: the graph holds what plans cannot hold.
    """
    joint = read_joint(module.graph, forward_outputs)
    solved = _solve(joint, options)
    decision = solved.outcome.decision
    found = split(module, joint, decision.sequence.tolist(), forward_outputs)
    memory = step_memory(found.forward.graph, found.backward.graph, forward_outputs)
    if memory.peak_bytes != decision.peak:
        raise MemplanError(
            f"the planner expects {decision.peak:,} B, the graphs need {memory.peak_bytes:,} B",
            "this is a bug in memplan",
        )
    return found, _report(solved, found, memory, options)


def _solve(joint: Joint, options: SolverOptions) -> _Solved:
    from memplan.solver.evaluate import decide, evaluate
    from memplan.solver.search.warm_up import warm_up

    device = DEVICES[options.device] if options.device else device_of(joint)
    costs = operator_costs(joint.operators, device)
    encoded = encode_joint(joint, costs)
    resident = joint.resident_bytes
    warm_up()
    baseline = resident + int(evaluate(encoded.arrays, encoded.order).total.max(initial=0))
    asked = options.budget
    budget = asked.resolve(baseline)
    if not asked.is_lowest and budget < resident + encoded.floor.nbytes:
        raise _below_floor(encoded, budget)
    search = Search(iterations=options.effort, seed=options.seed)
    strategy = Lowest(search) if asked.is_lowest else search
    room = encoded.floor.nbytes if asked.is_lowest else budget - resident
    problem = encoded.problem(room)
    begin = time.perf_counter()
    outcome = checked(strategy, problem, options.time_limit, None)
    seconds = time.perf_counter() - begin
    if asked.is_lowest:
        budget = resident + outcome.decision.peak
        problem = encoded.problem(outcome.decision.peak)
        outcome = replace(outcome, decision=replace(outcome.decision, feasible=True))
    elif not outcome.decision.feasible:
        raise _not_found(encoded, budget, resident + outcome.decision.peak)
    sequence = encoded.without_idle(outcome.decision.sequence)
    outcome = replace(outcome, decision=decide(problem, sequence))
    return _Solved(encoded, costs, outcome, budget, baseline, seconds)


def _below_floor(encoded: EncodedJoint, budget: int) -> InfeasibleError:
    need = encoded.joint.resident_bytes + encoded.floor.nbytes
    return InfeasibleError(
        f"budget {budget:,} B is below the floor {need:,} B ({format_bytes(need)}), which no order "
        "and no recomputation can go below",
        f"{format_bytes(encoded.joint.resident_bytes)} is resident; the rest is set by "
        f"{encoded.floor.reason}",
    )


def _not_found(encoded: EncodedJoint, budget: int, reached: int) -> InfeasibleError:
    need = encoded.joint.resident_bytes + encoded.floor.nbytes
    return InfeasibleError(
        f"no plan found within {budget:,} B; the lowest peak reached is {reached:,} B "
        f"({format_bytes(reached)})",
        f"try {reached:,} B, or a little more; the certified floor is {need:,} B, set by "
        f"{encoded.floor.reason}",
    )


def _report(
    solved: _Solved, found: Split, memory: StepMemory, options: SolverOptions
) -> TorchReport:
    encoded, decision = solved.encoded, solved.outcome.decision
    joint = encoded.joint
    resident = joint.resident_bytes
    base = float(sum(solved.costs)) or 1.0
    return TorchReport(
        backend=options.backend,
        budget_text=options.budget.text,
        budget_bytes=solved.budget_bytes,
        resident_bytes=resident,
        baseline_peak_bytes=solved.baseline_bytes,
        predicted_peak_bytes=resident + memory.peak_bytes,
        forward_peak_bytes=resident + memory.forward_peak_bytes,
        backward_peak_bytes=resident + memory.backward_peak_bytes,
        peak_node=memory.peak_node,
        saved_bytes=memory.saved_bytes,
        floor_bytes=resident + encoded.floor.nbytes,
        floor_reason=encoded.floor.reason,
        extra_cost_fraction=decision.extra_cost / base,
        bound_fraction=solved.outcome.bound_seconds / base,
        bound_kind=solved.outcome.bound_kind,
        planning_seconds=solved.seconds,
        operators=len(joint.operators),
        tensors=_decisions(solved, decision.sequence.tolist(), set(found.saved)),
        refusals=joint.refusals,
        symbolic=_is_symbolic(joint),
    )


def _decisions(
    solved: _Solved, sequence: Iterable[int], saved: set[str]
) -> tuple[TensorDecision, ...]:
    """What becomes of each tensor that the backward pass needs from the forward pass.

    Views are not told of: what is kept for one is the storage that it lies in.
    """
    joint = solved.encoded.joint
    runs = Counter(sequence)
    kept = {root for node, root in joint.roots().items() if node.name in saved}
    found = []
    for index, op in enumerate(joint.operators):
        again, target = runs[index] - 1, op.node.target
        operator = str(target) if isinstance(target, OPERATOR) else op.name
        for node, nbytes, shared in zip(op.results, op.nbytes, op.shares, strict=True):
            if node is None or shared is not None or not (again or node in kept):
                continue
            found.append(
                TensorDecision(
                    node.name,
                    operator,
                    module_of(op.node),
                    nbytes,
                    "recomputed" if again else "kept",
                    again,
                    again * solved.costs[index],
                )
            )
    return tuple(found)


def module_of(node: fx.Node) -> str | None:
    """The path of the module that a node was traced in, where PyTorch tells."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    path = str(list(stack.values())[-1][0])
    return _MODEL.sub("", path) or None


def _is_symbolic(joint: Joint) -> bool:
    values = [value_of(each) for each in (*joint.held, *joint.tangents)]
    return any(
        isinstance(each, torch.SymInt)
        or (isinstance(each, torch.Tensor) and any(not isinstance(n, int) for n in each.shape))
        for each in values
    )
