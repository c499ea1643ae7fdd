"""The gradient of a ``Scan``: the body of the backward Scan and what the forward one stores for it.

Takes a Scan node and gradients of its outputs, and gives the backward step (``body``) and sequences
that it reads (``stash``); ``cells`` write LSTM, GRU and RNN as bodies of Scans.
"""
