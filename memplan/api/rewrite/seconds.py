"""Seconds per node that a rewrite counts with: estimated, from a file, or measured here."""

from __future__ import annotations

from memplan.api.profiling import ProfileOptions, profile_open
from memplan.api.rewrite.goal import Goal, RewriteOptions, device_profile, estimated_costs
from memplan.errors import UsageError
from memplan.planning.costs import NodeCosts, check_costs, measured_costs, read_costs
from memplan.simulate.floor import structural_floor
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline


def check_cost_options(options: RewriteOptions) -> None:
    """Seconds come from one place.

    Raises:
        UsageError: ``profile`` and ``costs`` are both given.
    """
    if options.profile and options.costs is not None:
        raise UsageError(
            "seconds per node are either measured (--profile) or given (--costs)", "choose one"
        )


def given_costs(source: OpenModel, options: RewriteOptions) -> NodeCosts | None:
    """Estimates, or the seconds of a costs file; None if they are to be measured.

    Raises:
        UsageError: the costs file cannot be read, or was measured on another model or provider.
    """
    device = device_profile(options)
    if options.profile:
        return None
    if options.costs is None:
        return estimated_costs(options)
    costs = read_costs(options.costs)
    check_costs(costs, source.prepared, options.provider)
    name = str(options.costs)
    if costs.fingerprint is None:  # written by hand: taken for what it says, and nothing more
        return NodeCosts(name, device, options.provider, costs.seconds)
    return measured_costs(name, source.graph, device, options.provider, costs.seconds)


def costs_for(model: OpenModel, timeline: Timeline, goal: Goal) -> NodeCosts:
    """The goal's costs; where they are to be measured, those of the graph that is planned: the
    names of fused nodes are in no costs file. ``timeline`` is the simulation of ``model``.

    Raises:
        RuntimeUnavailableError: a run failed, or the provider is missing.
    """
    if goal.costs is not None:
        return goal.costs
    options, floor = goal.options, structural_floor(model.graph, timeline)
    if not goal.lowest and goal.budget_bytes < timeline.resident_bytes + floor.with_workspace:
        return estimated_costs(options)  # the planner refuses it, whatever the costs
    found = profile_open(model, ProfileOptions(options.provider))
    device = device_profile(options)
    return measured_costs("profile", model.graph, device, options.provider, found.seconds)
