"""Updates of parameters, in standard operators, inside the training graph or in one of their own.

Answers what an optimizer makes of gradients. Takes its spec (``parse``) and the gradients of a
graph as they become complete (``updates``), and gives the new values as graph outputs; or the
names of gradients, and gives a graph of updates alone. ``formulas`` has one function for every
optimizer; ``optimizer`` makes its options of that function's parameters, and nodes of what it
computes.
"""
