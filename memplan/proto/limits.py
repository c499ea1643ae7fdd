"""How much work a file may cause: small files stay small.

A few kilobytes can ask for gigabytes: functions that call each other twice, loops that are
unrolled. What onnx does with them stands under limits of the kernel (:mod:`memplan.proto.native`);
here are those of our own work. Each is far above what exporters write (the reason stands with it).
What only finds a shape is left out above its limit; anything else is a
:class:`~memplan.errors.ModelError` that names the limit.
"""

from __future__ import annotations

from memplan.errors import ModelError

MOST_NESTED = 24
"""Bodies within bodies. Each takes three protobuf messages, and protobuf reads 100."""
MOST_NAME = 65_000
"""Bytes of a name. Arrays of runs are kept in archives under them, which allow 65,535."""
MOST_OUTPUTS = 1 << 16
"""Graph outputs. For every node it is known which of them are held: a bit each, 512 MB here."""
INLINED_NODES, INLINED_FACTOR = 20_000, 100
"""Nodes after inlining: so many, or so many times those of the file. A function of an exporter
has some ten nodes, and calls few others."""
MOST_FOLDED = 1 << 22
"""Elements of small tensors that are evaluated to find shapes: 32 MB."""
MOST_CONSTANT = 1 << 22
"""Elements of a constant that a gradient puts into the file: 16 to 32 MB. It is enough for four
million steps of a Loop, or to resize an axis from 2,048 to 2,048."""
MOST_TEXT = 1 << 16
"""Characters of the scopes of a node that are parsed; paths of layers have a hundred."""


def require(count: int, most: int, what: str, hint: str = "") -> None:
    """Check a count against its limit.

    Raises:
        ModelError: ``what`` (which follows the count) and the limit.
    """
    if count > most:
        raise ModelError(
            f"{count:,} {what}; memplan takes at most {most:,}",
            hint or "the file is damaged, or was made to be hard to read",
        )
