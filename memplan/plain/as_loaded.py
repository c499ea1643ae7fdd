"""A model as ONNX Runtime holds it once a plain session has loaded it.

Only the runtime knows what its optimizer will do, so it is asked: the model is loaded, not run,
and what the session holds is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx

from memplan.ir.graph import Graph
from memplan.ops.kernels import COPY_OPS
from memplan.processes import scratch_folder
from memplan.proto.metadata import get_metadata, set_metadata
from memplan.proto.read import read_model
from memplan.shapes.hidden import HIDDEN_KEY
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import OpenModel, on_devices, opened
from memplan.simulate.session import SessionKind


@dataclass(frozen=True, slots=True)
class Loaded:
    """``model`` as a plain session holds it, nodes in the order in which they run.

    ``gone`` and ``new``: names of nodes that only the file or only the session has. If there are
    none, ``model`` is the file's own. ``kind``: what to simulate ``model`` in.
    """

    model: OpenModel
    kind: SessionKind
    gone: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def unchanged(self) -> bool:
        """Whether the runtime runs the file's own nodes."""
        return not self.gone and not self.new


def as_loaded(model: OpenModel, session: SessionKind, loss: str | None = None) -> Loaded:
    """Load the model's file in a plain session and look at what that holds.

    Args:
        model: a file that was opened.
        session: a default session; its provider loads the file.
        loss: name of the loss output, where the search would pick another.

    Raises:
        RuntimeUnavailableError: the runtime is missing or refuses the file.
        MemplanError: a tensor's shape stays unknown.
    """
    prepared = model.prepared
    # onnxruntime is loaded in a child process only.
    from memplan.runtime.optimize import save_as_loaded

    with scratch_folder() as folder:
        target = folder / "loaded.onnx"
        save_as_loaded(prepared.path, target, session.name, session.provider, prepared.weights)
        saved = read_model(target, prepared.beside)
    copies = _hide_copies(saved)
    _note_types(saved, model)
    held = opened(prepare(saved, prepared.path, prepared.dims, prepared.weights), loss)
    if session.provider == "cuda":
        shown = replace(held, graph=_show_copies(held.graph, copies))
        held = on_devices(shown, session, loss)
    before = {node.name for node in model.graph.nodes}
    after = {node.name for node in held.graph.nodes}
    if before == after:
        own = on_devices(model, session, loss) if session.provider == "cuda" else model
        return Loaded(own, session, (), ())
    # Nodes are listed where they run; the indices of those that the runtime made are not known.
    kind = replace(session, priority_order=True)
    return Loaded(held, kind, tuple(sorted(before - after)), tuple(sorted(after - before)))


def _note_types(saved: onnx.ModelProto, model: OpenModel) -> None:
    """Types that memplan found in the file, for tensors that the session kept."""
    made = {name for node in saved.graph.node for name in node.output}
    known = {
        name: [value.dtype, list(value.shape)]
        for name, value in model.prepared.types.items()
        if name in made and value.dtype and value.shape is not None
    }
    set_metadata(saved, {**get_metadata(saved), HIDDEN_KEY: known, "session": "default"})


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
