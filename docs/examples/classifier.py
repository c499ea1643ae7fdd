import numpy as np
import onnx
from onnx import numpy_helper

import memplan

text = """<ir_version: 10, opset_import: ["": 20]>
classifier (float[N, 64] x) => (float[N, 10] logits) {
    hidden = Gemm <transB = 1> (x, w0, b0)
    active = Gelu (hidden)
    logits = Gemm <transB = 1> (active, w1, b1)
}"""
rng = np.random.default_rng(0)
model = onnx.parser.parse_model(text)
for name, shape in {"w0": (128, 64), "b0": (128,), "w1": (10, 128), "b1": (10,)}.items():
    values = (rng.standard_normal(shape) / 8).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(values, name))


def samples(count):
    """Element k of a sample of class k is larger by 4 than the noise around it."""
    labels = rng.integers(0, 10, count)
    noise = rng.standard_normal((count, 64), np.float32)
    return {"x": noise + 4 * np.eye(10, 64, dtype=np.float32)[labels], "labels": labels}


options = memplan.GradOptions(loss="cross-entropy", logits="logits", optimizer="adamw")
trainer = memplan.Trainer(memplan.grad(model, options).model)
list(trainer.train(samples(256), steps=200, batch=64))
trainer.export_forward("classifier.onnx", model)
np.savez("held_out.npz", **samples(1000))
