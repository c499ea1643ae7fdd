"""Pools of images: which element of its plane a window begins at, and which of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from memplan.ir.graph import Graph, Node, Tensor
from memplan.passes.change import Array
from memplan.passes.no_ops import Facts

_INT64 = onnx.TensorProto.INT64
IMAGES = 4
"""The rank of images: batch, channels, rows, columns."""


def plane_begins(batch: int, channels: int, size: int) -> tuple[Array, Array]:
    """Where planes of ``size`` elements begin, as a part by batch and one by channel, to be
    added: the proof looks into small constants only."""
    by_batch = np.arange(batch, dtype=np.int64) * (channels * size)
    by_channel = np.arange(channels, dtype=np.int64) * size
    return by_batch.reshape(batch, 1, 1, 1), by_channel.reshape(1, channels, 1, 1)


def is_unit_pool(node: Node) -> bool:
    """Whether a MaxPool looks at one element at a time, and at each."""
    given = node.attributes

    def all_are(name: str, number: int) -> bool:
        value = given.get(name, [number])
        return isinstance(value, list) and all(v == number for v in value)

    return (
        all_are("kernel_shape", 1)
        and all_are("strides", 1)
        and all_are("pads", 0)
        and given.get("storage_order", 0) == 0
    )


def takes_first(facts: Facts, node: Node) -> bool:
    """Whether a ``Slice`` takes the first row and column of each plane."""
    if node.key != ":Slice" or not facts.absent(node, 4):
        return False
    starts, ends, axes = (facts.value(node, slot) for slot in (1, 2, 3))
    if starts is None or ends is None or axes is None:
        return False
    spans = zip(axes.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return sorted((axis % IMAGES, start, end) for axis, start, end in spans) == [
        (2, 0, 1),
        (3, 0, 1),
    ]


@dataclass(frozen=True, slots=True)
class Window:
    """What an index of a pool is when it is counted from its window's first place.

    ``parts`` are to be taken from it one after the other, each a sum of constants; what is left is
    from 0 to ``reach``. That holds on the CPU, whatever the elements are.
    """

    parts: tuple[tuple[Array, ...], ...]
    reach: int


def window_of(facts: Facts, tensor: Tensor) -> Window | None:
    """For the indices of a pool of images (also as int32, also less where their plane begins)."""
    graph = facts.graph
    node = graph.nodes[tensor.producer]
    within = node.key == ":Sub"
    if within or node.key == ":Cast":
        source = graph.tensors[node.inputs[0]]
        if source.producer < 0 or source.dtype != _INT64:
            return None
        pool = graph.nodes[source.producer]
    else:
        source, pool = tensor, node
    if pool.key != ":MaxPool" or len(pool.outputs) < 2 or pool.outputs[1] != source.id:
        return None
    if within and not _begins_planes(facts, node.inputs[1], pool.inputs[0]):
        return None
    shape = graph.tensors[pool.inputs[0]].shape
    found = _places(pool, shape, tensor.shape)
    if found is None or not facts.exact:
        return None
    begins = plane_begins(shape[0], shape[1], shape[2] * shape[3])
    planes = begins if shape[1] > 1 else begins[:1]
    return Window((found[0],) if within else (planes, found[0]), found[1])


def _places(
    pool: Node, shape: tuple[int, ...], windows: tuple[int, ...]
) -> tuple[tuple[Array, Array], int] | None:
    """The first place of each window in its plane, as a part by row and one by column, and how far
    its last place is from there."""
    given = pool.attributes
    kernel = given.get("kernel_shape")
    if len(shape) != IMAGES or not isinstance(kernel, list) or given.get("storage_order", 0) != 0:
        return None
    steps, apart = given.get("strides", [1, 1]), given.get("dilations", [1, 1])
    pads, automatic = given.get("pads", [0, 0, 0, 0]), given.get("auto_pad", "NOTSET")
    if not (isinstance(steps, list) and isinstance(apart, list) and isinstance(pads, list)):
        return None
    # Where windows are rounded up, ONNX and the runtime may not agree on their number.
    if automatic not in ("NOTSET", "VALID") or given.get("ceil_mode", 0) != 0:
        return None
    rows = (np.arange(windows[2], dtype=np.int64) * steps[0] - pads[0]) * shape[3]
    columns = np.arange(windows[3], dtype=np.int64) * steps[1] - pads[1]
    reach = (kernel[0] - 1) * apart[0] * shape[3] + (kernel[1] - 1) * apart[1]
    return (rows.reshape(1, 1, -1, 1), columns.reshape(1, 1, 1, -1)), reach


def _begins_planes(facts: Facts, tensor: int, source: int) -> bool:
    """Whether a tensor is the index of the first element of each plane of ``source``: of a pool of
    one element, or of one of the first rows and what the others hold (``release``)."""
    graph = facts.graph
    added: list[Array] = []
    node = _maker(graph, tensor)
    while node is not None and node.key == ":Add":
        value = facts.value(node, 1)
        if value is None:
            return False
        added.append(value)
        node = _maker(graph, node.inputs[0])
    if node is None or not takes_first(facts, node):
        return False
    pool = _maker(graph, node.inputs[0])
    if pool is None or pool.key != ":MaxPool" or not is_unit_pool(pool):
        return False
    if not added:
        return pool.inputs[0] == source
    row = _maker(graph, pool.inputs[0])
    if row is None or row.key != ":Slice" or row.inputs[0] != source:
        return False
    cut = [facts.value(row, slot) for slot in (1, 2, 3)]
    if any(value is None for value in cut) or not facts.absent(row, 4):
        return False
    if [value.tolist() for value in cut if value is not None] != [[0], [1], [2]]:
        return False
    batch, channels, rows, columns = graph.tensors[source].shape
    skipped = np.arange(batch * channels) * ((rows - 1) * columns)
    total = sum(added, np.zeros((1, 1, 1, 1), np.int64))
    return bool(np.array_equal(total, skipped.reshape(batch, channels, 1, 1)))


def _maker(graph: Graph, tensor: int) -> Node | None:
    producer = graph.tensors[tensor].producer
    return graph.nodes[producer] if producer >= 0 else None
