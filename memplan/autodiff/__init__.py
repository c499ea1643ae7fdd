"""Forward graph → training graph: gradients of any ONNX graph, in standard operators.

Takes a forward ``ModelProto``, tensors ys and xs, and gives a ``ModelProto`` with the gradients, or
with a loss and an optimizer's step. ``emit/gradient_registry.py`` says how a gradient rule is
written; ``rules/`` holds one module per family of operators.
"""
