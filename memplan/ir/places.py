"""Where the tensors of a graph stand in the file that it was made of.

Fusions and passes drop what a file says of its nodes, or a node that reads the next layer's weight
now stands elsewhere; names of tensors stay. So a tensor stands where the file has it, and where the
tensors were that went into it: one of a fused product and addition is a product as well. A tensor
that the file does not have belongs to what is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from memplan.ir.graph import Graph
from memplan.ir.matching import Place

Places = frozenset[Place]
_NOWHERE: Places = frozenset()
_CHUNK = "/chunk"  # what chunks of a tensor add to its name


class Origins:
    """The places of a file's nodes.

    ``forward`` are those of the forward part, in its order.
    """

    def __init__(self, graph: Graph, modules: tuple[str, ...], forward: Set[int]) -> None:
        self.graph = graph
        self.of_node = [Place(m, n.op) for m, n in zip(modules, graph.nodes, strict=True)]
        self.forward = tuple(dict.fromkeys(self.of_node[node] for node in sorted(forward)))
        self._forward = forward
        self._producer = {t.name: t.producer for t in graph.tensors if t.producer >= 0}

    def places(
        self, later: Graph, modules: tuple[str, ...], forward: Set[int]
    ) -> dict[int, Places]:
        """The places of what the forward part makes, by tensor id.

        Args:
            later: the file's graph, or what fusions and passes made of it.
            modules: by node of that graph, for what nothing else tells.
            forward: nodes of its forward part.
        """
        absorbed = self._absorbed({t.name for t in later.tensors if t.producer >= 0})
        found: dict[int, Places] = {}
        for node in reversed(later.nodes):
            if node.id not in forward:
                continue
            for t in node.writes:
                tensor = later.tensors[t]
                before = absorbed.get(self._made_by(tensor.name), _NOWHERE)
                if not before:
                    readers = (later.nodes[reader] for reader in tensor.readers)
                    made = (found.get(out, _NOWHERE) for each in readers for out in each.writes)
                    before = _NOWHERE.union(*made)
                own = {Place(each.module, node.op) for each in before}
                found[t] = before | (own or {Place(modules[node.id], node.op)})
        return found

    def _made_by(self, name: str) -> int | None:
        """The file's node that makes a tensor, or the tensor that it is a chunk of."""
        found = self._producer.get(name)
        return self._producer.get(name.partition(_CHUNK)[0]) if found is None else found

    def _absorbed(self, there: Set[str]) -> Mapping[int | None, Places]:
        """The place of every node of the file; in the forward part also those of the nodes before
        it whose results are no longer ``there``."""
        tensors, absorbed = self.graph.tensors, dict[int | None, Places]()
        for node in self.graph.nodes:
            gone = (tensors[t] for t in node.reads if tensors[t].name not in there)
            before = (absorbed.get(tensor.producer, _NOWHERE) for tensor in gone)
            own = frozenset({self.of_node[node.id]})
            absorbed[node.id] = own.union(*before) if node.id in self._forward else own
        return absorbed
