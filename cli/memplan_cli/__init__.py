"""The ``memplan`` command: what does a person type, and what comes back?

Takes command lines, and defaults from pyproject.toml. Gives text, JSON or files, and an exit code.
One module per command, imported when it is called; :mod:`.options`, :mod:`.command` and
:mod:`.configuration` are what commands share.
"""
