"""A session that keeps the state of a training run in its device's memory, step after step.

Per step the batch goes in and the loss comes out. A new value is written over the old one, or into
a second buffer that changes places with the first. Imports onnxruntime; runs in the process of its
caller, whose training it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from memplan.processes.scratch import scratch_folder
from memplan.providers import PROVIDERS
from memplan.runtime.archive import BFLOAT16
from memplan.runtime.bound import placed
from memplan.runtime.messages import RunRequest
from memplan.runtime.profiled import dynamic_peaks
from memplan.runtime.run_failures import explain, failed_node
from memplan.runtime.session_options import point_to_weights, session_options
from memplan.runtime.sessions import as_array, open_session, shared

Array = npt.NDArray[Any]

# As the runtime's own buffers: sums run in another order where an array begins elsewhere.
_ALIGNMENT = 64


class Buffer:
    """A tensor in the memory of a session's device, of which only copies are handed out."""

    def __init__(self, value: Array, provider: str) -> None:
        self.shape = value.shape
        self.dtype = value.dtype
        self.nbytes = value.nbytes
        device = PROVIDERS[provider].device
        self._host = _aligned(value) if device == "cpu" else None
        self.value = placed(value, device) if self._host is None else shared(self._host)

    def read(self) -> Array:
        """A copy of what is there."""
        return np.array(self._host) if self._host is not None else as_array(self.value)

    def write(self, value: Array) -> None:
        """Replace what is there by an array of the same type and shape."""
        if self._host is not None:
            np.copyto(self._host, value)
        elif self.dtype == BFLOAT16:
            self.value.update_inplace(shared(value))
        else:
            self.value.update_inplace(np.asarray(value, order="C"))


