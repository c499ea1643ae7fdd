"""Changes of models and texts, as damage, bad exporters and ill will make them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from memplan.proto.nodes import subgraphs

SIZES = (0, 1, 2, 3, -1, -2, 7, 64, 1000, 4097, 65536, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
SIZES += (-(2**63),)
NAMES = ("", "nowhere", "N", "2*N", "N//0", "((((", "a\nb", "\x1b[31m", "x" * 70_000, "loss")
DOMAINS = ("", "ai.onnx", "com.microsoft", "acme", "ai.onnx.ml")
METADATA = ("{}", "[]", "null", "[" * 9000, "1" * 5000, f'{{"h": [1, [{2**70}, "N"]]}}', "NaN")
SCOPES = ("['a', 'b']", "(" * 500, "-" * 5000 + "1", "{[]: 1}", "'x'", "1", "forward", "\0")

Edit = Callable[[onnx.ModelProto, onnx.GraphProto, random.Random], None]


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all bodies in it."""
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from graphs_of(body)


def _any_name(graph: onnx.GraphProto, r: random.Random) -> str:
    names = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    names += [name for node in graph.node for name in node.output]
    return r.choice(names + list(NAMES))


def _set_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    texts = [node.SerializeToString() for node in nodes]
    del graph.node[:]
    graph.node.extend(onnx.NodeProto.FromString(text) for text in texts)


