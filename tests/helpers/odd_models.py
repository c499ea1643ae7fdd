"""Small models, each with something that real exporters produce and that is easy to get wrong."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

FLOAT, STRING, BOOL = TensorProto.FLOAT, TensorProto.STRING, TensorProto.BOOL
BATCH, WIDTH, HIDDEN = 8, 16, 32


def info(
    name: str, shape: Sequence[int | str | None] | None, dtype: int = FLOAT
) -> onnx.ValueInfoProto:
    """A typed name."""
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, values: object, dtype: type = np.float32) -> onnx.TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(values, dtype=dtype), name)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    """A small random initializer, the same for the same name."""
    generator = np.random.default_rng(len(name))
    return constant(name, generator.standard_normal(shape) * 0.1)


def training(
    opset: int = 18,
    *,
    first: str = "",
    act: str = "[act] a = Relu (h)",
    reads: str = "a",
    last: str = "",
    inputs: str = "",
    outputs: str = "",
    functions: str = "",
    domain: str = "",
    without: Collection[str] = (),
    **more: npt.ArrayLike,
) -> onnx.ModelProto:
    """Forward, loss and backward of a two-layer perceptron, in operators of every opset.

    Args:
        opset: the version of ONNX's operators.
        first: nodes in front of the others.
        act: the activation, and nodes behind it.
        reads: what the second layer reads.
        last: nodes behind the others.
        inputs: graph inputs behind ``x``, as text.
        outputs: graph outputs behind the gradients, as text.
        functions: model-local functions.
        domain: one of operators that are not ONNX's.
        without: constants that are none.
        more: constants beside the others.
    """
    further = f', "{domain}" : 1' if domain else ""
    heads = [part for part in ("float[8, 16] x", inputs) if part]
    results = "float loss, float[16, 32] w1_grad, float[32, 1] w2_grad"
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : {opset}{further}], producer_name: "tests">
        odd ({", ".join(heads)}) => ({", ".join(part for part in (results, outputs) if part)})
        {{
            {first}
            [fc1] h = MatMul (x, w1)
            {act}
            [fc2] y = MatMul ({reads}, w2)
            [mean] loss = ReduceMean <keepdims = 0> (y)
            [w2_t] w2_t = Transpose <perm = [1, 0]> (w2)
            [fc2_grad_a] a_grad = MatMul (share, w2_t)
            [a_t] a_t = Transpose <perm = [1, 0]> (a)
            [fc2_grad_w] w2_grad = MatMul (a_t, share)
            [alive] alive = Greater (h, zero)
            [mask] mask = Cast <to = 1> (alive)
            [act_grad] h_grad = Mul (a_grad, mask)
            [x_t] x_t = Transpose <perm = [1, 0]> (x)
            [fc1_grad_w] w1_grad = MatMul (x_t, h_grad)
            {last}
        }}
        {functions}""")
    given = [
        weights("w1", WIDTH, HIDDEN),
        weights("w2", HIDDEN, 1),
        constant("zero", 0.0),
        constant("share", np.full((BATCH, 1), 1 / BATCH)),
    ]
    model.graph.initializer.extend(tensor for tensor in given if tensor.name not in without)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in more.items()
    )
    return model


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
    return training(
        act="[act] a = local.Act (h)",
        domain="local",
        functions='<domain: "local", opset_import: ["" : 18]> '
        "Act (v) => (u) { w = Relu (v)  u = Identity (w) }",
    )


def constant_nodes() -> onnx.ModelProto:
    """Constants as nodes, with tensor and with plain attributes."""
    eighths = ", ".join(["0.125"] * BATCH)
    return training(
        first="zero = Constant <value_float = 0.0> () "
        f"share = Constant <value = float[8, 1] {{{eighths}}}> ()",
        without=("zero", "share"),
    )


def sparse_initializer() -> onnx.ModelProto:
    """One weight is sparse."""
    result = training(without=["w2"])
    values, indices = constant("w2", [0.5, -0.5]), constant("places", [3, 17], np.int64)
    result.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [HIDDEN, 1]))
    return result


def conditional() -> onnx.ModelProto:
    """An If whose branches read tensors of the graph around them."""
    return training(
        act="[act] a = Relu (h) [pick] picked = If (flag) <"
        "else_branch = else () => (float[8, 32] less) { less = Neg (a) }, "
        "then_branch = then () => (float[8, 32] more) { more = Mul (a, h) }>",
        reads="picked",
        inputs="bool flag",
    )


