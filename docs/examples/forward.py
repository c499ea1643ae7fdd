import numpy as np
import onnx
from onnx import helper, numpy_helper

rng = np.random.default_rng(0)
nodes, weights, last = [], [], "x"
for layer, (rows, columns) in enumerate([(64, 512)] + [(512, 512)] * 6 + [(512, 10)]):
    scaled = rng.standard_normal((rows, columns)) * rows**-0.5
    weights.append(numpy_helper.from_array(scaled.astype(np.float32), f"w{layer}"))
    nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"h{layer}"], f"linear{layer}"))
    last = f"h{layer}"
    if columns == 512:
        nodes.append(helper.make_node("Gelu", [last], [f"a{layer}"], f"gelu{layer}"))
        last = f"a{layer}"
nodes[-1].output[0] = "logits"
x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 64])
logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["N", 10])
graph = helper.make_graph(nodes, "classifier", [x], [logits], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
onnx.save(model, "forward.onnx")
