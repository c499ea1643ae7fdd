"""Other forms in which tensors may be kept, and rules that make them again: a file for each kind,
with the nodes that encode, those that decode, and the law by which that is the same.

Takes: a graph and what is known of it. Gives: the graph with dormant nodes (:class:`Extended`).
"""
