"""Free savings on ready training graphs, before any recomputation.

A pass takes an ``OpenModel`` and its simulation and gives another model with the same results, bit
for bit; the :class:`~memplan.passes.manager.run_passes` gives a step for each, with what it saved.
"""
