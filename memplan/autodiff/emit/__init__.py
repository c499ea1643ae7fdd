"""What a gradient rule builds with.

Takes the types, constants and names of a graph, and gives new nodes: tensors with arithmetic
(``value``), an ``emitter`` that adds nodes, ``operations`` whose form differs by opset, the
``context`` in which a rule sees its node, and the ``gradient_registry`` of rules. Each imports
only those before it.
"""
