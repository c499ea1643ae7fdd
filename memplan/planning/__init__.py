"""What to keep, what to recompute, in which order; and the proof that it fits.

Takes a graph, a budget in bytes and seconds per node
(:class:`~memplan.planning.planner.PlanRequest`). Gives a :class:`~memplan.planning.plan.Plan`, and
the model that it makes (:mod:`~memplan.planning.apply`); who writes it checks it
(:mod:`memplan.api.rewrite.check_file`).
"""
