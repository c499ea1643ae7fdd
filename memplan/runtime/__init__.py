"""The only room that runs models, and the only door of ONNX Runtime.

It answers what a model really takes: bytes, seconds and results. It takes a path and a
:class:`~memplan.runtime.messages.RunRequest`; every run is a function of ``run_child`` that
``measure`` calls in a process of its own. It gives ``Measurement``, ``RunTimes``, ``Comparison``
and ``Machine``, and for the user's own process sessions (``load_session``, ``training_session``).
"""

import os

# ONNX Runtime 1.31 on Linux gathers usage data unless this is set before it is imported: names of
# models and operators, error messages, the machine. Whoever wants that may set it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
