"""The gate of ``memplan check``: does a model need more memory than was agreed?

Takes models and a lock, the file in which their peaks are committed, or another commit. A model's
``Peak`` (``peak``; ``measure`` finds it, ``lock`` reads and writes it, ``base`` gets another
commit's) is held against one of these, which makes a ``Finding`` (``finding``): its kind, limit,
causes and the commands that accept it. ``checking`` goes over all models; ``text``,
``json_report`` and ``verdict`` tell the result. ``assert_peak`` is one model of a test.
"""
