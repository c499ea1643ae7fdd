"""A graph that is being changed: a protobuf goes in and a protobuf comes out, and nothing between
is edited by hand.

Passes, chunks, loops, plans and trainers do the same few things to a file: take a node out, put
others before or behind it, let readers read something else, add a constant. Here each is one call
(``onnx_ir.convenience`` is the same idea). The model that goes in stays as it is, so a change may
be tried, and another one after it.

Nodes are known by their number: their place in the file, ``Constant`` nodes not counted, which is
the id that they have in :class:`memplan.ir.graph.Graph`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from memplan.proto.edit import Nodes, copied, drop_named, remove_unread, rename_reads
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import is_constant, names_read, reads_of
from memplan.proto.opset import allow_initializers

Array = npt.NDArray[np.generic]


def node_protos(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes by number: ``Constant`` nodes have none."""
    return [node for node in model.graph.node if not is_constant(node)]


class GraphEdit:
    """A copy of a model that is being changed.

    ``graph`` is that of the copy: inputs, outputs, initializers and value infos are edited there.
    Its nodes are put into it at the end. ``origin``: name of a new node → number of the one that it
    was put beside.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._result = copied(model)
        self.graph = self._result.graph
        del self.graph.node[:]
        self.origin: dict[str, int] = {}
        self._present: list[onnx.NodeProto | None] = list(model.graph.node)
        self._places = [k for k, node in enumerate(model.graph.node) if not is_constant(node)]
        self._own: set[int] = set()
        self._before: defaultdict[int, list[onnx.NodeProto]] = defaultdict(list)
        self._behind: defaultdict[int, list[onnx.NodeProto]] = defaultdict(list)
        self._read_instead: dict[str, str] = {}
        self._renamed: dict[str, str] = {}

    # -- names and constants ---------------------------------------------------------------------

    @cached_property
    def names(self) -> NameAuthority:
        """Gives out names that no tensor and no node has, in bodies neither."""
        nodes = (node.name for node in self.model.graph.node)
        return NameAuthority((*defined_names(self.model.graph), *nodes))

    def fresh(self, stem: str) -> str:
        """A name for a new tensor or node."""
        return self.names.fresh(stem)

    def constant(self, value: Array, stem: str) -> str:
        """The name of a new initializer."""
        name = self.fresh(stem)
        self.initialize(name, value)
        return name

    def initialize(self, name: str, value: Array) -> None:
        """Add an initializer under a name that is free."""
        allow_initializers(self._result)
        self.graph.initializer.append(numpy_helper.from_array(value, name))

    # -- nodes -----------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many nodes the file has: numbers are below."""
        return len(self._places)

    def original(self, number: int) -> onnx.NodeProto:
        """A node as the file has it, not to be changed."""
        found: onnx.NodeProto = self.model.graph.node[self._places[number]]
        return found

    def node(self, number: int) -> onnx.NodeProto:
        """A node, to be changed."""
        place = self._places[number]
        found = self._present[place]
        assert found is not None, "the node was removed"
        if place not in self._own:
            self._own.add(place)
            found = self._present[place] = copied(found)
        return found

    def remove(self, number: int) -> None:
        """Take a node out; what was put before and behind it stays."""
        self._present[self._places[number]] = None

    def put_before(self, number: int, *nodes: onnx.NodeProto) -> None:
        """Put nodes right before one, behind those that were put there earlier."""
        self._put(self._before, number, nodes)

    def put_behind(self, number: int, *nodes: onnx.NodeProto) -> None:
        """Put nodes right behind one and those that were put there earlier."""
        self._put(self._behind, number, nodes)

    def put_instead(self, number: int, *nodes: onnx.NodeProto) -> None:
        """Put nodes in the place of one, which may be among them."""
        self.remove(number)
        self._put(self._before, number, nodes)

    def move_before(self, number: int, nodes: Sequence[onnx.NodeProto]) -> None:
        """Put nodes that :meth:`nodes` gives right before one instead of where they are."""
        moved = {id(node) for node in nodes}
        self._present = [None if id(node) in moved else node for node in self._present]
        for where in (self._before, self._behind):
            for place, put in where.items():
                where[place] = [node for node in put if id(node) not in moved]
        self._before[self._places[number]] += nodes

    def _put(
        self,
        where: defaultdict[int, list[onnx.NodeProto]],
        number: int,
        nodes: Iterable[onnx.NodeProto],
    ) -> None:
        place = self._places[number]
        for node in nodes:
            where[place].append(node)
            self.origin[node.name] = number

    def write(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Let these nodes stand instead of all, behind the ``Constant`` nodes: the runtime makes
        those initializers when it loads the file. Numbers mean nothing from then on."""
        constants = [node for node in self.model.graph.node if is_constant(node)]
        self._present = [*constants, *nodes]
        self._places, self._own = [], set()
        self._before, self._behind = defaultdict(list), defaultdict(list)

    def nodes(self) -> list[onnx.NodeProto]:
        """All nodes as they stand now, not to be changed. Readers still read what they did."""
        if not self._before and not self._behind:
            return [node for node in self._present if node is not None]
        found: list[onnx.NodeProto] = []
        for place, node in enumerate(self._present):
            found += self._before.get(place, ())
            found += () if node is None else (node,)
            found += self._behind.get(place, ())
        return found

    # -- readers ---------------------------------------------------------------------------------

    def replace_uses(self, old: str, new: str) -> None:
        """Let all that read ``old`` read ``new``, in bodies too; once ``new`` is replaced itself,
        what stands for that."""
        self._read_instead[old] = new

    def rename(self, old: str, new: str) -> None:
        """Call what a node makes ``new`` there and wherever it is read."""
        self._renamed[old] = new

    def _now(self, name: str) -> str:
        while name in self._read_instead:
            name = self._read_instead[name]
        return self._renamed.get(name, name)

    def _with_new_reads(self, nodes: list[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
        reads = {name: self._now(name) for name in (*self._read_instead, *self._renamed)}
        for node in nodes:
            if reads.keys().isdisjoint(reads_of(node)) and reads.keys().isdisjoint(node.output):
                yield node
            else:
                yield self._with_names(node, reads)

    def _with_names(self, node: onnx.NodeProto, reads: Mapping[str, str]) -> onnx.NodeProto:
        node = copied(node)
        rename_reads(node, reads)
        for slot, name in enumerate(node.output):
            node.output[slot] = self._renamed.get(name, name)
        return node

    # -- the interface ---------------------------------------------------------------------------

    def drop_outputs(self, names: Collection[str]) -> None:
        """Let the graph give out some of its outputs no more."""
        drop_named(self.graph.output, names)

    def drop_inputs(self, names: Collection[str]) -> None:
        """Let the graph take some of its inputs no more."""
        drop_named(self.graph.input, names)

    def no_longer_read(self) -> set[str]:
        """Names that nodes read before the edit, and that neither nodes nor outputs do now."""
        left = names_read(self.nodes()) | {value.name for value in self.graph.output}
        return names_read(self.model.graph.node) - left

    # -- the end ---------------------------------------------------------------------------------

    def finished(self, removable: Nodes | None = None) -> onnx.ModelProto:
        """The model after the edit, which ends here.

        Args:
            removable: nodes that go where the edit has left them without a reader, and with them
                initializers and value infos; None: nothing else goes.
        """
        nodes = self.nodes()
        renamed = self._read_instead or self._renamed
        self.graph.node.extend(self._with_new_reads(nodes) if renamed else nodes)
        if removable is not None:
            remove_unread(
                self.graph,
                stays=lambda node: not removable(node),
                read_before=names_read(self.model.graph.node),
            )
        return self._result
