"""From PyTorch: what the exporter makes of a training step.

Takes a model, a loss function, a batch and an optimizer of PyTorch; gives an ONNX graph without
weights, the tensors that are its weights, and the optimizer's settings. Nothing else imports torch.
"""
