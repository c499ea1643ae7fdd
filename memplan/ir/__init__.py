"""What a training graph is: tensors and nodes by number, phases of the step, layers of the model.

Takes a ``ModelProto`` with its types; gives a :class:`Graph` of frozen values, without protobuf, on
which everything above works, and the :class:`Phases` of its nodes.
"""
