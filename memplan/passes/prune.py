"""``prune``: what reaches no wanted output, and the stashes that only it held.

A gradient that nobody wants need not be computed, and then what only it reads need not be kept:
PyTorch's rule that a tensor is saved only if the derivative that needs it will be computed,
applied to a ready graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from memplan.errors import UsageError
from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ir.reach import needed_nodes, trained_outputs
from memplan.ops.book import operator
from memplan.ops.memory import has_effects
from memplan.passes.graph_pass import Applied
from memplan.passes.surgery import ModelEdit
from memplan.proto.edit import leave_out
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Prune:
    """``wrt``: globs on names of parameters or of outputs; of what is there for parameters
    (gradients, new values, optimizer state) only what one of them matches stays. Empty: all of it.
    """

    name: ClassVar[str] = "prune"
    wrt: tuple[str, ...] = ()

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """Without what serves no wanted output.

        Raises:
            UsageError: a glob matches nothing, or the graph has no gradients that could go.
        """
        graph = model.graph
        unwanted, frozen = self._unwanted(model)
        wanted = [t for t in graph.outputs if t not in unwanted]
        needed = needed_nodes(graph, wanted, _lasting(graph))
        idle = _idle_outputs(graph, needed)
        if len(needed) == len(graph.nodes) and not unwanted and not idle:
            return Applied(model)
        edit = ModelEdit(model)
        dropped = [node.id for node in graph.nodes if node.id not in needed]
        for node in dropped:
            edit.remove(node)
        unread = {graph.tensors[t].name for t in idle}
        for node in {graph.tensors[t].producer for t in idle}:
            leave_out(edit.node(node), unread, operator(graph.nodes[node].key).listed_outputs)
        if unwanted:
            edit.drop_outputs({graph.tensors[t].name for t in unwanted})
            edit.drop_inputs(edit.no_longer_read())
        # All other nodes are needed, or were dead and may have effects.
        after = edit.opened(frozen={graph.tensors[t].name for t in frozen})
        return Applied(after, _note(len(dropped), len(idle)))

    def _unwanted(self, model: OpenModel) -> tuple[set[int], set[int]]:
        """Outputs that are to go, and the parameters that are then trained no more."""
        if not self.wrt:
            return set(), set()
        graph, owners = model.graph, trained_outputs(model.graph, model.phases)
        if not owners:
            raise UsageError(
                "--wrt: the graph has no outputs that are gradients or new values of its inputs",
                "they are known by names such as <parameter>.grad; --loss NAME may help",
            )
        chosen: set[int] = set()
        for glob in self.wrt:
            hits = {t for t, parameters in owners.items() if _matches(graph, glob, t, parameters)}
            if not hits:
                raise UsageError(
                    f"--wrt {glob}: no trained parameter and no output of it has such a name",
                    "parameters: "
                    + _some({graph.tensors[p].name for o in owners.values() for p in o}),
                )
            chosen |= hits
        kept = {p for t in chosen for p in owners[t] if len(owners[t]) == 1}
        frozen = {p for parameters in owners.values() for p in parameters} - kept
        return owners.keys() - chosen, frozen


def _matches(graph: Graph, glob: str, output: int, parameters: frozenset[int]) -> bool:
    return any(fnmatchcase(graph.tensors[t].name, glob) for t in (output, *parameters))


def _some(names: set[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "")


def _idle_outputs(graph: Graph, needed: set[int]) -> set[int]:
    """Optional outputs that nobody reads: left out, the kernel does not make them."""
    return {
        t
        for node in graph.nodes
        if node.id in needed
        for t in _optional(node)
        if not graph.tensors[t].is_output
        and not any(reader in needed for reader in graph.tensors[t].readers)
    }


def _lasting(graph: Graph) -> set[int]:
    """Nodes that serve no output and yet must run, as they may do more than make theirs."""
    served = needed_nodes(graph, graph.outputs)
    return {node.id for node in graph.nodes if node.id not in served and has_effects(node.key)}


def _optional(node: Node) -> list[int]:
    slots = operator(node.key).optional_outputs
    return [node.outputs[k] for k in slots if k < len(node.outputs) and node.outputs[k] != ABSENT]


def _note(nodes: int, results: int) -> str:
    """What went, in a few words."""
    parts = [counted(nodes, "node")] if nodes else []
    parts += [f"{counted(results, 'unused result')}"] if results else []
    return ", ".join(parts)
