"""Updates of parameters, in standard operators, inside the training graph or in one of their own.

Answers what an optimizer makes of gradients. Takes its spec (``parse``) and the gradients of a
graph as they become complete (``updates``), and gives the new values as graph outputs; or the
names of gradients, and gives a graph of updates alone (``own_graph``). ``optimizer`` says what an
optimizer is and what it builds with; ``descent``, ``adaptive``, ``moments``, ``adafactor``,
``muon`` and ``older`` are the kinds.
"""
