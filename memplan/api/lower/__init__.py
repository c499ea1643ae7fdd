"""``lower``: a training graph of onnxruntime-training → the same in standard operators.

It answers what stock ONNX Runtime can run of what its training package left behind. It takes a path
or a ``ModelProto`` and ``LowerOptions``; it gives a ``LoweredGraph``.
"""
