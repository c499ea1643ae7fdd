"""Where models and benchmarks are."""

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers.effort import THOROUGH

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_models"
# Larger models, which tests use where the environment names their folder: a clone runs the same
# tests wherever it lies.
SHARED = Path(os.environ.get("MEMPLAN_SHARED", os.devnull)) / "models"
DIMS = {
    "gpt_dynamic": {"N": 4},
    "gpt_dyn": {"s78": 4},
    "resnet50_dynbatch_224": {"s14": 32},
}


def sample_models() -> list[Path]:
    """The models that ship with the project."""
    return sorted(SAMPLES.glob("*.onnx"))


def runnable_models(*names: str) -> list[Path]:
    """Sample models and, where they are named, the shared runnable ones.

    ``names``: the samples that will do where a test takes seconds on each; all in a thorough run.
    """
    samples = [p for p in sample_models() if THOROUGH or not names or p.stem in names]
    return samples + sorted((SHARED / "runnable").glob("*.onnx"))


def each(paths: Iterable[Path]) -> list[Any]:
    """Models as parameters of a test; all tests of a model run in one worker of pytest-xdist.

    That worker runs the original once for all of them (:func:`helpers.originals.original`).
    """
    found = []
    for path in paths:
        name = path.stem if path.parent == SAMPLES else f"shared_{path.stem}"
        found.append(pytest.param(path, id=name, marks=pytest.mark.xdist_group(name)))
    return found


def load_benchmark(name: str) -> ModuleType:
    """A module of ``benchmarks/``, which is not installed; memplan stays the installed one."""
    sys.path.append(str(ROOT))
    try:
        return importlib.import_module(f"benchmarks.{name}")
    finally:
        sys.path.remove(str(ROOT))
