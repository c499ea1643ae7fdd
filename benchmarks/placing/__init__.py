"""Static placement: one offset per buffer in one arena.

Answers: how low an arena can be in which buffers that are live together do not overlap. Takes
lifetimes and sizes. Gives offsets, the height and a certified lower bound
(:func:`benchmarks.placing.place.place`).
"""
