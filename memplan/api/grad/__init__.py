"""``grad``: takes a forward graph and what to differentiate (``run``), and gives a training graph;
if asked for, with everything but checkpoints recomputed (``checkpoints``).
"""
