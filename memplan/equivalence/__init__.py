"""Do two graphs compute the same? A proof from their files alone, without running either.

Takes a reference model, what is known of its tensors, and another model; gives an
:class:`~memplan.equivalence.prove.Equivalence`. It knows nothing of plans: neither the planner nor
what writes the new graph is imported here, so that their mistakes show.
"""
