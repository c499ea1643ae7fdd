"""The two graphs of a check, ready to run: weights as inputs, draws fed, in float64 if possible."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from memplan.api.grad.double_graph import in_double
from memplan.errors import MemplanError
from memplan.proto.edit import copied, drop_named, remove_unread, replace_nodes
from memplan.proto.external import external_tensors
from memplan.proto.fed_draws import NORMAL, cannot_be_fed, family, feed_draws, random_nodes
from memplan.proto.nodes import reads_of
from memplan.proto.weights import external_content
from memplan.runtime.archive import BFLOAT16
from memplan.runtime.inputs import synthesize
from memplan.runtime.messages import RunRequest
from memplan.runtime.room import available_bytes
from memplan.shapes.dims import bind_dims, evaluate_dim, symbolic_dims
from memplan.shapes.infer import INVENTED
from memplan.shapes.prepare import PreparedModel, prepare
from memplan.shapes.tensor_type import FLOATS, UNKNOWN, Types, read_type, value_info
from memplan.simulate.opened import opened
from memplan.units import format_bytes

Array = npt.NDArray[Any]
Seed = str | Array | None
_FED = 16
"""Floats of more elements are inputs of the sessions, and no part of the models."""
_SIZES, _MOST_SIZES = (4, 16, 64), 16
"""What all symbolic dimensions are tried with, and how many sizes of weights."""
_NUMPY = {"tensor(double)": np.float64, "tensor(float)": np.float32, "tensor(float16)": np.float16}


class NotComparableError(Exception):
    """Why gradients cannot be held against their graph."""


class NoKernelError(Exception):
    """The runtime does not run the forward graph, or has no kernel for the other one."""


class BrokenGraphError(Exception):
    """The graph with gradients does not run where the forward graph does."""


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A graph, and one with its gradients.

    Attributes:
        forward: the graph, flat.
        training: a graph with the same nodes, and gradients.
        ys: what was differentiated → the gradient that it begins with: 1, an array, or the name of
            a tensor of either graph.
        gradients: what by → the tensor of ``training`` that is the gradient.
        path: the model beside which weights in other files lie.
        dims: sizes of symbolic dimensions, as far as they are given.
    """

    forward: onnx.ModelProto
    training: onnx.ModelProto
    ys: Mapping[str, Seed]
    gradients: Mapping[str, str]
    path: Path
    dims: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bound:
    """The forward graph at certain sizes: what it is fed, beside weights."""

    prepared: PreparedModel
    chosen: tuple[tuple[str, int], ...]

    @property
    def forward(self) -> onnx.ModelProto:
        """A copy of the graph at these sizes."""
        return copied(self.prepared.bound)

    def sized(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """A graph of the same inputs at these sizes, and of gradients that are fed: what names only
        those have is left to the run."""
        known, names = self.prepared.dims, symbolic_dims(model)
        left = {name for name in names if evaluate_dim(name, known) is None}
        if left:
            model = copied(model)
            for value in model.graph.input:
                for dim in value.type.tensor_type.shape.dim:
                    if dim.dim_param in left:
                        dim.ClearField("dim_param")
        return bind_dims(model, {n: size for n, size in known.items() if n in names})

    def inputs(self, draw: int, also: Collection[str]) -> dict[str, Array]:
        """Made-up inputs, of one kind or another; bfloat16 as float32."""
        made = synthesize(opened(self.prepared).graph, 0, draw, also)
        return {
            name: value.astype(np.float32) if value.dtype == BFLOAT16 else value
            for name, value in made.items()
        }


def bounds(forward: onnx.ModelProto, problem: Differentiated) -> Iterator[Bound]:
    """``forward`` at one choice of sizes after the other, where those fit.

    Raises:
        NotComparableError: none fits.
    """
    symbols = symbolic_dims(forward)
    given = {n: s for n, s in problem.dims.items() if n in symbols}
    names = [name for name in symbols if name not in given]
    ahead = _ahead_of(forward, [name for name in names if name.startswith(INVENTED)])
    found, failure = False, ""
    for first in _choices(forward.graph, names):
        try:
            chosen = {**first, **_made_sizes(forward, ahead, problem.path, {**given, **first})}
            prepared = prepare(copied(forward), problem.path, {**given, **chosen}, partly=True)
        except MemplanError as error:
            failure = failure or error.message
            continue
        found = True
        yield Bound(prepared, tuple(chosen.items()))
    if not found:
        for_sizes = f"no sizes were found for {', '.join(names)} (--dim): " if names else ""
        raise NotComparableError(for_sizes + failure)


def _ahead_of(forward: onnx.ModelProto, invented: Collection[str]) -> onnx.ModelProto | None:
    """What is computed without inputs that have a dimension of an ``invented`` name, which is not
    stated: labels of a batch that the graph has flattened. None where it makes no such tensor."""
    if not invented:
        return None
    own = copied(forward)
    late = {v.name for v in own.graph.input if _names(v).intersection(invented)}
    for node in own.graph.node:
        if late.intersection(reads_of(node)):
            late.update(node.output)
    made = {name for node in own.graph.node for name in node.output} - late
    stated = [v for v in forward.graph.value_info if v.name in made]
    wanted = [v.name for v in stated if _names(v).intersection(invented)]
    if not wanted:
        return None
    own = part_of(own, wanted)
    drop_named(own.graph.value_info, {*wanted})
    return own


def _names(value: onnx.ValueInfoProto) -> set[str]:
    return {dim.dim_param for dim in value.type.tensor_type.shape.dim if dim.dim_param}


def _made_sizes(
    forward: onnx.ModelProto, ahead: onnx.ModelProto | None, path: Path, sizes: Mapping[str, int]
) -> dict[str, int]:
    """The sizes that invented names have where the others are ``sizes``, as far as they follow.

    Raises:
        ModelError: these do not fit.
    """
    if ahead is None:
        return {}
    known = symbolic_dims(ahead)
    dims = {name: size for name, size in sizes.items() if name in known}
    types = prepare(copied(ahead), path, dims, partly=True).types
    found: dict[str, int] = {}
    for value in forward.graph.value_info:
        shape = types.get(value.name, UNKNOWN).sizes or ()
        for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=False):
            if dim.dim_param.startswith(INVENTED) and dim.dim_param in sizes:
                found[dim.dim_param] = size
    return found