def loop(trips: int = 3, *, as_node: bool = False, stacked: bool = True) -> onnx.ModelProto:
    """A Loop that reads an outer tensor, carries a state and stacks an output."""
    also = ", float[8, 32] seen" if stacked else ""
    count = {} if as_node else {"trips": np.int64(trips)}
    return training(
        first=f"trips = Constant <value = int64 {{{trips}}}> ()" if as_node else "",
        act=f"""[act] a = Relu (h) [loop] last{", all_seen" if stacked else ""} =
        Loop (trips, go, h) <body = body (int64 step, bool on, float[8, 32] state)
            => (bool still_on, float[8, 32] next_state{also}) {{
                still_on = Identity (on)
                next_state = Add (state, a)
                seen = Tanh (next_state)
            }}>""",
        reads="last",
        outputs=f"float[{trips}, 8, 32] all_seen" if stacked else "",
        **count,
        go=np.bool_(True),
    )


def scan() -> onnx.ModelProto:
    """A Scan over the rows of a tensor, with a captured weight."""
    result = training(
        act="""[act] a = Relu (h) [scan] final, sums = Scan (start, a) <num_scan_inputs = 1,
            body = body (float[32] total, float[32] row)
                => (float[32] new_total, float[32] running) {
                scaled = Mul (row, scale)
                new_total = Add (total, scaled)
                running = Identity (new_total)
            }>""",
        reads="sums",
        outputs="float[32] final",
        start=np.zeros(HIDDEN, np.float32),
    )
    result.graph.initializer.append(weights("scale", HIDDEN))
    return result


def strings() -> onnx.ModelProto:
    """Labels as text, selected and handed on beside the training step."""
    return training(
        last="[pick] picked = Where (flags, labels, other) "
        "[hand_on] labels_out = Identity (picked)",
        inputs="string[8] labels, string[8] other, bool[8] flags",
        outputs="string[8] labels_out",
    )


def sequences() -> onnx.ModelProto:
    """A sequence and an optional on the way from one tensor to another."""
    result = training(
        act="""[act] a = Relu (h)
            [pack] pair = SequenceConstruct (a, h)
            [wrap] maybe = Optional (pair)
            [unwrap] sure = OptionalGetElement (maybe)
            [take] taken = SequenceAt (sure, first)""",
        reads="taken",
    )
    result.graph.initializer.append(constant("first", 0, np.int64))
    result.graph.value_info.append(info("taken", [BATCH, HIDDEN]))
    return result


def default_input() -> onnx.ModelProto:
    """An initializer that is also a graph input: a default that a run may replace."""
    return training(inputs="float[16, 32] w1")


def output_and_stash() -> onnx.ModelProto:
    """The activation is a graph output and is read again in backward."""
    return training(outputs="float[8, 32] a")


def unused_inputs() -> onnx.ModelProto:
    """An input and an initializer that nothing reads."""
    return training(inputs="float[1024] ignored", never=np.zeros(512, np.float32))


def empty_tensors() -> onnx.ModelProto:
    """Tensors without elements on the way."""
    zero = np.zeros(1, np.int64)
    return training(
        last="""[cut] none = Slice (h, begin, end, axes)
            [join] joined = Concat <axis = 0> (none, a)
            [mean_a] mean_a = ReduceMean <keepdims = 0> (joined)""",
        outputs="float mean_a, float[0, 32] none",
        begin=zero,
        end=zero,
        axes=zero,
    )


def scalars() -> onnx.ModelProto:
    """Nothing but scalars."""
    return onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18]>
        odd (float p) => (float loss, float p_new) <float half = {0.5}, float rate = {0.1}> {
            [square] square = Mul (p, p)
            [loss] loss = Mul (square, half)
            [step] step = Mul (p, rate)
            [update] p_new = Sub (p, step)
        }""")


def identity_output() -> onnx.ModelProto:
    """An output that is an input handed through."""
    return training(last="[hand_on] x_out = Identity (x)", outputs="float[8, 16] x_out")


def input_as_output() -> onnx.ModelProto:
    """A graph output that is a graph input, and one that is an initializer."""
    return training(outputs="float[8, 16] x, float[32, 1] w2")


def unknown_operator() -> onnx.ModelProto:
    """An operator that nobody but its author knows, with its output's shape stated."""
    result = training(act="[act] a = acme.ops.Swoosh <alpha = 0.5> (h)", domain="acme.ops")
    result.graph.value_info.append(info("a", [BATCH, HIDDEN]))
    return result


def symbolic() -> onnx.ModelProto:
    """A batch dimension with a name."""
    result = training(inputs="float[N, 1] share", without=["share"])
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
