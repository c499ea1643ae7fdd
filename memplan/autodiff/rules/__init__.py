"""Gradient rules and expansions, one module per family of operators.

Each takes the context of a node and gives gradients of its inputs, or simpler nodes; how is said in
:mod:`memplan.autodiff.emit.gradient_registry`, which finds the modules by itself.
"""
