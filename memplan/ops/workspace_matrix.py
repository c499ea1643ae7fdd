"""Workspace of contractions, recurrent and attention kernels on the CPU.

Measured by ``tools/probe_ort``; every formula is in bytes.
"""

from __future__ import annotations

from memplan.ops.workspace_node import BOOL, FLOAT16, Node, elements, item_bytes


def _copied(order: str, wanted: str, nbytes: int) -> int:
    """Bytes of the transposed copy, none when the axes are in order already."""
    return 0 if order == wanted else nbytes


def einsum(node: Node) -> int | None:
    """Transposed copies where the equation needs them, the product, and its transposed copy.

    Letters are numbered by first appearance. The second operand is first put into that order,
    then both become [batch, kept, summed] x [batch, summed, kept]; all copies live to the end.
    Exact for two operands; equations with an ellipsis, a repeated letter or a letter summed out
    of one operand alone get an upper bound; more than two operands are not modelled.
    Source: einsum_utils/einsum_typed_compute_processor.cc.
    """
    first, second, y = node.input(0), node.input(1), node.output(0)
    if first is None or y is None or len(node.inputs) > 2:
        return None
    left, _, result = node.text("equation", "").replace(" ", "").partition("->")
    a, _, b = left.partition(",")
    plain = left.replace(",", "").isalpha() and all(len(set(t)) == len(t) for t in (a, b, result))
    if second is None:
        kept = "".join(c for c in a if c in result)
        reduced = y.nbytes if kept != a else 0
        return reduced + _copied(kept, result, y.nbytes) if plain else 2 * y.nbytes
    if not plain or "->" not in node.text("equation", "") or not set(a) ^ set(b) <= set(result):
        return first.nbytes + 2 * second.nbytes + 2 * y.nbytes
    order = "".join(dict.fromkeys(a + b))
    batch = "".join(c for c in order if c in a and c in b and c in result)
    summed = "".join(c for c in order if c in a and c in b and c not in result)
    rows, columns = "".join(c for c in a if c not in b), "".join(c for c in order if c not in a)
    return (
        _copied(b, "".join(sorted(b, key=order.index)), second.nbytes)
        + _copied(batch + rows + summed + columns, order, first.nbytes)
        + _copied(batch + summed + columns + rows, order, second.nbytes)
        + y.nbytes
        + _copied(batch + rows + columns, result, y.nbytes)
    )


def _flow(node: Node) -> tuple[int, int, int, int]:
    """Sequence length, batch size, input size and hidden size of a recurrent node."""
    x, recurrent = node.inputs[0], node.inputs[2]
    assert x is not None
    assert recurrent is not None
    return x.shape[0], x.shape[1], x.shape[2], recurrent.shape[-1]


def _reversal(node: Node) -> int:
    """Elements of the reversed copies of input and output, for the backward direction."""
    steps, batch, width, hidden = _flow(node)
    if node.text("direction", "forward") == "forward":
        return 0
    return steps * batch * (width + hidden)


def _directions(node: Node) -> int:
    return 2 if node.text("direction", "forward") == "bidirectional" else 1


def rnn(node: Node) -> int | None:
    """The input product of one direction, and Y itself when it is not an output (rnn.cc)."""
    steps, batch, _, hidden = _flow(node)
    frame = steps * batch * hidden
    return 4 * (frame + (frame * _directions(node) if node.output(0) is None else 0))


def lstm(node: Node) -> int | None:
    """Per direction: 2 vectors, 3 states, 4 gates of the whole sequence, 4 biases, the lengths.

    Plus the reversed copies of the backward direction and the states that are not outputs.
    Source: uni_directional_lstm.cc, AllocateBuffers (peephole weights are used in place).
    """
    steps, batch, _, hidden = _flow(node)
    state = batch * hidden
    each = 2 * hidden + 3 * state + 4 * steps * state
    each += 4 * hidden if node.input(3) is not None else 0
    each += batch if node.input(4) is None else 0
    absent = sum(state for index in (1, 2) if node.output(index) is None)
    return 4 * (_directions(node) * (each + absent) + _reversal(node))


def gru(node: Node) -> int | None:
    """Per direction: 2 states, 3 gates of the whole sequence, repeated biases, the lengths.

    With `linear_before_reset` one more bias and a product. Plus the reversed copies of the
    backward direction and Y_h when it is not an output. Source: deep_cpu_gru.cc, AllocateBuffers.
    """
    steps, batch, _, hidden = _flow(node)
    state = batch * hidden
    linear = bool(node.integer("linear_before_reset", 0))
    each = 2 * state + 3 * steps * state + (state if linear else 0)
    each += (4 if linear else 3) * state if node.input(3) is not None else 0
    each += batch if node.input(4) is None else 0
    each += state if node.output(1) is None else 0
    return 4 * (_directions(node) * each + _reversal(node))


def attention(node: Node) -> int | None:
    """Scores of all heads (batch x heads x queries x keys), and a copy of the mask.

    The mask is copied when it is boolean or has the causal pattern laid over it; without a mask
    the causal pattern is one queries x keys matrix. float16 adds one float32 score matrix a
    thread: an upper bound. Source: llm/attention.cc.
    """
    query, key, mask, past = node.input(0), node.input(1), node.input(3), node.input(4)
    if query is None or key is None:
        return None
    if len(query.shape) == 4:
        batch, heads, rows = query.shape[:3]
        columns = key.shape[2]
    else:
        batch, rows, heads = *query.shape[:2], node.integer("q_num_heads", 1)
        columns = key.shape[1]
    columns += past.shape[2] if past is not None else 0
    size = item_bytes(query)
    causal = bool(node.integer("is_causal", 0)) and not (rows == 1 and past is not None)
    total = batch * heads * rows * columns * size
    if mask is not None and (causal or mask.dtype == BOOL):
        total += elements(mask) * size
    elif mask is None and causal:
        total += rows * columns * size
    if query.dtype == FLOAT16:
        total += 4 * rows * columns * min(node.threads, batch * heads)
    return total


def ms_attention(node: Node) -> int | None:
    """Projections, scores, result before its transposition, 64 bytes a head, and the mask.

    The mask is batch x keys for a plain padding mask and batch x queries x keys when
    unidirectional. Past states and masks of other ranks are not modelled.
    """
    x, bias, mask = node.input(0), node.input(2), node.input(3)
    heads = node.integer("num_heads", 0)
    if x is None or bias is None or not heads or node.input(4) is not None:
        return None
    if (mask is not None and len(mask.shape) != 2) or node.input(5) is not None:
        return None
    batch, rows = x.shape[:2]
    hidden = bias.shape[0] // 3
    floats = 4 * batch * rows * hidden + batch * heads * rows * rows
    if node.integer("unidirectional", 0):
        floats += batch * rows * rows
    elif mask is not None:
        floats += batch * rows
    return 4 * floats + 64 * batch * heads
