"""``validate``: two files, both run → are the peaks and the results what was promised?

It answers whether a rewritten model keeps its budget and gives the results of the original. It
takes two paths and ``ValidateOptions``; it gives a ``Validation`` (``result``), whose findings are
what is wrong. ``run`` measures and judges; ``clones`` looks at recomputed nodes, ``cuda`` at what a
run on the GPU says beside its peak, ``interface`` at inputs and outputs that were removed.
"""
