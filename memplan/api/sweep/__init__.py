"""``sweep``: many plans at once, and the largest batch that fits.

It takes models, lists of dimensions and budgets, and gives a ``Sweep``. ``request`` says what may
be asked, ``point`` what one question and its answer are, ``solve`` answers one, ``sweeping`` asks
them all, ``fit`` looks for the largest value of a dimension, ``sweep_result`` is the whole.
"""
