"""Operators that no kernel computes in bfloat16.

A gradient may need operators that the forward part has none of: the gradient of Relu compares, that
of Slice pads. The CPU has next to no kernels of bfloat16, so this is about CUDA's, of which there
is a table. Of float16, ONNX Runtime puts in Casts by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from memplan.ops.kernels import kernels_of, schema_version

FLOAT, BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16


def works_in_float32(op: str, opset: int, dtypes: Sequence[int | None]) -> bool:
    """Whether an operator has no kernel for bfloat16, but one with float32 in its place.

    Args:
        op: operator of the default domain.
        opset: that of the graph.
        dtypes: element type of every input (None: left out).
    """
    if BFLOAT16 not in dtypes:
        return False
    version, kernels = schema_version("", op, opset), kernels_of("cuda")
    wide = [None if dtype is None else widest(dtype) for dtype in dtypes]
    return not kernels.has(f":{op}", version, dtypes, ()) and kernels.has(
        f":{op}", version, wide, ()
    )


def widest(dtype: int) -> int:
    """float32 for bfloat16; any other type is kept."""
    return FLOAT if dtype == BFLOAT16 else dtype
