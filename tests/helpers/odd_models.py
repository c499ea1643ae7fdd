"""Small models, each with something that real exporters produce and that is easy to get wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, STRING, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.STRING,
    TensorProto.BOOL,
)
BATCH, WIDTH, HIDDEN = 8, 16, 32
Info = onnx.ValueInfoProto


def info(name: str, shape: Sequence[int | str] | None, dtype: int = FLOAT) -> Info:
    """A typed name."""
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, values: object, dtype: type = np.float32) -> onnx.TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(values, dtype=dtype), name)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    """A small random initializer, the same for the same name."""
    generator = np.random.default_rng(len(name))
    return constant(name, generator.standard_normal(shape) * 0.1)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Info],
    outputs: Sequence[Info],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
    ir_version: int = 10,
) -> onnx.ModelProto:
    """A model of one graph."""
    graph = helper.make_graph(nodes, "odd", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(
        graph,
        opset_imports=opsets,
        functions=list(functions),
        ir_version=ir_version,
        producer_name="tests",
    )


def training_nodes() -> list[onnx.NodeProto]:
    """Forward, loss and backward of a two-layer perceptron, in operators of every opset."""
    node = helper.make_node
    return [
        node("MatMul", ["x", "w1"], ["h"], name="fc1"),
        node("Relu", ["h"], ["a"], name="act"),
        node("MatMul", ["a", "w2"], ["y"], name="fc2"),
        node("ReduceMean", ["y"], ["loss"], name="mean", keepdims=0),
        node("Transpose", ["w2"], ["w2_t"], name="w2_t", perm=[1, 0]),
        node("MatMul", ["share", "w2_t"], ["a_grad"], name="fc2_grad_a"),
        node("Transpose", ["a"], ["a_t"], name="a_t", perm=[1, 0]),
        node("MatMul", ["a_t", "share"], ["w2_grad"], name="fc2_grad_w"),
        node("Greater", ["h", "zero"], ["alive"], name="alive"),
        node("Cast", ["alive"], ["mask"], name="mask", to=FLOAT),
        node("Mul", ["a_grad", "mask"], ["h_grad"], name="act_grad"),
        node("Transpose", ["x"], ["x_t"], name="x_t", perm=[1, 0]),
        node("MatMul", ["x_t", "h_grad"], ["w1_grad"], name="fc1_grad_w"),
    ]


def training_parts() -> tuple[list[Info], list[Info], list[onnx.TensorProto]]:
    """Inputs, outputs and initializers of :func:`training_nodes`."""
    inputs = [info("x", [BATCH, WIDTH])]
    outputs = [info("loss", []), info("w1_grad", [WIDTH, HIDDEN]), info("w2_grad", [HIDDEN, 1])]
    given = [
        weights("w1", WIDTH, HIDDEN),
        weights("w2", HIDDEN, 1),
        constant("zero", 0.0),
        constant("share", np.full((BATCH, 1), 1 / BATCH)),
    ]
    return inputs, outputs, given


def training(opset: int = 18) -> onnx.ModelProto:
    """A whole training step."""
    inputs, outputs, given = training_parts()
    return model(training_nodes(), inputs, outputs, given, opset=opset)


def no_names() -> onnx.ModelProto:
    """Nodes without names, as many exporters leave them."""
    result = training()
    for node in result.graph.node:
        node.name = ""
    return result


def doubled_names() -> onnx.ModelProto:
    """Every node has the same name."""
    result = training()
    for node in result.graph.node:
        node.name = "node"
    return result


def local_function() -> onnx.ModelProto:
    """The activation is a model-local function."""
    body = [helper.make_node("Relu", ["v"], ["w"]), helper.make_node("Identity", ["w"], ["u"])]
    function = helper.make_function(
        "local", "Act", ["v"], ["u"], body, [helper.make_opsetid("", 18)]
    )
    nodes = training_nodes()
    nodes[1] = helper.make_node("Act", ["h"], ["a"], domain="local", name="act")
    inputs, outputs, given = training_parts()
    return model(nodes, inputs, outputs, given, functions=[function], domains=["local"])


def constant_nodes() -> onnx.ModelProto:
    """Constants as nodes, with tensor and with plain attributes."""
    inputs, outputs, given = training_parts()
    share = next(tensor for tensor in given if tensor.name == "share")
    nodes = [
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Constant", [], ["share"], value=share),
        *training_nodes(),
    ]
    return model(nodes, inputs, outputs, [t for t in given if t.name in ("w1", "w2")])


def sparse_initializer() -> onnx.ModelProto:
    """One weight is sparse."""
    inputs, outputs, given = training_parts()
    result = model(training_nodes(), inputs, outputs, [t for t in given if t.name != "w2"])
    values, indices = constant("w2", [0.5, -0.5]), constant("places", [3, 17], np.int64)
    result.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [HIDDEN, 1]))
    return result


def conditional() -> onnx.ModelProto:
    """An If whose branches read tensors of the graph around them."""
    shape = [BATCH, HIDDEN]
    branches = {
        "then_branch": helper.make_graph(
            [helper.make_node("Mul", ["a", "h"], ["more"])], "then", [], [info("more", shape)]
        ),
        "else_branch": helper.make_graph(
            [helper.make_node("Neg", ["a"], ["less"])], "else", [], [info("less", shape)]
        ),
    }
    nodes = training_nodes()
    nodes.insert(2, helper.make_node("If", ["flag"], ["picked"], name="pick", **branches))
    nodes[3].input[0] = "picked"
    inputs, outputs, given = training_parts()
    return model(nodes, [*inputs, info("flag", [], BOOL)], outputs, given)


def loop(trips: int = 3, *, as_node: bool = False, stacked: bool = True) -> onnx.ModelProto:
    """A Loop that reads an outer tensor, carries a state and stacks an output."""
    shape = [BATCH, HIDDEN]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["still_on"]),
            helper.make_node("Add", ["state", "a"], ["next_state"]),
            helper.make_node("Tanh", ["next_state"], ["seen"]),
        ],
        "body",
        [info("step", [], INT64), info("on", [], BOOL), info("state", shape)],
        [info("still_on", [], BOOL), info("next_state", shape)] + [info("seen", shape)] * stacked,
    )
    outputs_of_loop = ["last", "all_seen"][: 1 + stacked]
    nodes = training_nodes()
    nodes.insert(
        2, helper.make_node("Loop", ["trips", "go", "h"], outputs_of_loop, name="loop", body=body)
    )
    nodes[3].input[0] = "last"
    inputs, outputs, given = training_parts()
    count = constant("trips", trips, np.int64)
    if as_node:
        nodes.insert(0, helper.make_node("Constant", [], ["trips"], value=count))
    else:
        given.append(count)
    given.append(constant("go", True, np.bool_))
    if stacked:
        outputs.append(info("all_seen", [trips, *shape]))
    return model(nodes, inputs, outputs, given)


def scan() -> onnx.ModelProto:
    """A Scan over the rows of a tensor, with a captured weight."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["row", "scale"], ["scaled"]),
            helper.make_node("Add", ["total", "scaled"], ["new_total"]),
            helper.make_node("Identity", ["new_total"], ["running"]),
        ],
        "body",
        [info("total", [HIDDEN]), info("row", [HIDDEN])],
        [info("new_total", [HIDDEN]), info("running", [HIDDEN])],
    )
    nodes = training_nodes()
    nodes.insert(
        2,
        helper.make_node(
            "Scan", ["start", "a"], ["final", "sums"], name="scan", body=body, num_scan_inputs=1
        ),
    )
    nodes[3].input[0] = "sums"
    inputs, outputs, given = training_parts()
    given += [constant("start", np.zeros(HIDDEN)), weights("scale", HIDDEN)]
    return model(nodes, inputs, [*outputs, info("final", [HIDDEN])], given)


