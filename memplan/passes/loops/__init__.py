"""Pairs of loops: what a forward ``Scan`` or ``Loop`` stores for the backward one, and how to
store less and recompute more.

Takes a model with its graph and phases, and gives pairs (``pairs``; for reports ``layers``), the
cell of a step as a problem of its own (``step``, ``cell``), plans of what it stores (``choose``)
and the model that keeps such a plan (``rewrite``). What ONNX itself says of a loop node is read in
:mod:`memplan.proto.loop_node`.
"""
