"""Reading, checking, preparing and writing ONNX files, without ever loading weights."""
