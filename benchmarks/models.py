"""Model files that several benchmarks measure: the samples, and those beside the checkout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

SAMPLES = Path(__file__).resolve().parents[1] / "sample_models"
SHARED = Path(os.environ.get("MEMPLAN_SHARED", "")) / "models"
DIMS = {"gpt_dynamic": {"N": 24}, "gpt_dyn": {"s78": 4}, "resnet50_dynbatch_224": {"s14": 32}}
"""Sizes of symbolic dimensions, by the name of the file."""


def shared_models(folders: Sequence[str]) -> Iterator[Path]:
    """The sample models, and those in folders of ``$MEMPLAN_SHARED``, if that is set."""
    yield from sorted(SAMPLES.glob("*.onnx"))
    for name in folders if "MEMPLAN_SHARED" in os.environ else ():
        yield from sorted((SHARED / name).glob("*.onnx"))
