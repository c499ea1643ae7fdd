"""The operator book: what each operator is, one entry each by family, and what was measured of it.

Takes an operator's key (``domain:Op``), attributes and shapes; gives how parts of its outputs
depend on parts of its inputs, what it may overwrite, scratch bytes, arithmetic; from measured
tables aliases and in-place pairs, kernels and host tensors; a roofline time.
"""
