"""Text reports: what does a person read after a command? The only door of rich.

Takes a :class:`memplan.report.parts.Report`. Gives, by :func:`.render.render`, lines and tables
(:mod:`.tables`) in which every name from a file is escaped; and
:func:`memplan.report.terminal.console.show`: their text, for a terminal or a file.
"""
