"""Forward graph → training graph: gradients of any ONNX graph, in standard operators.

``registry.py`` says how a rule is written, ``rules/`` holds one file per operator family.
"""
