"""What ONNX Runtime will do: order, buffers, timeline, peak, and who holds what."""