def _choices(graph: onnx.GraphProto, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Sizes of their own from 3 on, then one for all, then for one of them what a weight has."""
    yield {name: 3 + k for k, name in enumerate(names)}
    if names:
        yield from (dict.fromkeys(names, size) for size in _SIZES)
    stated = [read_type(value.type).sizes or () for value in graph.input]
    stated += [tuple(tensor.dims) for tensor in graph.initializer]
    sizes = sorted({size for shape in stated for size in shape if size > 1})[:_MOST_SIZES]
    for name, size in itertools.product(names, sizes):
        yield {**dict.fromkeys(names, _SIZES[0]), name: size}


def require_room(prepared: PreparedModel, models: Sequence[onnx.ModelProto]) -> None:
    """Refuse what may need more memory than is free: all that the forward graph makes, which a step
    may keep, twice, and once for operators that are written out, and five times the inputs and
    weights, in float64.

    Raises:
        NotComparableError: there is less.
    """
    types = prepared.types
    made = {name for node in prepared.proto.graph.node for name in node.output}
    fed = {v.name for model in models for v in (*model.graph.input, *model.graph.initializer)}

    def elements(names: Collection[str]) -> int:
        known = (types[name] for name in names if name in types)
        return sum(t.elements or 0 for t in known if t.is_float)

    needed, free = 8 * (5 * elements(fed) + 3 * elements(made)), available_bytes()
    if free and needed > free:
        raise NotComparableError(
            f"that may take {format_bytes(needed)} of memory, and {format_bytes(free)} is free"
        )


# -- models ----------------------------------------------------------------------------------------


def part_of(model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """What makes some tensors of a model, and nothing else."""
    part = copied(model)
    graph = part.graph
    stated = {value.name: value for value in model.graph.output}
    del graph.output[:]
    for name in dict.fromkeys(outputs):
        graph.output.append(stated.pop(name, onnx.ValueInfoProto(name=name)))
    graph.value_info.extend(stated.values())
    remove_unread(graph)
    read = set(outputs).union(*map(reads_of, graph.node))
    drop_named(graph.input, {v.name for v in graph.input} - read)
    drop_named(graph.initializer, {t.name for t in graph.initializer} - read)
    return part


def offset_name(x: str) -> str:
    """The input that is added to a computed tensor."""
    return f"memplan/offset_{x}"


def with_offsets(
    model: onnx.ModelProto, names: Collection[str], types: Types, values: dict[str, Array]
) -> None:
    """Add an input, which is 0, to some computed tensors, in place, and to the values.

    Raises:
        NotComparableError: the size of one is not known.
    """
    if not names:
        return
    made: list[onnx.NodeProto] = []
    for node in model.graph.node:
        made.append(node)
        for k, name in enumerate(node.output):
            if name not in names:
                continue
            found = types.get(name, UNKNOWN)
            if found.sizes is None:
                raise NotComparableError(f"the size of '{name}' is not known")
            node.output[k] = f"{offset_name(name)}/raw"
            inputs = [node.output[k], offset_name(name)]
            made.append(onnx.helper.make_node("Add", inputs, [name]))
            model.graph.input.append(value_info(inputs[1], found))
            values[inputs[1]] = np.zeros(found.sizes)
    replace_nodes(model.graph, made)


def take_weights(
    model: onnx.ModelProto, path: Path, always: Collection[str], values: dict[str, Array]
) -> None:
    """Make inputs of floats with a value, in place, and add their values, in float64.

    Few elements that are not to be so ``always`` stay in the model: inference may read them. Those
    in other files lie beside ``path``.
    """
    for tensor in external_tensors(model):
        tensor.raw_data = external_content(tensor, path.parent)
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
    graph = model.graph
    given = {value.name for value in graph.input}
    taken = set()
    for tensor in graph.initializer:
        inside = tensor.data_type not in FLOATS or math.prod(tensor.dims) <= _FED
        if inside and tensor.name not in given and tensor.name not in always:
            continue
        taken.add(tensor.name)
        array = numpy_helper.to_array(tensor)
        wide = array.astype(np.float64) if tensor.data_type in FLOATS else array
        values.setdefault(tensor.name, wide)
        if tensor.name not in given:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    drop_named(graph.initializer, taken)


def feed_both(
    forward: onnx.ModelProto, training: onnx.ModelProto, types: Types
) -> dict[str, Array]:
    """Let both graphs take the same draws, in place; the draws by input.

    Raises:
        NotComparableError: they cannot be given them.
    """
    strange = cannot_be_fed(forward.graph) or cannot_be_fed(training.graph)
    if strange:
        raise NotComparableError(f"the draws of {strange} cannot be fed")
    values: dict[str, Array] = {}
    names: dict[str, str] = {}
    given: dict[int, str] = {}
    generator = np.random.default_rng(5)
    for k in random_nodes(forward.graph):
        node = forward.graph.node[k]
        out = node.output[0]
        sizes = types[out].sizes if out in types else None
        if sizes is None:
            raise NotComparableError(f"the size of what '{node.name}' draws is not known")
        name = given[k] = names[out] = f"memplan/draw_{out}"
        draw = generator.standard_normal if family(node) == NORMAL else generator.random
        values[name] = np.asarray(draw(sizes), np.float32)
    feed_draws(forward.graph, given)
    feed_draws(training.graph, _matched(training.graph, names))
    return values


def _matched(graph: onnx.GraphProto, names: dict[str, str]) -> dict[int, str]:
    """The draws of the other graph: by the name of what is made, and in file order where that has
    become a mask of a counter."""
    places = {k: graph.node[k].output[0] for k in random_nodes(graph)}
    later = set(places.values())
    order = [name for out, name in names.items() if out not in later]
    found: dict[int, str] = {}
    for k, out in places.items():
        if out not in names and not order:
            raise NotComparableError(f"{graph.node[k].op_type} '{out}' draws in one graph alone")
        found[k] = names[out] if out in names else order.pop(0)
    return found


# -- runs ------------------------------------------------------------------------------------------


class Runner:
    """A model in a session, without optimizations: what is held is the file. ``seconds``: of the
    last run.

    It is opened when it is used: a graph with gradients may only be called broken once the forward
    graph has run.

    Raises:
        NoKernelError: no session opens.
        BrokenGraphError: nor is that for want of a kernel, with ``gradients``.
    """

    def __init__(self, model: onnx.ModelProto, *, gradients: bool = False) -> None:
        """Take a model, whose weights are inputs; ``gradients``: it is the graph with gradients."""
        self._model, self._gradients = model, gradients
        self.seconds = 0.0

    @cached_property
    def _session(self) -> Any:
        from memplan.runtime.session_options import held_options
        from memplan.runtime.sessions import open_session

        options = held_options(optimized=False)
        try:
            request = RunRequest(session="default", spin=False)
            return open_session(self._model.SerializeToString(), request, options)
        except Exception as error:
            raise self._failed(error, "opening a session") from error

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Its inputs, and their types in the runtime's words.

        Raises:
            NoKernelError, BrokenGraphError: see the class.
        """
        return {item.name: item.type for item in self._session.get_inputs()}

    def run(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name, floats in float64.

        Raises:
            NoKernelError, BrokenGraphError: see the class.
            NotComparableError: there is too little memory.
        """
        feeds, outputs = {}, [item.name for item in self._session.get_outputs()]
        for name, kind in self.inputs.items():
            value = np.asarray(values[name])
            feeds[name] = value.astype(_NUMPY.get(kind, value.dtype), order="C", copy=False)
        begin = time.perf_counter()
        try:
            found = self._session.run(outputs, feeds)
        except Exception as error:
            raise self._failed(error, "a run") from error
        self.seconds = time.perf_counter() - begin
        return {
            name: array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array
            for name, array in zip(outputs, found, strict=True)
        }

    def _failed(self, error: Exception, what: str) -> Exception:
        from memplan.runtime.run_failures import explain, lacks_kernel, out_of_memory

        text = str(error)
        said = explain(text, what, "cpu").message
        if isinstance(error, MemoryError) or out_of_memory(text):
            return NotComparableError(said)
        broken = self._gradients and not lacks_kernel(text)
        return BrokenGraphError(said) if broken else NoKernelError(said)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both graphs in sessions. ``single``: operators that compute in float32, in the forward graph
    and in the other."""

    forward: Runner
    training: Runner
    precision: str
    single: tuple[tuple[str, ...], tuple[str, ...]]


def open_pair(forward: onnx.ModelProto, training: onnx.ModelProto, exact: bool) -> Pair:
    """Sessions in float64, or in the types of the graphs.

    Raises:
        NoKernelError, BrokenGraphError: see :class:`Runner`.
    """
    if not exact:
        runners = Runner(forward), Runner(training, gradients=True)
        return Pair(*runners, "float32", ((), ()))
    try:
        one, other = in_double(forward), in_double(training)
    except (MemplanError, RuntimeError, ValueError, TypeError) as error:
        raise NoKernelError(str(error)) from error
    runners = Runner(one[0]), Runner(other[0], gradients=True)
    return Pair(*runners, "float64", (one[1], other[1]))
