"""Load a rewritten model the way it was planned for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import onnx

from memplan.errors import UsageError
from memplan.proto.metadata import get_metadata, planned_for
from memplan.proto.model_checks import require_device
from memplan.proto.paths import as_path
from memplan.proto.read import parse_file
from memplan.providers import PROVIDERS
from memplan.runtime.installed import require_runtime
from memplan.runtime.messages import RunRequest
from memplan.runtime.run_failures import explain
from memplan.units import did_you_mean


def session_options(path: onnx.ModelProto | PathLike[str] | str | None = None) -> Any:
    """``onnxruntime.SessionOptions`` for a rewritten model (tuned when none is named).

    Raises:
        ModelError: ``path`` is not an ONNX model.
    """
    return _options(get_metadata(_model(path)) if path is not None else {})


def load(
    path: onnx.ModelProto | PathLike[str] | str, providers: Sequence[str] | None = None
) -> Any:
    """An ``onnxruntime.InferenceSession`` for a rewritten model, with the options it was planned
    for.

    Args:
        path: a file that ``memplan rewrite`` wrote, or such a model in memory.
        providers: execution providers; by default the one that the plan was made for.

    Raises:
        ModelError: ``path`` is not an ONNX model.
        UsageError: it is not a path, ONNX Runtime has no such provider, or the model copies tensors
            to the host and ``providers`` is the CPU alone.
        RuntimeUnavailableError: ONNX Runtime does not load.
    """
    model = _model(path)
    require_runtime()
    import onnxruntime

    metadata = get_metadata(model)
    chosen = providers or [PROVIDERS[planned_for(metadata)[1]].runtime_name]
    require_device(model, "cpu" if list(chosen) == [PROVIDERS["cpu"].runtime_name] else "")
    known = onnxruntime.get_all_providers()
    for each in chosen:
        name = each if isinstance(each, str) else each[0]
        if name not in known:
            near = did_you_mean(name, known)
            raise UsageError(f"unknown execution provider {name!r}", f"{near}e.g. {known[-1]}")
    given = path.SerializeToString() if isinstance(path, onnx.ModelProto) else str(path)
    plugins = [key for key, has in PROVIDERS.items() if has.plugin and has.runtime_name in chosen]
    if not plugins:
        return onnxruntime.InferenceSession(given, _options(metadata), providers=list(chosen))
    from memplan.runtime.sessions import open_session  # imports onnxruntime

    try:  # the runtime itself would take the CPU instead, with a warning
        return open_session(given, RunRequest(provider=plugins[0]), _options(metadata))
    except Exception as error:
        raise explain(str(error), "loading the model", plugins[0]) from None


def _model(model: onnx.ModelProto | PathLike[str] | str) -> onnx.ModelProto:
    return model if isinstance(model, onnx.ModelProto) else parse_file(as_path(model))


def _options(metadata: Mapping[str, object]) -> Any:
    """The options that a file's metadata asks for."""
    require_runtime()
    from memplan.runtime import session_options  # imports onnxruntime

    dims = metadata.get("dims", {})
    kind, _ = planned_for(metadata)
    return session_options.session_options(kind, dims if isinstance(dims, dict) else {})
