"""The HTML reports: what does the memory of a whole step look like, and what do many plans cost?

Takes a :class:`memplan.report.parts.Report`. Gives a self-contained page (:mod:`.page`), with what
text does not have: ``timelines``, ``figures`` of curves, the ``tensor_search`` and the
``module_tree``; ``assets/`` has script and style.
"""
