"""Load a rewritten model the way it was planned for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memplan.proto.metadata import get_metadata
from memplan.proto.read import parse_file


def session_options(path: Path | str | None = None) -> Any:
    """``onnxruntime.SessionOptions`` for a rewritten model (tuned when none is named).

    Raises:
        ModelError: ``path`` is not an ONNX model.
    """
    from memplan.runtime.options import session_options as make

    metadata = get_metadata(parse_file(Path(path))) if path is not None else {}
    dims = metadata.get("dims", {})
    kind = metadata.get("session", "tuned")
    return make(str(kind), dims if isinstance(dims, dict) else {})


def load(path: Path | str, providers: Sequence[str] | None = None) -> Any:
    """An ``onnxruntime.InferenceSession`` for a rewritten model, with the options it was planned
    for.

    Args:
        path: a file that ``memplan rewrite`` wrote.
        providers: execution providers; by default the one that the plan was made for.

    Raises:
        ModelError: ``path`` is not an ONNX model.
    """
    import onnxruntime

    from memplan.runtime.providers import PROVIDER_NAMES

    metadata = get_metadata(parse_file(Path(path)))
    chosen = providers or [PROVIDER_NAMES[str(metadata.get("provider", "cpu"))]]
    return onnxruntime.InferenceSession(str(path), session_options(path), providers=list(chosen))
