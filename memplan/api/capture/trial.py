"""A captured graph run on the CPU, with the random numbers of an eager step.

Every random node of a copy of the graph, and every mask that comes from a counter, becomes
arithmetic on an input: the draw that PyTorch's operator took. Draws and nodes meet in the order in
which they stand, apart by family (uniform or normal) and, where all shapes are known, by shape.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from memplan.api.capture.capture_check import NotComparableError, Skip
from memplan.api.capture.captured_file import Finished
from memplan.api.capture.captured_weights import embed
from memplan.errors import RuntimeUnavailableError
from memplan.ir.roles import STATE
from memplan.proto.edit import copied, replace_nodes
from memplan.proto.fed_draws import cannot_be_fed, family, feed_draws, random_nodes
from memplan.pytorch.draws import TorchDraw
from memplan.runtime.installed import require_runtime
from memplan.runtime.messages import RunRequest
from memplan.units import counted

Array = npt.NDArray[Any]
_FLOAT = onnx.TensorProto.FLOAT
_PREFIX, _ADDED = "memplan/draw_", "memplan/added/"


class CannotRunError(Exception):
    """ONNX Runtime cannot run a captured graph; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: all outputs by name (gradients among them, by :attr:`Trial.gradients`)."""

    outputs: Mapping[str, Array]
    seconds: float


class Trial:
    """A captured graph without its weights, ready to run.

    ``gradients`` are the parameters and the tensors that are their gradients, before these are
    unscaled and clipped. ``missing`` says how the graph's draws are not PyTorch's; then it cannot
    be run beside it.
    """

    def __init__(
        self,
        done: Finished,
        gradients: Mapping[str, str],
        draws: Sequence[TorchDraw],
        dims: Mapping[str, int],
    ) -> None:
        """Prepare a copy of the graph."""
        model = copied(done.model)
        graph = model.graph
        made = {name: node for node in graph.node for name in node.output}
        self.gradients = {p: name for p, name in gradients.items() if name in made}
        inputs = {value.name for value in graph.input}
        embed(model, {name: w for name, w in done.weights.items() if name not in inputs})
        outputs = {value.name for value in graph.output}
        for name in self.gradients.values():
            if name not in outputs:
                graph.output.add(name=name)
        self.missing, self.places = _feed_draws(graph, draws, dims)
        self.zeros = _zeros(graph, done)
        self._model = model
        self._sessions: dict[bool, Any] = {}

    def run(
        self,
        values: Mapping[str, Array],
        draws: Sequence[TorchDraw],
        optimized: bool = True,
        infinite: str | None = None,
    ) -> Ran:
        """Run it once in a plain session; state without a value is 0.

        Args:
            values: of inputs, by name; further ones are not read.
            draws: of the eager step, in order.
            optimized: with the runtime's own optimizations, as in anyone's session.
            infinite: the parameter whose gradient is made infinite, or nothing: none is, in a
                session that could.

        Raises:
            CannotRunError: the runtime refuses the graph, or the run fails.
            NotComparableError: there is no runtime, no kernel or no memory for it.
        """
        try:
            require_runtime()
        except RuntimeUnavailableError as error:
            raise NotComparableError(Skip.NO_RUNTIME, error.message) from error
        from memplan.runtime.sessions import run_step

        try:
            session = self._session(infinite is not None, optimized)
            feeds = {**self.zeros, **values}
            if infinite:
                feeds[f"{_ADDED}{infinite}"] = np.asarray(np.inf, np.float32)
            feeds |= {self.places[k]: draw.values() for k, draw in enumerate(draws)}
            known = {item.name for item in session.get_inputs()}
            known |= {item.name for item in session.get_overridable_initializers()}
            begin = time.perf_counter()
            found = run_step(session, {n: v for n, v in feeds.items() if n in known})
            seconds = time.perf_counter() - begin
        except Exception as error:
            raise _failure(error) from error
        names = [item.name for item in session.get_outputs()]
        return Ran(dict(zip(names, found, strict=True)), seconds)

    def _session(self, spoiled: bool, optimized: bool) -> Any:
        """A session of the graph, or of what :func:`_spoiled` makes of it; optimized ones stay."""
        from memplan.runtime.session_options import held_options
        from memplan.runtime.sessions import open_session

        session = self._sessions.get(spoiled) if optimized else None
        if session is None:
            model = _spoiled(self._model, self.gradients) if spoiled else self._model
            options, request = held_options(optimized=optimized), RunRequest(session="default")
            session = open_session(model.SerializeToString(), request, options)
            if optimized:
                self._sessions[spoiled] = session
        return session


def _failure(error: Exception) -> Exception:
    """What a failed run says of the graph: nothing, where there is no kernel or no memory."""
    from memplan.runtime.run_failures import explain, lacks_kernel, out_of_memory

    told = explain(str(error), "running the captured graph", "cpu").message
    if isinstance(error, MemoryError) or out_of_memory(str(error)):
        return NotComparableError(Skip.MEMORY, told)
    if lacks_kernel(str(error)):
        return NotComparableError(Skip.NO_KERNEL, told)
    return CannotRunError(told)


def _spoiled(model: onnx.ModelProto, gradients: Mapping[str, str]) -> onnx.ModelProto:
    """A copy in which a number is added to every gradient, 0 unless it is fed."""
    model = copied(model)
    named = {output: parameter for parameter, output in gradients.items()}
    made: list[onnx.NodeProto] = []
    for node in model.graph.node:
        found = [name for name in node.output if name in named]
        rename = {name: f"{_ADDED}to/{name}" for name in found}
        node.output[:] = [rename.get(name, name) for name in node.output]
        made.append(node)
        for name in found:
            added = f"{_ADDED}{named[name]}"
            model.graph.input.add().CopyFrom(helper.make_tensor_value_info(added, _FLOAT, ()))
            model.graph.initializer.append(
                numpy_helper.from_array(np.asarray(0, np.float32), added)
            )
            made += [
                helper.make_node("CastLike", [added, rename[name]], [f"{added}/like"]),
                helper.make_node("Add", [rename[name], f"{added}/like"], [name]),
            ]
    replace_nodes(model.graph, made)
    return model


def _zeros(graph: onnx.GraphProto, done: Finished) -> dict[str, Array]:
    """Optimizer state that has no value yet."""
    known = {tensor.name for tensor in graph.initializer} | set(done.weights)
    state = set(done.contract.named(*STATE))
    found = {}
    for value in graph.input:
        if value.name in state and value.name not in known:
            kind = value.type.tensor_type
            shape = [dim.dim_value for dim in kind.shape.dim]
            found[value.name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return found


def _feed_draws(
    graph: onnx.GraphProto, draws: Sequence[TorchDraw], dims: Mapping[str, int]
) -> tuple[str, dict[int, str]]:
    """Replace the random nodes of a graph, in place: what does not match, and the inputs that take
    each of the draws."""
    nodes, shapes = list(graph.node), _shapes(graph, dims)
    strange = cannot_be_fed(graph)
    if strange:
        return f"{strange} of the graph cannot be given its draws", {}
    random = [(k, nodes[k], shapes.get(nodes[k].output[0])) for k in random_nodes(graph)]
    places = _matched(random, draws)
    if isinstance(places, str):
        return places, {}
    feed_draws(graph, {index: f"{_PREFIX}{draw}" for index, draw in places.items()})
    return "", {draw: f"{_PREFIX}{draw}" for draw in places.values()}


def _shapes(graph: onnx.GraphProto, dims: Mapping[str, int]) -> dict[str, tuple[int, ...] | None]:
    """Shapes at the sizes of the example; None where one is not a number then."""
    found: dict[str, tuple[int, ...] | None] = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if not value.type.tensor_type.HasField("shape"):
            continue
        sizes = [
            dim.dim_value if dim.HasField("dim_value") else dims.get(dim.dim_param, -1)
            for dim in value.type.tensor_type.shape.dim
        ]
        found[value.name] = None if -1 in sizes else tuple(sizes)
    return found


def _matched(
    nodes: Sequence[tuple[int, onnx.NodeProto, tuple[int, ...] | None]], draws: Sequence[TorchDraw]
) -> dict[int, int] | str:
    """The draw of every node, by their indices; or what does not match."""
    by_shape = all(shape is not None for *_, shape in nodes)
    wanted: dict[object, list[int]] = defaultdict(list)
    for number, draw in enumerate(draws):
        wanted[(draw.family, draw.shape if by_shape else ())].append(number)
    there: dict[object, list[int]] = defaultdict(list)
    for index, node, shape in nodes:
        there[(family(node), shape if by_shape else ())].append(index)
    if {key: len(v) for key, v in wanted.items()} != {key: len(v) for key, v in there.items()}:
        asked = ", ".join(sorted({draw.operator for draw in draws}))
        return (
            f"PyTorch draws random numbers {counted(len(draws), 'time')} in a step"
            f"{f' ({asked})' if asked else ''}, the graph {counted(len(nodes), 'time')}"
        )
    return {
        index: number
        for key, indices in there.items()
        for index, number in zip(indices, wanted[key], strict=True)
    }
