"""What a session does with a graph: order, buffers and bytes at every step.

Takes a :class:`memplan.ir.graph.Graph` and a kind of session. Gives a
:class:`~memplan.simulate.timeline.Timeline` (:func:`~memplan.simulate.timeline.simulate`), and what
is read off it: floors, explanations, later runs. :mod:`~memplan.simulate.opened` puts a
file, its graph and its phases together, which is what every command begins with.
"""
