"""``grad``: a forward graph → a training graph; ``gradients`` is the same for Python.

It answers which graph computes the gradients of a loss. It takes a path or a ``ModelProto`` and
``GradOptions``; it gives a ``TrainingGraph`` or a ``ModelProto``. ``differentiate`` builds it,
``gradient_check`` holds it against central differences.
"""
