"""A model as ONNX Runtime holds it once a session has loaded it.

Only the runtime knows what it makes of a file: a plain session fuses nodes and changes layouts, and
any session puts Casts around nodes in float16 that have no kernel, or removes pairs of Casts. So it
is asked: the model is loaded, not run, and what the session holds is simulated.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from memplan.errors import MemplanError, ModelRefusedError
from memplan.ir.graph import Graph
from memplan.ops.book import SHAPE_READERS
from memplan.ops.kernels import COPY_OPS
from memplan.processes.scratch import scratch_folder
from memplan.proto.edit import copied, replace_nodes
from memplan.proto.external import external_bytes, settle_links
from memplan.proto.metadata import get_metadata, set_metadata
from memplan.proto.nodes import operator_key, subgraphs
from memplan.proto.read import read_model
from memplan.proto.restore_order import sorted_nodes
from memplan.providers import on_host
from memplan.shapes.hidden import HIDDEN_KEY
from memplan.shapes.nchwc import in_blocks, state_block
from memplan.shapes.prepare import load, prepare
from memplan.simulate.opened import OpenModel, on_devices, opened, with_state
from memplan.simulate.run_order import default_order
from memplan.simulate.session import SessionKind
from memplan.simulate.state_memory import names_of, unbound
from memplan.simulate.timeline import Timeline, removable_casts, resident_bytes, simulate
from memplan.units import counted, format_bytes

NOT_ASKED = "not checked against what ONNX Runtime makes of the file when it loads it"
"""What to say of a rewritten file where the runtime could not be asked."""

MOST_WEIGHTS = 4 * 10**9
"""Bytes of external weights up to which a file is loaded for a tuned session: the order of its
nodes is only told by a format that holds all weights."""

_NAMED = 3  # nodes that a sentence names
# Types around which the CPU puts Casts where a kernel is missing (insert_cast_transformer.cc).
_NARROW = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
# What the CPU calls the float32 version of a tensor; a number makes the name its own (ibid., and
# Graph::GenerateNodeArgName).
_WIDENED = re.compile(r"^InsertedPrecisionFreeCast_(?P<counted>(?P<name>.+?)(_token_\d+)?)$")


@dataclass(frozen=True, slots=True)
class Loaded:
    """``model`` as a session holds it, nodes in the order in which they run.

    ``gone`` and ``new``: names of nodes that only the file or only the session has; ``rewired``:
    nodes of both that read other tensors in the session, and what made the old ones, or that have
    other bodies there. If there are none, ``model`` is the file's own. ``kind``:
    what to simulate ``model`` in. ``runtime``: the version that was asked. ``resident_bytes``: of
    the file, whose constants the runtime may fold or merge.
    """

    model: OpenModel
    kind: SessionKind
    gone: tuple[str, ...]
    new: tuple[str, ...]
    runtime: str
    resident_bytes: int
    rewired: tuple[str, ...] = ()

    @property
    def unchanged(self) -> bool:
        """Whether the runtime runs the file's own nodes as they stand there."""
        return not self.gone and not self.new and not self.rewired

    def timeline(self) -> Timeline:
        """The first run, by simulation, beside what the file holds."""
        found = simulate(self.model.graph, self.kind, self.model.devices)
        return replace(found, resident_bytes=max(found.resident_bytes, self.resident_bytes))

    def peak_bytes(self) -> int:
        """Of the first run, by simulation; workspace included."""
        return self.timeline().peak_with_workspace_bytes

    def change(self, peak: int) -> str:
        """What the runtime does to a plan, in a sentence; ``peak`` is what it then needs."""
        names = ", ".join((*self.gone, *self.new, *self.rewired)[:_NAMED])
        return (
            "ONNX Runtime changes the planned nodes when it loads them "
            f"({counted(len(self.gone), 'node')} removed, {len(self.new)} new, "
            f"{len(self.rewired)} rewired: {names}) and then needs {format_bytes(peak)}"
        )


def changes_at_load(graph: Graph, session: SessionKind) -> bool:
    """Whether a session of the kind may hold other nodes than the file.

    A plain one fuses. A tuned one, which optimizes nothing, still removes pairs of Casts and, on
    the CPU, puts some around nodes in float16 and bfloat16.
    """
    if session.name == "default":
        return True
    return narrow_types(graph, session) or bool(removable_casts(graph))


def narrow_types(graph: Graph, session: SessionKind) -> bool:
    """Whether nodes may work on types that kernels of the CPU lack."""
    if session.provider != "cpu":
        return False
    inner = [body.graph for bodies in graph.bodies.values() for body in bodies if body.graph]
    return any(tensor.dtype in _NARROW for tensor in graph.tensors) or any(
        narrow_types(body, session) for body in inner
    )


