"""What each operator does to memory and what it costs: one registry per question.

Takes an operator's key (``domain:Op``), attributes and shapes; gives what was measured on the
runtime: aliases and in-place pairs, scratch bytes, kernels and host tensors, and a roofline time.
"""
