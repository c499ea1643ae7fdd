"""Strategies: our search, and the published planners of the field, by name.

Answers: what to recompute, as one named planner would decide it. Takes the text of ``--strategy``
and a :class:`~memplan.solver.problem.Problem`. Gives an :class:`~memplan.solver.strategy.Outcome`,
judged on the same memory model whoever decided. One file is one published planner.
"""
