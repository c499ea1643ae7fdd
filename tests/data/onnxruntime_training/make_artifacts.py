"""What onnxruntime-training 1.19.2 writes for a small CNN, and the losses of 20 of its steps.

Made once, with Python 3.11 and ``pip install onnxruntime-training==1.19.2 onnx==1.16.2 'numpy<2'
torch``; the files in ``artifacts`` and ``batches.npz`` then went beside this one.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.training import api, artifacts

TEXT = """<ir_version: 8, opset_import: ["": 17]>
net (float[N, 1, 8, 8] x) => (float[N, 4] logits) {
    c0 = Conv <pads = [1, 1, 1, 1]> (x, w0, b0)
    r0 = Relu (c0)
    p0 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r0)
    features = Flatten (p0)
    h0 = Gemm <transB = 1> (features, w1, b1)
    r1 = Relu (h0)
    logits = Gemm <transB = 1> (r1, w2, b2)
}"""
SIZES = {"w0": (4, 1, 3, 3), "b0": (4,), "w1": (8, 64), "b1": (8,), "w2": (4, 8), "b2": (4,)}

rng = np.random.default_rng(0)
model = onnx.parser.parse_model(TEXT)
for name, size in SIZES.items():
    values = rng.standard_normal(size) / np.sqrt(np.prod(size[1:]))
    model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
Path("artifacts").mkdir(exist_ok=True)
artifacts.generate_artifacts(
    model,
    requires_grad=list(SIZES),
    loss=artifacts.LossType.CrossEntropyLoss,
    optimizer=artifacts.OptimType.AdamW,
    artifact_directory="artifacts",
)
patterns = rng.standard_normal((4, 1, 8, 8))
labels = rng.integers(0, 4, (4, 16))
x = (patterns[labels] + rng.standard_normal((4, 16, 1, 8, 8))).astype(np.float32)

state = api.CheckpointState.load_checkpoint("artifacts/checkpoint")
module = api.Module("artifacts/training_model.onnx", state, "artifacts/eval_model.onnx")
optimizer = api.Optimizer("artifacts/optimizer_model.onnx", module)
optimizer.set_learning_rate(1e-2)
module.train()
losses = []
for step in range(20):
    losses.append(float(module(x[step % 4], labels[step % 4])))
    optimizer.step()
    module.lazy_reset_grad()
np.savez_compressed("batches.npz", x=x, labels=labels, losses=np.array(losses, np.float32))
