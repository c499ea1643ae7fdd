"""What onnxruntime-training left behind → what ``grad`` works on.

It answers which forward graph a training graph of a runtime that ended with version 1.19 belongs
to. ``strip`` takes the forward part out of a ``ModelProto`` and says what was trained;
``differentiation`` what is to be differentiated by what; ``optimizer_model`` makes one of
``grad``'s optimizers of an optimizer model, and ``ort_checkpoint`` reads values.
"""