def _aligned(value: Array) -> Array:
    """A copy in C order that begins where the runtime would begin it."""
    room = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    copy: Array = room[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    np.copyto(copy, value)
    return copy


class Refused(Exception):
    """A node that is there to stop the run has stopped it; the text is the runtime's."""


class TrainingSession:
    """A session with its bindings.

    Args:
        model: the model's bytes.
        request: kind of session, provider, dims, threads, seed.
        folder: where its external data lies.
        in_place: output → the input over whose value it is written.
        second: output → the input with which its buffer changes places.
        wanted: outputs whose values are asked for after every step.
        guard: the name of a node that stops runs on purpose.
        measured: whether every step runs under the profiler.

    Raises:
        RuntimeUnavailableError: the session cannot be made.
    """

    def __init__(
        self,
        model: bytes,
        request: RunRequest,
        folder: Path | None = None,
        *,
        in_place: Mapping[str, str],
        second: Mapping[str, str],
        wanted: Sequence[str],
        guard: str = "",
        measured: bool = False,
    ) -> None:
        self.request = request
        self.in_place, self.second = dict(in_place), dict(second)
        self._output_of = {given: output for output, given in {**in_place, **second}.items()}
        self.wanted = list(wanted)
        self.buffers: dict[str, Buffer] = {}
        self._spare: dict[str, Buffer] = {}
        self._led: list[tuple[TrainingSession, Mapping[str, str]]] = []
        self._folder = folder
        self._model = model if measured else b""  # to open it anew
        self._guard, self._measured = guard, measured
        self._turn = 0
        self.failed: tuple[str, str] | None = None
        self._quiet = ort.RunOptions()
        self._quiet.log_severity_level = 4  # errors come as exceptions, and some are meant
        self._steps_measured = 0
        self.peaks: list[int] = []
        self._open(model)

    def _open(self, model: bytes) -> None:
        request = self.request
        options = session_options(request.session, request.dims)
        point_to_weights(options, self._folder)
        if self._measured:
            self._scratch = scratch_folder()
            options.enable_profiling = True
            options.profile_file_prefix = str(self._scratch.__enter__() / "run")
        try:
            self._session = open_session(model, request, options)
        except Exception as error:
            raise explain(str(error), "loading the model", request.provider) from None
        # An input that nodes on the CPU read would be copied there when it is bound, once for all.
        places = zip(
            self._session.get_inputs(), self._session.get_input_memory_infos(), strict=True
        )
        self._on_host = {given.name for given, place in places if place.name == "Cpu"}
        # Two bindings, between which the buffers that change places differ.
        self._bindings = [self._session.io_binding() for _ in range(2 if self.second else 1)]
        for name in self.wanted:
            self._release(name)
        for name in self.buffers:
            self._bind(name)

    def set(self, name: str, value: Array) -> None:
        """Give an input its value: into the buffer that is there, or a new one of another shape."""
        held = self.buffers.get(name)
        if held is not None and (held.shape, held.dtype) == (value.shape, value.dtype):
            held.write(value)
            return
        provider = "cpu" if name in self._on_host else self.request.provider
        self.buffers[name] = Buffer(value, provider)
        if name in self.second.values():
            self._spare[name] = Buffer(value, provider)
        self._bind(name)

    def share(self, name: str, buffer: Buffer, spare: Buffer | None) -> None:
        """Let an input have its value in a buffer of another session on the same device; and its
        next one in ``spare``, where it has two buffers in both."""
        twice = spare is not None and name in self._spare
        if self.buffers.get(name) is buffer and (not twice or self._spare[name] is spare):
            return
        self.buffers[name] = buffer
        if twice and spare is not None:
            self._spare[name] = spare
        self._bind(name)

    def lead(self, other: TrainingSession, names: Mapping[str, str]) -> None:
        """Let another session have some inputs in the buffers that they have here, from now on,
        whichever of two that is after a step. ``names``: input here → input there."""
        self._led.append((other, names))
        self._hand_on(other, names)

    def _hand_on(self, other: TrainingSession, names: Mapping[str, str]) -> None:
        for name, there in names.items():
            other.share(there, self.buffers[name], self._spare.get(name))

    def get(self, name: str) -> Array:
        """A copy of an input's present value."""
        return self.buffers[name].read()

    def _bind(self, name: str) -> None:
        """Bind an input, and the output that is its next value."""
        held = self.buffers[name]
        spare = self._spare.get(name)
        for turn, binding in enumerate(self._bindings):
            now, then = held, spare or held
            if spare is not None and turn != self._turn:
                now, then = spare, held
            binding.bind_ortvalue_input(name, now.value)
            if name in self._output_of:
                binding.bind_ortvalue_output(self._output_of[name], then.value)

    def _release(self, name: str) -> None:
        """Let the runtime make an output anew: one that is left in a binding would be the memory of
        the next run's, which then took less than the first."""
        for binding in self._bindings:
            binding.bind_output(name, "cpu", 0)

    def run(self) -> dict[str, Array]:
        """One run: the outputs that are wanted. New values wait for :meth:`accept`, those that are
        written in place are there.

        Raises:
            Refused: the guard has stopped the run before anything was written in place.
            RuntimeUnavailableError: the run failed; ``failed`` says in which node, if that is
                known, by its operator and name.
        """
        binding = self._bindings[self._turn]
        try:
            self._session.run_with_iobinding(binding, self._quiet)
        except Exception as error:
            if self._guard and f"'{self._guard}'" in str(error):
                raise Refused(str(error)) from None
            self.failed = failed_node(str(error))
            raise explain(str(error), "the step", self.request.provider) from None
        finally:
            self._steps_measured += self._measured
        values = binding.get_outputs()  # in the order in which they were first bound
        found = {name: as_array(value) for name, value in zip(self.wanted, values, strict=False)}
        del values
        for name in self.wanted:
            self._release(name)
        return found

    def accept(self) -> None:
        """Take the new values for the present ones: buffers change places."""
        if self.second:
            self._turn = 1 - self._turn
            for name in self._spare:
                self.buffers[name], self._spare[name] = self._spare[name], self.buffers[name]
            for other, names in self._led:
                self._hand_on(other, names)

    def collect_peaks(self) -> list[int]:
        """Dynamic bytes at the peak of every measured step so far, by the profiler.

        The session is opened anew afterwards, as a profile is written only once.

        Raises:
            RuntimeUnavailableError: the session cannot be made again.
        """
        if self._measured and self._steps_measured:
            path = Path(self._session.end_profiling())
            events = json.loads(path.read_text())
            self.peaks += dynamic_peaks(events, self.request.provider)
            self._scratch.__exit__(None, None, None)
            self._steps_measured = 0
            self._open(self._model)
        return list(self.peaks)

    def close(self) -> None:
        """Let go of the session and its files."""
        if self._measured:
            self._session.end_profiling()
            self._scratch.__exit__(None, None, None)
            self._measured = False
        self._led.clear()
        del self._session, self._bindings
