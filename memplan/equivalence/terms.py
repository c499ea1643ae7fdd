"""Terms: one number for all tensors that have the same bits in every run.

Value numbering (Click, "Global code motion, global value numbering", PLDI 1995, section 3): an
input has a term of its own, a constant one for its content, and an output of an operator one for
the operator, its attributes and the terms that it reads. Equal terms are equal bits if the operator
is a function of its inputs; what draws random numbers or has effects is told apart by occurrence.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from memplan.equivalence.normal_forms import Applied, Constant, Form, Output, Product
from memplan.proto.elements import ELEMENT_BITS, tensor_bytes
from memplan.proto.paths import opened_file

Array = npt.NDArray[np.generic]

ABSENT = -1
"""The term of an optional input that is left out."""

INT64 = onnx.TensorProto.INT64
_SMALL_BYTES = 1 << 15
_CHUNK = 1 << 22

IN_CHUNKS = "put together from chunks"
BY_STEPS = "a product that a loop makes step by step"
PACKED = "made from weights that only one of the files holds as constants"
# External data above this is not read: the same place in the same file holds the same values.
_LARGE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a tensor: its element type (``onnx.TensorProto`` enum, 0: unknown) and its
    shape, where that is the same in every run."""

    dtype: int = 0
    shape: tuple[int, ...] | None = None

    @property
    def elements(self) -> int | None:
        """How many there are; None if the shape is not known."""
        return None if self.shape is None else math.prod(self.shape)


UNKNOWN = Fact()


@dataclass(slots=True)
class Terms:
    """The terms of both graphs: equal forms are equal terms.

    ``forms``, ``facts`` and ``free`` (see :class:`Applied`) are by term; ``values`` holds small
    constants; ``first`` the first output of what was applied, where a rule has found it: the
    reference may know a shape that the other graph does not state; ``products`` are those of the
    reference, and ``known`` is how many terms it has; ``kernels`` its operators by what they are
    whatever their weights are made of. ``rows``: products of a slice, with weights of either kind,
    by the slice of the product that they are up to rounding, and that product. ``rounded``: terms
    that were taken for others which are equal up to rounding alone, with a name and how they came
    about. ``provider``: whose kernels run.
    """

    provider: str = "cpu"
    forms: list[Form] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    values: dict[int, Array] = field(default_factory=dict)
    first: dict[Applied, int] = field(default_factory=dict)
    products: dict[Product, int] = field(default_factory=dict)
    kernels: dict[Applied, Applied] = field(default_factory=dict)
    rows: dict[Applied, tuple[int, int]] = field(default_factory=dict)
    rounded: dict[int, tuple[str, str]] = field(default_factory=dict)
    known: int = 0
    _numbers: dict[Form, int] = field(default_factory=dict)

    def of(self, form: Form, fact: Fact = UNKNOWN, free: int = 0) -> int:
        """The term of ``form``; what is known of it is kept from its first sight."""
        number = self._numbers.get(form)
        if number is None:
            number = self._numbers[form] = len(self.forms)
            self.forms.append(form)
            self.facts.append(fact)
            self.free.append(free)
        else:
            self.learn(number, fact)
        return number

    def has(self, form: Form) -> bool:
        """Whether the reference has such a term, once it is numbered."""
        return self._numbers.get(form, self.known) < self.known

    def learn(self, term: int, fact: Fact) -> None:
        """Note what is known of a term, as far as it is not known already."""
        known = self.facts[term]
        if known.dtype == 0 or known.shape is None:
            shape = fact.shape if known.shape is None else known.shape
            self.facts[term] = Fact(known.dtype or fact.dtype, shape)

    def output(self, applied: Applied, slot: int, fact: Fact = UNKNOWN) -> int:
        """The term of an output of an operator."""
        return self.of(Output(applied, slot), fact, applied.free)

    def as_known(self, applied: Applied) -> Applied:
        """The operator as the reference has it, if that differs in no more than in which weights
        are constants, and so in rounding."""
        if self.has(Output(applied, 0)):
            return applied
        return self.kernels.get(replace(applied, packed=()), applied)

    def grant(self, term: int, how: str, name: str = "") -> int:
        """The term, noted as equal up to rounding. ``name``: unless the reference has one."""
        self.rounded.setdefault(term, (name, how))
        return term

    def made_by(self, term: int, slot: int) -> Applied | None:
        """The operator whose output in ``slot`` the term is; None if it is something else."""
        form = self.forms[term] if term != ABSENT else None
        return form.applied if isinstance(form, Output) and form.slot == slot else None

    def fact(self, term: int) -> Fact:
        """What is known of a term."""
        return UNKNOWN if term == ABSENT else self.facts[term]

    def value(self, term: int) -> Array | None:
        """The content of a small constant, else None."""
        return self.values.get(term)

    def constant(self, array: Array) -> int:
        """The term of a constant with this content."""
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return self._constant(dtype, array.shape, array.tobytes(), array)

    def tensor(self, tensor: onnx.TensorProto, folder: Path) -> int:
        """The term of a constant in a file; data outside the file lies below ``folder``.

        Raises:
            OSError, ValueError: the data cannot be read, or is of no type.
        """
        if tensor.data_type not in (*ELEMENT_BITS, onnx.TensorProto.STRING):
            raise ValueError(f"a constant of element type {tensor.data_type}")
        shape = tuple(tensor.dims)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            digest = _external_digest(tensor, folder)
            fact = Fact(tensor.data_type, shape)
            return self.of(Constant(tensor.data_type, shape, digest), fact)
        if tensor.data_type == onnx.TensorProto.STRING:
            content = repr([bytes(text) for text in tensor.string_data]).encode()
            return self._constant(tensor.data_type, shape, content, None)
        if tensor.HasField("raw_data"):
            content = tensor.raw_data
            small = len(content) <= _SMALL_BYTES
            array = numpy_helper.to_array(tensor) if small else None
            return self._constant(tensor.data_type, shape, content, array)
        array = numpy_helper.to_array(tensor)
        return self._constant(tensor.data_type, shape, _packed(tensor, array), array)

    def _constant(
        self, dtype: int, shape: tuple[int, ...], content: bytes, array: Array | None
    ) -> int:
        fact = Fact(dtype, shape)
        if fact.elements == 0:
            content = b""
        digest = hashlib.sha256(content).hexdigest()
        term = self.of(Constant(dtype, shape, digest), fact)
        if array is not None and array.nbytes <= _SMALL_BYTES:
            self.values.setdefault(term, array)
        return term


