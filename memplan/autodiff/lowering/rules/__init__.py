"""Lowerings, one module per family of operators.

Each takes the context of a foreign node and gives its outputs, made of standard operators; how is
said in :mod:`memplan.autodiff.lowering.lowering_registry`, which finds the modules by itself.
Definitions are of onnxruntime 1.19 (``orttraining/core/graph/training_op_defs.cc``,
``core/graph/contrib_ops``).
"""
