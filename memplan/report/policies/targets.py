"""The frameworks that a plan can be told to."""

from __future__ import annotations

from memplan.planning.plan_file import PlanFile
from memplan.report.policies.jax_policy import jax_policy
from memplan.report.policies.maxtext_policy import maxtext_policy
from memplan.report.policies.plan_calls import Policy
from memplan.report.policies.torch_policy import torch_policy

TARGETS = {"torch": torch_policy, "jax": jax_policy, "maxtext": maxtext_policy}


def policy_for(target: str, plan: PlanFile) -> Policy:
    """A plan as a policy of the framework ``target``.

    Raises:
        UsageError: the plan does not say enough of its model, or has nothing to say to it.
    """
    return TARGETS[target](plan)
