"""Reports: how is a result told to people and to other tools?

Takes the values of :mod:`memplan.api`. :mod:`.tell` says once what there is to be said, as a
:class:`memplan.report.parts.Report`; :mod:`.terminal` prints it as text and :mod:`.html` as one
offline page. Beside them: CSV of a sweep, a PyTorch memory snapshot, and plans as policies.
"""