def strings() -> onnx.ModelProto:
    """Labels as text, selected and handed on beside the training step."""
    inputs, outputs, given = training_parts()
    nodes = [
        *training_nodes(),
        helper.make_node("Where", ["flags", "labels", "other"], ["picked"], name="pick"),
        helper.make_node("Identity", ["picked"], ["labels_out"], name="hand_on"),
    ]
    inputs += [info("labels", [BATCH], STRING), info("other", [BATCH], STRING)]
    return model(
        nodes,
        [*inputs, info("flags", [BATCH], BOOL)],
        [*outputs, info("labels_out", [BATCH], STRING)],
        given,
    )


def sequences() -> onnx.ModelProto:
    """A sequence and an optional on the way from one tensor to another."""
    inputs, outputs, given = training_parts()
    nodes = training_nodes()
    nodes[2:2] = [
        helper.make_node("SequenceConstruct", ["a", "h"], ["pair"], name="pack"),
        helper.make_node("Optional", ["pair"], ["maybe"], name="wrap"),
        helper.make_node("OptionalGetElement", ["maybe"], ["sure"], name="unwrap"),
        helper.make_node("SequenceAt", ["sure", "first"], ["taken"], name="take"),
    ]
    nodes[6].input[0] = "taken"
    result = model(nodes, inputs, outputs, [*given, constant("first", 0, np.int64)])
    result.graph.value_info.append(info("taken", [BATCH, HIDDEN]))
    return result


def default_input() -> onnx.ModelProto:
    """An initializer that is also a graph input: a default that a run may replace."""
    result = training()
    result.graph.input.append(info("w1", [WIDTH, HIDDEN]))
    return result


