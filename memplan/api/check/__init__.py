"""The gate of ``memplan check``: does a model need more memory than was agreed?

Takes models and a lock, the file in which their peaks are committed. Gives, per model, what
changed and why, the commands that accept it or make it fit, and a new lock on request. ``lock``
reads and ``write`` writes it, ``current`` and ``compare`` find the difference, ``run`` goes over
all models, ``text`` and ``json_report`` tell the result. ``assert_peak`` is one model of a test.
"""
