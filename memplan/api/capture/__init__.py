"""``capture``: a training step of PyTorch as a training graph.

Takes a :class:`memplan.pytorch.torch_step.TorchStep`, or the file and function that give one; gives
a :class:`~memplan.api.capture.capture_result.Capture`. PyTorch is imported only when a step is
captured.
"""
