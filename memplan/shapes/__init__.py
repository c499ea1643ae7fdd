"""The type and shape of every tensor, and which of them the runtime knows before it runs.

Takes a checked ``ModelProto`` and sizes for its symbolic dimensions; gives a ``PreparedModel``
(functions inlined, nodes named, dimensions bound, shapes known), or says which shape is missing.
"""
