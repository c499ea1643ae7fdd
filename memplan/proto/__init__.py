"""ONNX files as protobuf messages: read, checked, edited and written, without their weights.

Takes a path or a ``ModelProto`` and gives one; says in one line why a file cannot be planned. Knows
nothing of shapes, memory or plans: names, operators, opsets, element types and metadata only.
"""
