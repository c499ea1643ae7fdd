"""Providers that are libraries of their own, which a process registers with ONNX Runtime."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import onnxruntime as ort

from memplan.providers import PROVIDERS
from memplan.runtime.adapters import adapter_problem


@cache
def register(provider: str) -> None:
    """Make the provider known to ONNX Runtime, once per process, where it is not built in.

    Raises:
        RuntimeError: its package is not installed, this ONNX Runtime does not take it, or there is
            no adapter.
    """
    module = PROVIDERS[provider].plugin
    if not module:
        return
    try:
        library = import_module(module).get_library_path()
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"{provider} did not start: no {module.replace('_', '-')}: {error}"
        ) from None
    # Asked for an adapter that is not there, it prints what its libraries say.
    if problem := adapter_problem():
        raise RuntimeError(f"{provider} did not start: {problem}")
    if not hasattr(ort, "register_execution_provider_library"):
        raise RuntimeError(
            f"{provider} did not start: ONNX Runtime {ort.__version__} has no plugins"
        )
    try:
        ort.register_execution_provider_library(provider, library)
    except Exception as error:
        raise RuntimeError(f"it did not start: {error}") from None
