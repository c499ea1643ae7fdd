"""Which kernels a GPU's provider has, and which of their inputs and outputs lie on the host.

``tables/<provider>_kernels.json`` are written by ``tools/probe_ort`` from the provider's own
registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

COPY_OPS = ("MemcpyFromHost", "MemcpyToHost")
"""Copies between host and device, which a session on a GPU adds to the graph, and which may stand
in a file: operators of the runtime alone."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One row: operator versions ``first`` to ``last`` (None: open), and types by slot.

    Slots are ``i0``, ``o1``, ...; element types are numbers of ``TensorProto.DataType``.
    """

    first: int
    last: int | None
    types: Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one provider by operator key, and its host tensors by slot."""

    rows: Mapping[str, tuple[Kernel, ...]]
    host_inputs: Mapping[str, frozenset[int]]
    host_outputs: Mapping[str, frozenset[int]]

    def has(
        self, key: str, version: int, inputs: Sequence[int | None], outputs: Sequence[int | None]
    ) -> bool:
        """Whether a kernel takes these element types (None: absent or no tensor).

        Args:
            key: operator key, ``domain:Op``.
            version: the operator's version (the ``since_version`` of its schema).
            inputs: element type of every input slot.
            outputs: the same of the outputs.
        """
        given = {f"i{k}": code for k, code in enumerate(inputs) if code is not None}
        given |= {f"o{k}": code for k, code in enumerate(outputs) if code is not None}
        for kernel in self.rows.get(key, ()):
            # A row without an end holds for the version it starts with (kernel_registry.cc).
            if kernel.last is None:
                fits = version == kernel.first
            else:
                fits = kernel.first <= version <= kernel.last
            if fits and all(
                slot not in given or given[slot] in allowed
                for slot, allowed in kernel.types.items()
            ):
                return True
        return False


def read_table(name: str) -> Any:
    """A table that ``tools/probe_ort`` has written."""
    return json.loads(files("memplan.ops").joinpath(f"tables/{name}.json").read_text())


@cache
def kernels_of(provider: str) -> Kernels:
    """The table of a provider that has memory of its own: ``cuda`` or ``webgpu``."""
    data = read_table(f"{provider}_kernels")
    return Kernels(
        {
            key: tuple(
                Kernel(first, last, {slot: frozenset(types) for slot, types in slots.items()})
                for first, last, slots in rows
            )
            for key, rows in data["kernels"].items()
        },
        {key: frozenset(slots) for key, slots in data["host_inputs"].items()},
        {key: frozenset(slots) for key, slots in data["host_outputs"].items()},
    )


@cache
def schema_version(domain: str, op: str, opset: int) -> int:
    """The version of an operator under an opset; 1 for operators that ONNX does not know."""
    if domain:
        return 1
    from memplan.proto.opset import schema_of

    schema = schema_of(domain, op, opset)
    # None: the runtime's own operators, some of which stand in the default domain.
    return 1 if schema is None else schema.since_version
