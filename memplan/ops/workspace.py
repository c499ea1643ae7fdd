"""Scratch memory that ONNX Runtime's kernels take while they run.

Every formula gives bytes and reproduces what `tools/probe_ort` measured on onnxruntime 1.31.1:
the kernel's peak beyond its inputs and outputs, as seen by the CPU allocator without an arena.
Unless a docstring says "upper bound", the formula is exact for all probed cases. Memory a kernel
takes past the allocator (std::vector, thread-local MLAS buffers) is outside every figure here.
The formulas stand in the families of the book.
"""

from __future__ import annotations

from functools import cache

from memplan.ops.book import operator
from memplan.ops.instance import MISFITS, Formula, Instance
from memplan.ops.memory import semantics


def workspace_bytes(key: str, instance: Instance, provider: str = "cpu") -> int | None:
    """Bytes the kernel takes beyond its inputs and outputs; None when the op was never measured.

    On CUDA few operators with scratch are known: what cuDNN and cuBLAS take has not been measured.
    """
    formula = _formula(key, provider)
    if formula is None:
        return 0 if key in semantics(provider).no_scratch else None
    try:
        return formula(instance)
    except MISFITS:
        return None


@cache
def never_takes_scratch(key: str, provider: str) -> bool:
    """Whether :func:`workspace_bytes` is 0 for every call of an operator: most have no scratch."""
    return _formula(key, provider) is None and key in semantics(provider).no_scratch


def _formula(key: str, provider: str) -> Formula | None:
    entry = operator(key)
    return {"cpu": entry.scratch, "cuda": entry.scratch_cuda}.get(provider)
