"""``sweep``: many plans at once, and the largest batch that fits.

It takes models, lists of dimensions and budgets, and gives a ``Sweep``. ``request`` says what may
be asked, ``point`` what one question and its answer are, ``solve`` answers one, ``run`` asks them
all, ``store`` keeps what was answered, ``fit`` looks for the largest value of a dimension,
``result`` is the whole.
"""
