import numpy as np
import onnx
from onnx import numpy_helper

import memplan

text = """<ir_version: 10, opset_import: ["": 20]>
shapes (float[N, 1, 16, 16] x) => (float[N, 8] logits) {
    c0 = Conv <pads = [1, 1, 1, 1]> (x, w0, b0)
    r0 = Relu (c0)
    p0 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r0)
    c1 = Conv <pads = [1, 1, 1, 1]> (p0, w1, b1)
    r1 = Relu (c1)
    p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
    features = Flatten (p1)
    logits = Gemm <transB = 1> (features, head, bias)
}"""
sizes = {"w0": (16, 1, 3, 3), "b0": (16,), "w1": (32, 16, 3, 3), "b1": (32,)}
sizes |= {"head": (8, 512), "bias": (8,)}
rng = np.random.default_rng(0)
model = onnx.parser.parse_model(text)
for name, size in sizes.items():
    values = rng.standard_normal(size) / np.sqrt(np.prod(size[1:]))
    model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
patterns = rng.standard_normal((8, 1, 16, 16))


def batch(count, sign=1):
    labels = rng.integers(0, 8, count)
    noise = rng.standard_normal((count, 1, 16, 16))
    return (sign * patterns[labels] + noise).astype(np.float32), labels


options = memplan.GradOptions(loss="cross-entropy", logits="logits", optimizer="adamw")
trainer = memplan.Trainer(memplan.grad(model, options).model)
for _ in range(60):
    x, labels = batch(32)
    trainer.step(x=x, labels=labels, lr=3e-3)
trainer.export_forward("shapes.onnx", model)
x, labels = batch(20 * 32, sign=-1)
x.tofile("x.bin")
labels.tofile("labels.bin")
