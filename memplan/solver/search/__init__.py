"""The search: sequences that keep a budget, ever cheaper, until time or rounds are over.

Answers: what to recompute, where. Takes a problem, a time limit and
:class:`~memplan.solver.search.params.SearchOptions`. Gives the best sequence found
(:func:`memplan.solver.search.anytime.solve`).
"""
