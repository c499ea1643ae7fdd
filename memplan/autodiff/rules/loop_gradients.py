"""``Loop`` with a fixed number of iterations, by expansion to ``Scan``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import expansion
from memplan.autodiff.emit.value import Value
from memplan.autodiff.loop_bodies import separate_outputs
from memplan.errors import ModelError
from memplan.proto.edit import copied
from memplan.proto.loop_node import LOOP_FIXED, MOST_TRIPS, body_of
from memplan.shapes.fold import small_constants


@expansion("Loop")
def loop(ctx: Context) -> Sequence[Value | None]:
    """A Scan over the iteration numbers.

    Raises:
        ModelError: data decides how often the loop runs.
    """
    node = ctx.node
    body = copied(body_of(node))
    trips = _trips(ctx, body)
    number, condition = body.input[0], body.input[1]
    states = list(body.input[LOOP_FIXED:])
    true = numpy_helper.from_array(np.asarray(True), condition.name)
    body.initializer.append(true)
    del body.input[:], body.output[0]
    body.input.extend([*states, number])
    separate_outputs(body, ctx.emitter)
    initials = [value for value in ctx.inputs[LOOP_FIXED:] if value is not None]
    numbers = ctx.const(list(range(trips)))
    kinds = [ctx.tensor(name).type for name in node.output]
    return ctx.emitter.ops(
        "Scan",
        *initials,
        numbers,
        outputs=len(node.output),
        results=tuple(kinds),
        body=body,
        num_scan_inputs=1,
    )


def _trips(ctx: Context, body: onnx.GraphProto) -> int:
    """How often the loop runs."""
    count, going = ctx.input(0), ctx.input(1)
    known, start = ctx.constant(count), ctx.constant(going)
    started = going is None or (start is not None and bool(start.reshape(-1)[0]))
    fixed = started and _stays_true(body)
    trips = int(known.reshape(-1)[0]) if known is not None else 0
    if not fixed or not 0 < trips < MOST_TRIPS:
        raise ModelError(
            f"Loop '{ctx.node.name}' runs as often as data decides: its gradient would have to "
            "keep an unknown number of steps",
            "give it a constant trip count and a condition that stays true, or write it as a Scan",
        )
    ctx.require_room(trips)
    return trips


def _stays_true(body: onnx.GraphProto) -> bool:
    """Whether the condition that the body gives is the one it gets, or the constant true."""
    makers = {name: node for node in body.node for name in node.output}
    constants = small_constants(body)
    name = body.output[0].name
    while name in makers and makers[name].op_type in ("Identity", "Cast"):
        name = makers[name].input[0]
    return name == body.input[1].name or (name in constants and bool(constants[name].all()))