def as_loaded(
    model: OpenModel, session: SessionKind, loss: str | None = None, *, portable: bool = False
) -> Loaded:
    """Load the model's file in a session and look at what that holds.

    Args:
        model: a file that was opened.
        session: its kind; its provider loads the file.
        loss: name of the loss output, where the search would pick another.
        portable: without layouts that depend on the processor.

    Raises:
        ModelRefusedError: the runtime refuses the file.
        RuntimeUnavailableError: it is missing.
        MemplanError: the weights are too large, or a tensor's shape stays unknown.
    """
    prepared = model.prepared
    weights = external_bytes(prepared.proto)
    if session.name == "tuned" and weights > MOST_WEIGHTS:
        raise MemplanError(
            f"it would be saved with its {format_bytes(weights)} of external weights"
        )
    # onnxruntime is loaded in a child process only.
    from memplan.runtime.optimize import channels_per_block, save_as_loaded

    with scratch_folder() as folder:
        target = folder / "loaded.onnx"
        answer = save_as_loaded(
            prepared.path,
            target,
            session.name,
            session.provider,
            weights=prepared.weights,
            portable=portable,
        )
        saved = read_model(target, prepared.beside)
        if in_blocks(saved.graph):
            state_block(saved.graph, channels_per_block(folder))
    copies = _hide_copies(saved)
    _keep_notes(saved.graph, prepared.proto.graph)
    if session.name == "default":
        _note_types(saved, model)
    else:
        _state_types(saved, model)
        _sort(saved.graph, {name: place for place, name in enumerate(answer.order)})
    partly = bool(prepared.uncounted)
    held = opened(
        prepare(saved, prepared.path, prepared.dims, prepared.weights, partly=partly), loss
    )
    held = replace(held, graph=unbound(held.graph))
    if session.name == "tuned":
        held = with_state(held, names_of(model.graph)) if model.graph.state else held
    if not on_host(session.provider):
        shown = replace(held, graph=_show_copies(held.graph, copies))
        held = on_devices(shown, session, loss)
    before = {node.name for node in model.graph.nodes}
    after = {node.name for node in held.graph.nodes}
    resident = resident_bytes(model.graph)
    rewired: tuple[str, ...] = ()
    if before == after:
        own = on_devices(model, session, loss)
        rewired = _other_bodies(own.graph, held.graph)
        if session.name == "default":
            own = replace(own, graph=unbound(own.graph))
            rewired = (*_rewired(own.graph, held.graph), *rewired)
        if not rewired:
            return Loaded(own, session, (), (), answer.version, resident)
    gone, new = tuple(sorted(before - after)), tuple(sorted(after - before))
    if session.name == "default" and not new:
        held = _in_order(saved, held, model, loss)
    # Nodes are listed where they run: the indices of those that a plain session makes are not
    # known.
    kind = replace(session, as_listed=True)
    return Loaded(held, kind, gone, new, answer.version, resident, rewired)


def _rewired(own: Graph, held: Graph) -> tuple[str, ...]:
    """Nodes that a plain session kept by name and that it lets read other tensors (constants
    apart, of which it merges equal ones), with what made the old ones."""
    before, after = _wires(own), _wires(held)
    makers = {own.tensors[t].name: node.name for node in own.nodes for t in node.writes}
    found: dict[str, None] = {}
    for name, reads in before.items():
        if reads != after[name]:
            lost = (makers[tensor] for tensor in reads if tensor not in after[name])
            found |= dict.fromkeys((name, *lost))
    return tuple(found)


def _other_bodies(own: Graph, held: Graph) -> tuple[str, ...]:
    """Control-flow nodes that a session kept by name, and whose bodies have other nodes there, or
    let them read other tensors."""
    before, after = _body_wires(own), _body_wires(held)
    return tuple(name for name, inside in before.items() if inside != after.get(name))


def _body_wires(graph: Graph) -> dict[str, list[object]]:
    """For each control-flow node, the wires of its bodies, nested as they are."""
    return {
        graph.nodes[index].name: [
            (body.attribute, _wires(body.graph), _body_wires(body.graph))
            for body in sorted(bodies, key=lambda body: body.attribute)
            if body.graph is not None
        ]
        for index, bodies in graph.bodies.items()
    }


def _in_order(
    saved: onnx.ModelProto, held: OpenModel, model: OpenModel, loss: str | None
) -> OpenModel:
    """What a plain session holds where it made no new nodes, in the order in which they run: those
    of the file keep their indices there, and the list that was saved is not to be relied on."""
    place = {node.name: node.id for node in model.graph.nodes}
    order = default_order(held.graph, [place[node.name] for node in held.graph.nodes])
    if order == list(range(len(order))):
        return held
    listed = {node.name: rank for rank, node in enumerate(held.graph.nodes[i] for i in order)}
    replace_nodes(saved.graph, sorted(saved.graph.node, key=lambda node: listed.get(node.name, -1)))
    before = held.prepared
    again = prepare(saved, before.path, before.dims, before.weights, partly=bool(before.uncounted))
    found = opened(again, loss)
    return replace(found, graph=unbound(found.graph))


def _wires(graph: Graph) -> dict[str, tuple[str, ...]]:
    """What every node reads of what other nodes make."""
    tensors = graph.tensors
    return {
        node.name: tuple(tensors[t].name for t in node.reads if tensors[t].producer >= 0)
        for node in graph.nodes
    }


