"""The HTML reports: what does the memory of a whole step look like?

Takes a :class:`memplan.report.parts.Report`. Gives a self-contained page (:mod:`.page`), with what
text does not have: ``timelines``, the ``tensor_search`` and the ``module_tree``; ``assets/`` has
script and style.
"""