def _packed(tensor: onnx.TensorProto, array: Array) -> bytes:
    """The bytes that ``raw_data`` would hold."""
    packed = numpy_helper.from_array(array)
    same = packed.data_type == tensor.data_type
    return packed.raw_data if same else array.tobytes()


def _external_digest(tensor: onnx.TensorProto, folder: Path) -> str:
    """A digest of external data, read in pieces. What is large is not read: its place tells it."""
    entries = {item.key: item.value for item in tensor.external_data}
    digest = hashlib.sha256()
    if tensor_bytes(tensor.data_type, tensor.dims) > _LARGE_BYTES:
        place = (folder / entries["location"]).resolve()
        return f"{place} {int(entries.get('offset', 0))}"
    with opened_file(folder / entries["location"]) as file:
        file.seek(int(entries.get("offset", 0)))
        left = int(entries["length"]) if "length" in entries else None
        while left is None or left > 0:
            piece = file.read(_CHUNK if left is None else min(_CHUNK, left))
            if not piece:
                break
            digest.update(piece)
            left = None if left is None else left - len(piece)
    return digest.hexdigest()


def attributes_key(
    attributes: Iterable[onnx.AttributeProto], folder: Path, terms: Terms
) -> tuple[object, ...]:
    """Attributes other than bodies, in a form that can be compared: sorted, tensors by content."""
    return tuple(sorted((a.name, _attribute(a, folder, terms)) for a in attributes))


def _attribute(attribute: onnx.AttributeProto, folder: Path, terms: Terms) -> str:
    if attribute.type == onnx.AttributeProto.TENSOR:
        return f"tensor {terms.tensor(attribute.t, folder)}"
    bare = onnx.AttributeProto()
    bare.CopyFrom(attribute)
    bare.ClearField("doc_string")
    content: bytes = bare.SerializeToString(deterministic=True)
    return content.hex()


def plain_attributes(node: onnx.NodeProto) -> Mapping[str, Any]:
    """Attributes of a node as Python values, bodies and tensors left out."""
    kinds = onnx.AttributeProto
    left_out = (kinds.GRAPH, kinds.GRAPHS, kinds.TENSOR, kinds.TENSORS, kinds.UNDEFINED)
    return {
        a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.type not in left_out
    }
