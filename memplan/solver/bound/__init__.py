"""Certified lower bounds: what no plan can undercut.

Answers: how much better any plan in this node order could be. Takes a problem, a time limit and the
cost of a known plan. Gives a :class:`~memplan.solver.bound.certify.Bound`
(:func:`memplan.solver.bound.certify.lower_bound`).
"""
