"""Chunking: a region of large tensors between small ones runs piece by piece, forward and backward.

Takes an ``OpenModel`` and its simulation; gives a model in which the nodes of a region stand once
per chunk, one chunk after the other, with what goes in sliced, and what comes out joined or summed.
No operation is added but those copies.
"""
