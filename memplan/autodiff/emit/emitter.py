"""Builds nodes: names them, finds their types, interns constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from memplan.autodiff.emit.value import Array, Number, Operand, Value
from memplan.errors import MemplanError
from memplan.ops.book import VIEWS
from memplan.ops.kernels import kernels_of, schema_version
from memplan.proto.edit import copied, rename_reads
from memplan.proto.metadata import FORWARD_KEY, LINE_KEY, MODULE_KEY, PHASE_KEY
from memplan.proto.names import NameAuthority
from memplan.shapes.one_node import infer_types
from memplan.shapes.tensor_type import UNKNOWN, UNNAMED, Shape, TensorType

FLOAT, BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16
_SMALL = 64
_FOLDED: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Neg": np.negative,
}
_FORWARD_KEYS = (MODULE_KEY, LINE_KEY, "pkg.torch.onnx.name_scopes")
"""Metadata of a forward node that its gradient nodes take over: the layer it belongs to."""


class RuleError(MemplanError):
    """A rule has made a node that cannot be: it is wrong, or the node that it was made for."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What new nodes are named after and marked with; ``scalars_once``: equal ones that compute
    scalars are one."""

    stem: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    scalars_once: bool = False


class Emitter:
    """New nodes of one graph: the main graph, or a body."""

    def __init__(
        self,
        opset: int,
        types: MutableMapping[str, TensorType],
        constants: MutableMapping[str, Array],
        names: NameAuthority,
        ir_version: int = 10,
        mark: str = "",
    ) -> None:
        self.opset = opset
        self.ir_version = ir_version
        self.portable = False
        """Whether rules keep to what the providers of GPUs run."""
        self.types = types
        """Of every tensor by name; grows with every new one."""
        self.constants = constants
        """Contents of small constants by name; grows, too."""
        self.names = names
        """Gives out names of tensors and nodes; bodies share those of the graph around."""
        self.nodes: list[onnx.NodeProto] = []
        """The nodes of the backward part, in order."""
        self.behind: dict[str, list[onnx.NodeProto]] = {}
        """Nodes that are to stand right behind the forward node of that name (``""``: in front)."""
        self.initializers: dict[str, onnx.TensorProto] = {}
        """New constants by name."""
        self.inputs: dict[str, TensorType] = {}
        """New graph inputs."""
        self.places: dict[str, str | None] = {}
        """The node behind which a computed tensor is there; None: it is of the backward part."""
        self.makers: dict[str, onnx.NodeProto] = {}
        """The node that makes a tensor, forward or new."""
        self.further_outputs: set[str] = set()
        """Outputs of forward nodes that rules asked for."""
        self._dims = 0
        self._mark = mark  # tells the dimensions that a body names from those around it
        self._scope = Scope("grad")
        self._place: str | None = None
        self._interned: dict[tuple[object, ...], Value] = {}
        self._repeated: dict[tuple[object, ...], Value] = {}

    # -- where new nodes go --------------------------------------------------------------------

    @contextmanager
    def scope(self, scope: Scope) -> Iterator[None]:
        """Nodes made inside are named ``<stem>/<Op>`` and carry the scope's metadata."""
        before, self._scope = self._scope, scope
        try:
            yield
        finally:
            self._scope = before

    @contextmanager
    def placed_behind(self, node: str | None) -> Iterator[None]:
        """Nodes made inside stand right behind the forward node of that name, as forward work."""
        before, self._place = self._place, node
        try:
            yield
        finally:
            self._place = before

    def beside(self, value: Value) -> AbstractContextManager[None]:
        """Nodes made inside stand right behind the node that makes ``value``."""
        if value.name in self.constants:
            return nullcontext()
        return self.placed_behind(self.places.get(value.name, ""))

    @property
    def in_backward(self) -> bool:
        """Whether new nodes are part of the backward (see :meth:`placed_behind`)."""
        return self._place is None

    def fresh(self, stem: str) -> str:
        """A name that is not in use: ``stem``, or ``stem_1``, ``stem_2``, ..."""
        return self.names.fresh(stem)

    # -- values --------------------------------------------------------------------------------

    def once(self, key: object, build: Callable[[], Value]) -> Value:
        """What ``build`` made when it was first asked for under ``key``."""
        if (key,) not in self._repeated:
            self._repeated[key,] = build()
        return self._repeated[key,]

    def input(self, name: str, found: TensorType, default: Array | None = None) -> Value:
        """A new graph input. With a ``default`` it need not be fed; the value may still be another
        one in every run, so nothing is folded into it."""
        name = self.fresh(name)
        self.inputs[name] = self.types[name] = found
        if default is not None:
            self.initializers[name] = numpy_helper.from_array(default, name)
        return self.tensor(name)

    def constant(self, value: Value | None) -> Array | None:
        """What a small constant holds; None for anything that is known at run time only."""
        return None if value is None else self.constants.get(value.name)

    def maker(self, value: Value) -> onnx.NodeProto | None:
        """The node that makes ``value``, forward or new; None for an input or a constant."""
        return self.makers.get(value.name)

    def in_backward_part(self, value: Value) -> bool:
        """Whether ``value`` is made by the backward part."""
        return self.places.get(value.name, "") is None

    def tensor(self, name: str) -> Value:
        """The tensor of that name."""
        return Value(name, self.types.get(name, UNKNOWN), self)

    def const(self, content: Array | Number | list[int], dtype: int | None = None) -> Value:
        """A constant tensor; equal ones are one initializer.

        Args:
            content: its value; lists and Python integers are int64 unless ``dtype`` is given.
            dtype: ``onnx.TensorProto`` element type to convert to.
        """
        array = np.asarray(content)
        if dtype is not None:
            array = array.astype(helper.tensor_dtype_to_np_dtype(dtype))
        elif isinstance(content, list):
            array = array.astype(np.int64)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._interned:
            name = self.fresh("grad/constant")
            kind = int(helper.np_dtype_to_tensor_dtype(array.dtype))
            self.initializers[name] = numpy_helper.from_array(array, name)
            self.types[name] = TensorType(kind, array.shape)
            self.constants[name] = array
            self._interned[key] = self.tensor(name)
        return self._interned[key]

    def unnamed(self, shape: Shape) -> Shape:
        """``shape`` with a new name for each dimension that has none."""
        return tuple(self._new_dim() if dim == "" else dim for dim in shape)

    def _new_dim(self) -> str:
        self._dims += 1
        return f"{UNNAMED}{self._mark}{self._dims}'"

    # -- nodes ---------------------------------------------------------------------------------

    def op(
        self, op: str, *inputs: Operand, result: TensorType | None = None, **attributes: Any
    ) -> Value:
        """A node with one output. Attributes that are None are left out.

        Args:
            op: operator of the default domain.
            inputs: tensors, numbers, or None where an optional input is absent.
            result: its type, where shape inference cannot find it.
        """
        short = self._folded(op, inputs) if result is None else None
        if short is not None:
            return short
        values = self._operands(inputs)
        if _works_in_float32(op, self.opset, [None if v is None else v.dtype for v in values]):
            kept = None if result is None else replace(result, dtype=_widest(result.dtype))
            wide = self.op(op, *map(self._in_float32, values), result=kept, **attributes)
            return self.op("Cast", wide, to=BFLOAT16) if wide.dtype == FLOAT else wide
        results = (result,) if result is not None else None
        once = self._scope.scalars_once and all(v is None or v.type.shape == () for v in values)
        if self.in_backward and f":{op}" not in VIEWS and not once:
            return self.ops(op, *inputs, outputs=1, results=results, **attributes)[0]
        # Views, and shapes and statistics of the forward part, are made once, however many rules
        # ask; anything else would be kept in memory for the last of them.
        names = tuple(v.name if isinstance(v, Value) else v for v in inputs)
        key = (self._place, op, names, str(sorted(attributes.items())))
        if key not in self._repeated:
            made = self.ops(op, *inputs, outputs=1, results=results, **attributes)
            self._repeated[key] = made[0]
        return self._repeated[key]

    def ops(
        self,
        op: str,
        *inputs: Operand,
        outputs: int,
        results: tuple[TensorType, ...] | None = None,
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """A node with several outputs; see :meth:`op`."""
        values = self._operands(inputs)
        name = self.fresh(f"{self._scope.stem}/{op}")
        outs = [name] + [self.fresh(f"{name}/{k}") for k in range(1, outputs)]
        given = {key: item for key, item in attributes.items() if item is not None}
        names = [value.name if value is not None else "" for value in values]
        node = helper.make_node(op, names, outs, name=name, **given)
        if self._scope.metadata and self.in_backward:
            helper.set_metadata_props(node, dict(self._scope.metadata))
        self.add(node, results)
        return tuple(self.tensor(out) for out in outs)

    def add(self, node: onnx.NodeProto, results: tuple[TensorType, ...] | None = None) -> None:
        """Append a finished node and note the types of its outputs.

        Raises:
            RuleError: ONNX's shape inference refuses it.
        """
        if results is None:
            results = self.infer(node)
        for name, found in zip(node.output, results, strict=False):
            shape = None if found.shape is None else self.unnamed(found.shape)
            self.types[name] = TensorType(found.dtype, shape)
            self.places[name] = self._place
            self.makers[name] = node
        target = self.nodes if self._place is None else self.behind.setdefault(self._place, [])
        target.append(node)

    def placed(
        self,
        nodes: Iterable[onnx.NodeProto],
        instead: Mapping[str, Sequence[onnx.NodeProto]] | None = None,
    ) -> list[onnx.NodeProto]:
        """Forward nodes, each with what is to stand right behind it; ``instead`` are those that
        stand in the place of some, by name."""
        result = list(self.behind.get("", []))
        for node in nodes:
            result += [*((instead or {}).get(node.name) or [node]), *self.behind.get(node.name, ())]
        return result

    def again(self, node: onnx.NodeProto, instead: Mapping[str, str]) -> dict[str, str]:
        """A node once more, which reads other tensors; its outputs and those of the new one.

        Args:
            node: it stands in this graph.
            instead: tensors, and those of the same types that are read in their place.
        """
        made = copied(node)
        del made.metadata_props[:]
        rename_reads(made, instead)
        made.name = self.fresh(f"{self._scope.stem}/{node.op_type}")
        outputs = {name: self.fresh(f"{made.name}/{name}") for name in node.output if name}
        made.output[:] = [outputs.get(name, "") for name in node.output]
        if self._scope.metadata and self.in_backward:
            helper.set_metadata_props(made, dict(self._scope.metadata))
        self.add(made, tuple(self.types.get(name, UNKNOWN) for name in node.output))
        return outputs

    def infer(self, node: onnx.NodeProto) -> tuple[TensorType, ...]:
        """The types of a node's outputs by ONNX's rules for that operator.

        Raises:
            RuleError: they refuse the node.
        """
        try:
            return infer_types(node, self.types, self.constants, self.opset, self.ir_version)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            reason = " ".join(str(error).split())
            raise RuleError(
                f"the gradient of {self._scope.stem} has a wrong node {node.op_type}: {reason}",
                "please report it with the model",
            ) from None

    def _operands(self, inputs: tuple[Operand, ...]) -> list[Value | None]:
        """Numbers become constants of the first tensor's type that is not bool."""
        kinds = (v.dtype for v in inputs if isinstance(v, Value))
        kind = next((k for k in kinds if k != onnx.TensorProto.BOOL), None)
        return [
            self.const(item, kind) if isinstance(item, int | float) else item for item in inputs
        ]

    def _in_float32(self, value: Value | None) -> Value | None:
        if value is None or value.dtype != BFLOAT16:
            return value
        known = self.constants.get(value.name)
        return self.op("Cast", value, to=FLOAT) if known is None else self.const(known, FLOAT)

    def _folded(self, op: str, inputs: tuple[Operand, ...]) -> Value | None:
        """The result where no node is needed: arithmetic on small constants, times or over 1."""
        if op not in _FOLDED:
            return None
        values = [value for value in self._operands(inputs) if value is not None]
        arrays = [self.constants.get(value.name) for value in values]
        known = [array for array in arrays if array is not None and array.size <= _SMALL]
        if len(known) == len(values):
            with np.errstate(all="ignore"):
                found = _FOLDED[op](*known)
            return self.const(np.asarray(found, dtype=known[0].dtype))
        if op in ("Mul", "Div"):
            for one, other in ((1, 0), (0, 1))[: 1 if op == "Div" else 2]:
                array, rank = arrays[one], len(values[other].type.shape or ())
                if array is None or array.size > 1 or array.ndim > rank:
                    continue
                if array.item() == 1:
                    return values[other]
        return None


def scope_of(node: onnx.NodeProto, phase: str, part: str) -> Scope:
    """The scope of what belongs to a forward node: ``<node>/<part>``, with its layer's metadata."""
    metadata = {PHASE_KEY: phase, FORWARD_KEY: node.name}
    for item in node.metadata_props:
        if item.key in _FORWARD_KEYS:
            metadata[item.key] = item.value
    return Scope(f"{node.name}/{part}", metadata)


def _works_in_float32(op: str, opset: int, dtypes: Sequence[int | None]) -> bool:
    """Whether an operator has no kernel for bfloat16, but one with float32 in its place.

    A gradient may need operators that the forward part has none of: that of Relu compares, that of
    Slice pads. The CPU has next to no kernels of bfloat16, so this is about CUDA's, of which there
    is a table. Of float16, ONNX Runtime puts in Casts by itself.

    Args:
        op: operator of the default domain.
        opset: that of the graph.
        dtypes: element type of every input (None: left out).
    """
    if BFLOAT16 not in dtypes:
        return False
    version, kernels = schema_version("", op, opset), kernels_of("cuda")
    wide = [None if dtype is None else _widest(dtype) for dtype in dtypes]
    return not kernels.has(f":{op}", version, dtypes, ()) and kernels.has(
        f":{op}", version, wide, ()
    )


def _widest(dtype: int) -> int:
    """float32 for bfloat16; any other type is kept."""
    return FLOAT if dtype == BFLOAT16 else dtype