def written_as_loaded(model: onnx.ModelProto, session: SessionKind, weights: Path) -> Loaded | None:
    """The same for a rewritten model that is not a file yet; None if the runtime cannot be asked.

    It records what its symbolic dimensions are bound to. Its external data lies beside the model
    ``weights``.

    Raises:
        ModelRefusedError: the runtime does not load it.
    """
    dims = get_metadata(model).get("dims")
    with scratch_folder() as folder:
        path = folder / "rewritten.onnx"
        try:
            model = copied(model)
            weights = settle_links(model, weights)
            path.write_bytes(model.SerializeToString())
            prepared = load(path, dims if isinstance(dims, dict) else {}, weights)
            return as_loaded(opened(prepared), session)
        except ModelRefusedError:
            raise
        except (MemplanError, ValueError):
            return None


def _known_types(
    saved: onnx.ModelProto, model: OpenModel
) -> Iterable[tuple[str, int, tuple[int, ...]]]:
    """Name, element type and dimensions that memplan found in the file, for computed tensors that
    the session kept.

    A node that now works in float32 gives what it gave in a tensor of another name, from which a
    Cast makes the old one. Of fused nodes nothing else would tell the shape.
    """
    types = model.prepared.types
    for name in (name for node in saved.graph.node for name in node.output):
        before = _before(name, types)
        value = types.get(before)
        if value is not None and value.dtype and value.sizes is not None:
            yield name, value.dtype if before == name else onnx.TensorProto.FLOAT, value.sizes


def _before(name: str, known: Container[str]) -> str:
    """What a tensor of the session is called in the file, if that is ``known``; else its name."""
    match = None if name in known else _WIDENED.match(name)
    if match is None:
        return name
    return match["counted"] if match["counted"] in known else match["name"]


def _keep_notes(saved: onnx.GraphProto, original: onnx.GraphProto) -> None:
    """Put the metadata of the file's nodes, which the runtime drops, on those that make the same
    tensors: what phase they are of, which module, a checkpoint."""
    makers = {name: node for node in original.node for name in node.output if name}
    for node in saved.node:
        names = (_before(name, makers) for name in node.output)
        maker = next((makers[name] for name in names if name in makers), None)
        if maker is not None and not node.metadata_props:
            node.metadata_props.extend(maker.metadata_props)


def _note_types(saved: onnx.ModelProto, model: OpenModel) -> None:
    """Put the types where a plain session does not see them."""
    known = {name: [dtype, list(sizes)] for name, dtype, sizes in _known_types(saved, model)}
    own = get_metadata(model.prepared.proto)
    set_metadata(saved, {**own, HIDDEN_KEY: known, "session": "default"})


def _state_types(saved: onnx.ModelProto, model: OpenModel) -> None:
    """State the types; interface and weights are those of the file, which may be written again."""
    original = model.prepared.proto
    set_metadata(saved, get_metadata(original))
    for field in ("input", "output"):
        del getattr(saved.graph, field)[:]
        getattr(saved.graph, field).extend(getattr(original.graph, field))
    own = {tensor.name: tensor for tensor in original.graph.initializer}
    for tensor in saved.graph.initializer:
        if tensor.name in own:
            tensor.CopyFrom(own[tensor.name])
    if model.prepared.dims:
        return  # the file's own statements name the symbols
    stated = {value.name for value in (*saved.graph.value_info, *saved.graph.output)}
    for name, dtype, sizes in _known_types(saved, model):
        if name not in stated:
            saved.graph.value_info.append(
                onnx.helper.make_tensor_value_info(name, dtype, list(sizes))
            )


def _sort(graph: onnx.GraphProto, place: Mapping[str, int]) -> None:
    """Put nodes where a session in priority order runs them, in bodies too.

    ``place``: the runtime's index of a node, by its first output. A Cast that the runtime inserted
    has a higher one than what reads it.
    """
    for node in graph.node:
        for body in subgraphs(node):
            _sort(body, place)

    def key(node: onnx.NodeProto) -> tuple[bool, int]:
        first = next((name for name in node.output if name), "")
        return operator_key(node) not in SHAPE_READERS, place.get(first, len(place))

    nodes = list(graph.node)
    order = sorted_nodes(nodes, [key(node) for node in nodes])
    replace_nodes(graph, [nodes[k] for k in order])


def _hide_copies(model: onnx.ModelProto) -> dict[str, str]:
    """Turn copies between host and device into Identity nodes: node name -> what it was.

    No shape inference knows them; a copy is typed like an Identity.
    """
    found = {}
    for node in model.graph.node:
        if node.op_type in COPY_OPS and not node.domain:
            found[node.name] = node.op_type
            node.op_type = "Identity"
    return found


def _show_copies(graph: Graph, copies: Mapping[str, str]) -> Graph:
    """The graph of such a model with its copies again."""
    if not copies:
        return graph
    nodes = (replace(node, op=copies.get(node.name, node.op)) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))
