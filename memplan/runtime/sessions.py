"""Sessions and their steps. Imports onnxruntime; used in child processes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from memplan.providers import PROVIDERS
from memplan.runtime.archive import BFLOAT16
from memplan.runtime.messages import RunRequest
from memplan.runtime.plugins import register

Array = npt.NDArray[np.generic]
Feeds = Mapping[str, Array]

_FIRST_SEED = 1_000_003
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


def open_session(
    model: str | bytes,
    request: RunRequest,
    options: Any,
    disabled: list[str] | None = None,
    more: Mapping[str, str] | None = None,
) -> Any:
    """A session on the provider that was asked for; ``more`` are options of the provider.

    Raises:
        RuntimeError: the provider did not start; and whatever the runtime raises.
    """
    found = PROVIDERS[request.provider]
    provider = found.runtime_name
    if request.provider == "cuda" and hasattr(ort, "preload_dlls"):
        # CUDA and cuDNN from NVIDIA's wheels (PyTorch's too), where the loader would not look.
        ort.preload_dlls()
    register(request.provider)
    if provider not in ort.get_available_providers():
        # A session would be made on the CPU, with a warning.
        raise RuntimeError(f"{provider} is not in available providers")
    # Dropout starts its generators from seed, seed + 1, ...; of those 0 and 1 give equal numbers,
    # so that two draws in each other's place would go unnoticed.
    ort.set_seed(request.seed + _FIRST_SEED)
    options.intra_op_num_threads = request.threads
    if not request.spin:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    settings = {**found.settings, **request.provider_options, **(more or {})}
    session = ort.InferenceSession(
        model,
        options,
        providers=[(provider, settings)],
        disabled_optimizers=disabled,
        # Else it prints what failed and makes a session on the CPU, now or when a run fails.
        enable_fallback=0,
    )
    if session.get_providers()[0] != provider:
        # The runtime falls back to the CPU in silence when a provider fails to start.
        raise RuntimeError(f"{provider} did not start; the session fell back to the CPU")
    return session


def run_step(session: Any, feeds: Feeds) -> list[Any]:
    """The outputs of one run, in the session's order.

    The runtime itself exchanges no bfloat16 with NumPy.

    Raises:
        Exception: whatever the runtime raises.
    """
    outputs = session.get_outputs()
    names = [output.name for output in outputs]
    if not any(output.type == "tensor(bfloat16)" for output in outputs):
        result: list[Any] = session.run(names, {n: fed(value) for n, value in feeds.items()})
        return result
    values = {name: shared(value) for name, value in feeds.items()}
    return [as_array(value) for value in session.run_with_ort_values(names, values)]


def fed(value: Array) -> Any:
    """An array as ``session.run`` takes it."""
    if value.dtype != BFLOAT16:
        return value
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(value, _BFLOAT16)


def shared(value: Array) -> Any:
    """An ``OrtValue`` in the memory of an array, on the CPU; of a copy of it where that is not in C
    order."""
    given = fed(np.asarray(value, order="C"))  # ascontiguousarray gives scalars a dimension
    return given if isinstance(given, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(given)


def as_array(value: Any) -> Array:
    """A copy of an ``OrtValue`` as an array, wherever it lies."""
    if value.data_type() != "tensor(bfloat16)":
        return np.array(value.numpy())
    if value.device_name() != "cpu":
        there, value = (
            value,
            ort.OrtValue.ortvalue_from_shape_and_type(value.shape(), _BFLOAT16, "cpu", 0),
        )
        value.update_inplace(there)
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(content, BFLOAT16).reshape(value.shape())
