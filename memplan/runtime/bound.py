"""A step whose state is bound: new values in the memory of old ones, or in second buffers.

Imports onnxruntime; used in child processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from memplan.providers import PROVIDERS
from memplan.runtime.archive import BFLOAT16
from memplan.runtime.messages import RunRequest
from memplan.runtime.sessions import as_array, shared

Array = npt.NDArray[np.generic]


def bind_step(session: Any, feeds: Mapping[str, Array], request: RunRequest) -> Any:
    """A binding of ``session`` to feeds, for one run.

    Args:
        session: an ``InferenceSession``.
        feeds: arrays by input; of state, copies are made, as a run writes over it.
        request: its ``in_place`` and ``second`` pairs.
    """
    device = PROVIDERS[request.provider].device
    renewed = {*request.in_place.values(), *request.second.values()}
    binding = session.io_binding()
    held: dict[str, Any] = {}
    for name, value in feeds.items():
        if name in renewed:
            held[name] = placed(value, device)
            binding.bind_ortvalue_input(name, held[name])
        else:
            binding.bind_ortvalue_input(name, shared(value))
    for output in session.get_outputs():
        if output.name in request.in_place:
            binding.bind_ortvalue_output(output.name, held[request.in_place[output.name]])
        elif output.name in request.second:
            old = held[request.second[output.name]]
            spare = ort.OrtValue.ortvalue_from_shape_and_type(
                old.shape(), old.element_type(), device
            )
            binding.bind_ortvalue_output(output.name, spare)
        else:
            binding.bind_output(output.name)
    return binding


def placed(value: Array, device: str) -> Any:
    """A copy on the device, of any type that sessions take (on the CPU an ``OrtValue`` shares the
    memory of its array)."""
    if device == "cpu":
        return shared(np.array(value, order="C"))
    if value.dtype != BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy(np.asarray(value, order="C"), device)
    given = shared(value)
    there = ort.OrtValue.ortvalue_from_shape_and_type(given.shape(), given.element_type(), device)
    there.update_inplace(given)
    return there


def run_bound(session: Any, feeds: Mapping[str, Array], request: RunRequest) -> list[Any]:
    """The outputs of one run with bound state, in the session's order.

    Raises:
        Exception: whatever the runtime raises.
    """
    binding = bind_step(session, feeds, request)
    session.run_with_iobinding(binding)
    names = [output.name for output in session.get_outputs()]  # one may be there twice, bound once
    values = dict(zip(dict.fromkeys(names), map(as_array, binding.get_outputs()), strict=True))
    return [values[name] for name in names]