def rename_input(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Let a node read another tensor, or none."""
    names = r.choice(graph.node).input
    names[r.randrange(len(names))] = _any_name(graph, r)


def rename_output(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Let a node write another tensor, or none."""
    names = r.choice(graph.node).output
    names[r.randrange(len(names))] = _any_name(graph, r)


def drop_node(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Remove a node."""
    del graph.node[r.randrange(len(graph.node))]


def move_node(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Put a node elsewhere."""
    nodes = list(graph.node)
    nodes.insert(r.randrange(len(nodes)), nodes.pop(r.randrange(len(nodes))))
    _set_nodes(graph, nodes)


def resize(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Another size or name for a stated dimension."""
    dims = r.choice([*graph.input, *graph.output, *graph.value_info]).type.tensor_type.shape.dim
    dim = dims[r.randrange(len(dims))]
    if r.random() < 0.7:
        dim.dim_value = r.choice(SIZES)
    else:
        dim.dim_param = r.choice(NAMES)


def change_rank(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """A stated shape with more or fewer dimensions."""
    dims = r.choice([*graph.input, *graph.output, *graph.value_info]).type.tensor_type.shape.dim
    if r.random() < 0.5:
        del dims[-1]
    else:
        dims.add().dim_value = r.choice((1, 2, 2**40))


def change_type(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Another stated type."""
    value = r.choice([*graph.input, *graph.output, *graph.value_info])
    how = r.randrange(4)
    if how == 0:
        value.ClearField("type")
    elif how == 1:
        value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    elif how == 2:
        value.type.tensor_type.ClearField("shape")
    else:
        value.type.tensor_type.elem_type = r.choice((*range(30), 1000, -1))


def drop_statements(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """No stated shapes but those of the inputs."""
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")


def change_operator(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Another operator, or another domain."""
    node = r.choice(graph.node)
    if r.random() < 0.5:
        node.op_type = r.choice(onnx.defs.get_all_schemas()).name
    else:
        node.domain = r.choice(DOMAINS)


def change_arity(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """More or fewer inputs or outputs, or blank ones."""
    node = r.choice(graph.node)
    names = node.input if r.random() < 0.7 else node.output
    how = r.randrange(3)
    if how == 0:
        del names[r.randrange(len(names) + 1) :]
    elif how == 1:
        names[r.randrange(len(names))] = ""
    else:
        names.append(_any_name(graph, r) if names is node.input else f"extra{r.randrange(9)}")


def change_attribute(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Another value, type or name of an attribute; one less, or one twice."""
    node = r.choice([node for node in graph.node if node.attribute])
    k = r.randrange(len(node.attribute))
    attribute, how = node.attribute[k], r.randrange(8)
    if how == 0:
        del node.attribute[k]
    elif how == 1:
        attribute.type = r.choice(list(AttributeProto.AttributeType.values()))
    elif how == 2:
        node.attribute.add().CopyFrom(attribute)
    elif how == 3:
        attribute.name = r.choice(("axis", "axes", "value", "", "body", "to", "keepdims", "perm"))
    elif attribute.type == AttributeProto.INT:
        attribute.i = r.choice(SIZES)
    elif attribute.type == AttributeProto.INTS:
        attribute.ints[:] = [r.choice(SIZES) for _ in range(r.randrange(5))]
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = r.choice((0.0, -1.0, float("nan"), float("inf")))
    elif attribute.type == AttributeProto.STRING:
        attribute.s = r.choice((b"", b"\xff\xfe", b"linear", b"VALID", b"x" * 2000))
    elif attribute.type == AttributeProto.TENSOR:
        _change_tensor(attribute.t, r)


def add_attribute(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """An attribute that the operator may or may not know."""
    names = ("axis", "axes", "group", "keepdims", "transA", "start", "hidden_size", "strides", "p")
    value = r.choice(SIZES) if r.random() < 0.6 else [r.choice(SIZES) for _ in range(3)]
    r.choice(graph.node).attribute.append(helper.make_attribute(r.choice(names), value))


def _change_tensor(tensor: onnx.TensorProto, r: random.Random) -> None:
    how = r.randrange(6)
    if how == 0:
        tensor.dims[:] = [r.choice(SIZES) for _ in range(r.randrange(4))]
    elif how == 1:
        tensor.data_type = r.choice((*range(32), 1000))
    elif how == 2:
        tensor.raw_data = tensor.raw_data[: r.randrange(len(tensor.raw_data) + 1)]
    elif how == 3:
        tensor.data_location = TensorProto.EXTERNAL
        places = ("../x", "/etc/hostname", "a\0b", "", "x" * 5000, "model.onnx", "C:\\x")
        tensor.external_data.add(key="location", value=r.choice(places))
        tensor.external_data.add(key="offset", value=r.choice(("0", "-1", "9" * 5000)))
    else:
        numbers = np.array([r.choice(SIZES) for _ in range(r.randrange(5))], np.int64)
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))


def change_constant(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Another content, shape or place of an initializer."""
    _change_tensor(r.choice(graph.initializer), r)


def change_interface(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """One graph input or output more or less."""
    values = graph.input if r.random() < 0.5 else graph.output
    if r.random() < 0.5:
        del values[r.randrange(len(values))]
    else:
        values.add(name=_any_name(graph, r)).type.tensor_type.elem_type = r.choice((0, 1, 7))


def change_opset(model: onnx.ModelProto, _: onnx.GraphProto, r: random.Random) -> None:
    """Other versions."""
    if r.random() < 0.3:
        model.ir_version = r.choice((0, 3, 8, 100, 2**62))
    else:
        model.opset_import[0].version = r.choice((0, 8, 9, 13, 18, 25, 1000, 2**62, -1))


def add_metadata(model: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Metadata in memplan's words, and in those of exporters."""
    if r.random() < 0.5:
        keys = ("hidden_shapes", "dims", "session", "budget_bytes", "provider")
        model.metadata_props.add(key=f"memplan.{r.choice(keys)}", value=r.choice(METADATA))
    else:
        keys = ("memplan.phase", "memplan.module", "memplan.forward", "pkg.torch.onnx.name_scopes")
        r.choice(graph.node).metadata_props.add(key=r.choice(keys), value=r.choice(SCOPES))


def nest(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """A node put into an If."""
    nodes = list(graph.node)
    k = r.randrange(len(nodes))
    outputs = [name for name in nodes[k].output if name]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    body = helper.make_graph([nodes[k]], "body", [], values)
    flag = f"flag{len(graph.initializer)}"
    graph.initializer.append(numpy_helper.from_array(np.array(True), flag))
    nodes[k] = helper.make_node("If", [flag], outputs, then_branch=body, else_branch=body)
    _set_nodes(graph, nodes)


def insert_node(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """One operator more on the way to a reader."""
    nodes = list(graph.node)
    k = r.randrange(len(nodes))
    names = nodes[k].input
    slot = r.randrange(len(names))
    made = f"inserted{len(nodes)}{r.randrange(1000)}"
    nodes.insert(k, helper.make_node(r.choice(_UNARY), [names[slot]], [made]))
    names[slot] = made
    _set_nodes(graph, nodes)


def repeat_node(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """A node twice, as after recomputation by hand; the last reader takes the copy's output."""
    nodes = list(graph.node)
    k = r.randrange(len(nodes))
    again = onnx.NodeProto()
    again.CopyFrom(nodes[k])
    again.output[:] = [name and f"{name}/again" for name in again.output]
    again.name = again.name and f"{again.name}/again"
    readers = [n for n, node in enumerate(nodes) if nodes[k].output[0] in node.input]
    if not readers:
        return
    names = nodes[readers[-1]].input
    names[list(names).index(nodes[k].output[0])] = again.output[0]
    nodes.insert(readers[-1], again)
    _set_nodes(graph, nodes)


def add_reader(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """A sum of something with itself, which is an output or read by nobody."""
    name, made = _any_name(graph, r), f"more{len(graph.node)}{r.randrange(1000)}"
    graph.node.append(helper.make_node(r.choice(("Add", "Mul", "Sub", "Max")), [name] * 2, [made]))
    if r.random() < 0.7:
        graph.output.add(name=made).type.tensor_type.elem_type = TensorProto.FLOAT


def shrink(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Another size or name of the first axis of an input, as an edit of the batch is."""
    dim = r.choice(graph.input).type.tensor_type.shape.dim[0]
    if r.random() < 0.5:
        dim.dim_value = r.choice((1, 2, 3, 4, 16))
    else:
        dim.dim_param = r.choice(("N", "batch", "T"))


def drop_names(_: onnx.ModelProto, graph: onnx.GraphProto, r: random.Random) -> None:
    """Nodes without names, or all with one."""
    for node in graph.node:
        node.name = ""
        if r.random() < 0.5:
            node.name = "same"


_UNARY = ("Identity", "Relu", "Neg", "Tanh", "Exp", "Dropout", "Softmax", "Transpose", "Flatten")
_GENTLE: tuple[Edit, ...] = (  # most leave a model valid
    insert_node,
    insert_node,
    repeat_node,
    add_reader,
    shrink,
    drop_names,
    drop_statements,
    add_metadata,
    nest,
)
_EDITS: tuple[Edit, ...] = (
    *_GENTLE[:5],
    rename_input,
    rename_output,
    drop_node,
    move_node,
    resize,
    resize,
    change_rank,
    change_type,
    drop_statements,
    drop_statements,
    change_operator,
    change_arity,
    change_arity,
    *(change_attribute,) * 4,
    add_attribute,
    *(change_constant,) * 3,
    change_interface,
    change_opset,
    add_metadata,
    nest,
)
_SHARE_OF_GENTLE = 0.4
_IMPOSSIBLE = (ValueError, IndexError, TypeError)  # an edit of something that the graph has not


def mutated(data: bytes, r: random.Random, share_of_bytes: float = 0.1) -> bytes:
    """A model with one to four edits; sometimes of its bytes."""
    if r.random() < share_of_bytes:
        return scrambled(data, r)
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        return scrambled(data, r)
    edits = _GENTLE if r.random() < _SHARE_OF_GENTLE else _EDITS
    for _ in range(r.choice((1, 1, 2, 2, 3, 4))):
        graphs = list(graphs_of(model.graph))
        graph = r.choice([model.graph] * max(1, len(graphs) - 1) + graphs[1:])
        try:
            r.choice(edits)(model, graph, r)
        except _IMPOSSIBLE:
            continue
    return model.SerializeToString()


def scrambled(data: bytes, r: random.Random) -> bytes:
    """Bytes changed, removed, or put in."""
    changed = bytearray(data)
    for _ in range(r.choice((1, 2, 5))):
        place = r.randrange(len(changed) + 1)
        how = r.randrange(4)
        if how == 0:
            changed[place : place + 1] = r.randbytes(1)
        elif how == 1:
            changed[place:place] = r.randbytes(r.randrange(1, 20))
        elif how == 2:
            del changed[place : place + r.choice((1, 5, 100))]
        elif r.random() < 0.3:
            del changed[place:]
    return bytes(changed)


_VALUES = ("-1", "0", "9" * 4000, "1e400", "nan", "true", '""', "[]", "{}", "[1]", "{a = 1}")
_VALUES += (
    '"\\u001b[31m"',
    '"1%"',
    "0x7fffffffffffffffffff",
    "[" * 3000 + "]" * 3000,
    "1979-05-27",
)
_LINES = ("<<<<<<< HEAD", "[[models]]", "[models.x.y.z]", '"""', "\0", "# " + "x" * 10_000)
_LINES += ("a." * 30_000 + "b = 1", "[" + "a." * 20_000 + "b]")


def mutated_text(text: str, r: random.Random) -> str:
    """A lock with one to three edits."""
    lines = text.split("\n")
    for _ in range(r.choice((1, 1, 2, 3))):
        k, how = r.randrange(len(lines)), r.randrange(4)
        if how <= 1 and "=" in lines[k]:
            lines[k] = lines[k].split("=")[0] + "= " + r.choice(_VALUES)
        elif how == 2:
            del lines[k]
        else:
            lines.insert(k, r.choice(_LINES))
        lines = lines or [""]
    return "\n".join(lines)
