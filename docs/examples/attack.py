import numpy as np
import onnxruntime

held_out = dict(np.load("held_out.npz"))
x, labels = held_out["x"], held_out["labels"]
classifier = onnxruntime.InferenceSession("classifier.onnx")
gradient = onnxruntime.InferenceSession("attack.onnx")


def accuracy(x):
    (logits,) = classifier.run(["logits"], {"x": x})
    return (logits.argmax(1) == labels).mean()


loss, x_grad = gradient.run(["loss", "x_grad"], held_out)
print(f"unchanged: loss {loss:.3f}, {accuracy(x):.1%} right")
for size in (0.1, 0.2, 0.4):
    moved = x + np.float32(size) * np.sign(x_grad)
    print(f"moved by {size}: {accuracy(moved):.1%} right")
