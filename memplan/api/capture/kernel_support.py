"""Whether ONNX Runtime has the kernels that a captured step asks for, in the types it is in."""

from __future__ import annotations

import onnx

from memplan.errors import ModelError
from memplan.ops.float_types import (
    NO_SESSION,
    Unsupported,
    unsupported_kernels,
    unsupported_notes,
)
from memplan.shapes.infer import stated_types

_NARROW = ("float16", "bfloat16")
_NAMED = 3


def require_kernels(model: onnx.ModelProto) -> None:
    """Refuse a step in float16 or bfloat16 that no provider runs.

    float64 is not refused: such graphs are captured to be evaluated otherwise.

    Raises:
        ModelError: neither the CPU nor CUDA has a kernel for a node in its type.
    """
    found = [each for each in _missing(model, "cuda") if each.dtype in _NARROW]
    if found:
        names = ", ".join(f"{each.op} '{each.node or each.output}'" for each in found[:_NAMED])
        more = " ..." if len(found) > _NAMED else ""
        raise ModelError(
            f"no provider of ONNX Runtime runs this step in {found[0].dtype}: {names}{more}",
            "keep these modules in float32 and train under torch.autocast",
        )


def kernel_notes(model: onnx.ModelProto) -> tuple[str, ...]:
    """Which nodes cannot run on the CPU, or anywhere, and what to do."""
    missing = _missing(model, "cpu")
    if not missing:
        return ()
    nowhere = len(_missing(model, "cuda"))
    hint = "sessions on CUDA run them" if not nowhere else "nor can CUDA run all of them"
    notes = unsupported_notes(missing, "cpu")
    instead = f"{hint}; use float16 or float32 for the CPU"
    return tuple(f"{note}; {instead if NO_SESSION in note else hint}" for note in notes)


def _missing(model: onnx.ModelProto, provider: str) -> tuple[Unsupported, ...]:
    return unsupported_kernels(model, provider, stated_types(model.graph))