def output_and_stash() -> onnx.ModelProto:
    """The activation is a graph output and is read again in backward."""
    result = training()
    result.graph.output.append(info("a", [BATCH, HIDDEN]))
    return result


def unused_inputs() -> onnx.ModelProto:
    """An input and an initializer that nothing reads."""
    result = training()
    result.graph.input.append(info("ignored", [1024]))
    result.graph.initializer.append(constant("never", np.zeros(512)))
    return result


def empty_tensors() -> onnx.ModelProto:
    """Tensors without elements on the way."""
    inputs, outputs, given = training_parts()
    bounds = {"begin": [0], "end": [0], "axes": [0]}
    nodes = [
        *training_nodes(),
        helper.make_node("Slice", ["h", *bounds], ["none"], name="cut"),
        helper.make_node("Concat", ["none", "a"], ["joined"], name="join", axis=0),
        helper.make_node("ReduceMean", ["joined"], ["mean_a"], name="mean_a", keepdims=0),
    ]
    given += [constant(name, value, np.int64) for name, value in bounds.items()]
    return model(nodes, inputs, [*outputs, info("mean_a", []), info("none", [0, HIDDEN])], given)


def scalars() -> onnx.ModelProto:
    """Nothing but scalars."""
    nodes = [
        helper.make_node("Mul", ["p", "p"], ["square"], name="square"),
        helper.make_node("Mul", ["square", "half"], ["loss"], name="loss"),
        helper.make_node("Mul", ["p", "rate"], ["step"], name="step"),
        helper.make_node("Sub", ["p", "step"], ["p_new"], name="update"),
    ]
    return model(
        nodes,
        [info("p", [])],
        [info("loss", []), info("p_new", [])],
        [constant("half", 0.5), constant("rate", 0.1)],
    )


def identity_output() -> onnx.ModelProto:
    """An output that is an input handed through."""
    result = training()
    result.graph.node.append(helper.make_node("Identity", ["x"], ["x_out"], name="hand_on"))
    result.graph.output.append(info("x_out", [BATCH, WIDTH]))
    return result


def input_as_output() -> onnx.ModelProto:
    """A graph output that is a graph input, and one that is an initializer."""
    result = training()
    result.graph.output.extend([info("x", [BATCH, WIDTH]), info("w2", [HIDDEN, 1])])
    return result


def unknown_operator() -> onnx.ModelProto:
    """An operator that nobody but its author knows, with its output's shape stated."""
    nodes = training_nodes()
    nodes[1] = helper.make_node("Swoosh", ["h"], ["a"], domain="acme.ops", name="act", alpha=0.5)
    inputs, outputs, given = training_parts()
    result = model(nodes, inputs, outputs, given, domains=["acme.ops"])
    result.graph.value_info.append(info("a", [BATCH, HIDDEN]))
    return result


def symbolic() -> onnx.ModelProto:
    """A batch dimension with a name."""
    result = training()
    share = next(t for t in result.graph.initializer if t.name == "share")
    result.graph.initializer.remove(share)
    result.graph.input.append(info("share", ["N", 1]))
    result.graph.input[0].CopyFrom(info("x", ["N", WIDTH]))
    return result


def external(folder: Path, name: str = "model.onnx", data: str = "weights.bin") -> Path:
    """A model with its weights in another file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(training(), path, save_as_external_data=True, location=data, size_threshold=0)
    return path


WORKING: dict[str, Callable[[], onnx.ModelProto]] = {
    maker.__name__: maker
    for maker in (
        training,
        no_names,
        doubled_names,
        local_function,
        constant_nodes,
        sparse_initializer,
        conditional,
        loop,
        scan,
        strings,
        sequences,
        default_input,
        output_and_stash,
        unused_inputs,
        empty_tensors,
        scalars,
        identity_output,
        input_as_output,
        unknown_operator,
    )
}
"""Models that must be analyzed and rewritten; all but the last run on ONNX Runtime too."""


def feeds_of(model_proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Values for the inputs that have no default, the same every time."""
    generator = np.random.default_rng(0)
    given = {tensor.name for tensor in model_proto.graph.initializer}
    feeds: dict[str, np.ndarray] = {}
    for value in model_proto.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        if value.name in given:
            continue
        if kind.elem_type == STRING:
            texts = [f"{value.name} {k}" for k in range(int(np.prod(shape)))]
            feeds[value.name] = np.array(texts, dtype=object).reshape(shape)
        elif kind.elem_type == BOOL:
            feeds[value.name] = generator.integers(0, 2, shape).astype(np.bool_)
        else:
            feeds[value.name] = generator.standard_normal(shape).astype(np.float32)
    return feeds


def saved(model_proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """Write a model into ``folder``."""
    path = folder / name
    path.write_bytes(model_proto.SerializeToString())
    return path
