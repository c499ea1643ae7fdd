"""Reports: how is a result told to people and to other tools?

Takes the values of :mod:`memplan.api`. Gives text for a terminal (:mod:`.terminal`), one offline
HTML file (:mod:`.html`) and a PyTorch memory snapshot.
"""
