"""Graphs that onnxruntime-training left behind → training graphs in standard operators.

It answers which ONNX operators compute what those of a runtime computed that ended with version
1.19. It takes a ``ModelProto`` with ``com.microsoft`` gradients,
in-place accumulators and ``YieldOp`` boundaries, and perhaps an optimizer model; it gives a
``Lowered``: the new model and its training contract. ``convert`` raises the opset, ``interface``
turns buffers into outputs, ``walk`` replaces node by node by the ``rules`` of the ``registry``,
``update`` adds the optimizer, ``build`` puts it together.
"""
