"""``device``: what the runtime, the GPU and the machine are, and which providers really start."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

from memplan.errors import ProviderMissingError, RuntimeUnavailableError
from memplan.providers import PROVIDERS, on_host
from memplan.runtime.adapters import Adapter, find_adapters
from memplan.runtime.gpu import Gpu, find_gpu
from memplan.runtime.installed import installed_package
from memplan.runtime.measure import run_child
from memplan.runtime.messages import RunRequest, Start
from memplan.runtime.room import machine_memory
from memplan.runtime.times import device_name

SCHEMA = "memplan.device/1"


@dataclass(frozen=True, slots=True)
class Machine:
    """The answer of ``device``. ``gpu`` is a reason where there is none; ``adapters`` are
    those that WebGPU may run on."""

    runtime: str
    package: str
    starts: tuple[Start, ...]
    gpu: Gpu | str
    adapters: tuple[Adapter, ...]
    cpu: str
    cpu_bytes: int
    cpu_available_bytes: int
    threads: int

    def started(self, provider: str) -> Start | None:
        """The provider's start, if it started."""
        return next((s for s in self.starts if s.provider == provider and not s.problem), None)

    @property
    def reserve_bytes(self) -> int | None:
        """What to leave free on the GPU for what no tensor is: only where it was measured."""
        start = self.started("cuda")
        return start.taken_bytes if start is not None and start.taken_bytes else None

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {
            "schema": SCHEMA,
            "runtime": self.runtime,
            "package": self.package,
            "providers": [
                {"provider": s.provider, "starts": not s.problem, **asdict(s)} for s in self.starts
            ],
            "gpu": None if isinstance(self.gpu, str) else asdict(self.gpu),
            "gpu_problem": self.gpu if isinstance(self.gpu, str) else None,
            "adapters": [asdict(adapter) for adapter in self.adapters],
            "reserve_bytes": self.reserve_bytes,
            "cpu": {
                "name": self.cpu,
                "total_bytes": self.cpu_bytes,
                "available_bytes": self.cpu_available_bytes,
                "threads": self.threads,
            },
        }


def describe_device() -> Machine:
    """Look at the machine; every provider is started in a process of its own.

    Raises:
        RuntimeUnavailableError: ONNX Runtime is missing or runs nothing at all.
    """
    starts, version = [], ""
    for provider in PROVIDERS:
        try:
            version, found = start(provider)
        except RuntimeUnavailableError as error:
            if provider == "cpu":
                raise
            found = Start(provider, error.message)
        starts.append(found)
    memory, adapters = machine_memory(), find_adapters()
    return Machine(
        runtime=version,
        package=installed_package(),
        starts=tuple(starts),
        gpu=find_gpu(),
        adapters=() if isinstance(adapters, str) else adapters,
        cpu=device_name("cpu"),
        cpu_bytes=memory.get("MemTotal", 0),
        cpu_available_bytes=memory.get("MemAvailable", 0),
        threads=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
    )


def start(provider: str) -> tuple[str, Start]:
    """Run a trivial model on ``provider`` in a child process; the runtime's version with it.

    Raises:
        RuntimeUnavailableError: it does not start; on CUDA with what to install.
    """
    what = f"starting {PROVIDERS[provider].runtime_name}"
    found: tuple[str, Start] = run_child("start", RunRequest(provider=provider), what)
    return found


def require(provider: str) -> None:
    """Make sure that ``provider`` starts, before work is done that needs it.

    Raises:
        RuntimeUnavailableError: it does not; the message says what the driver says.
    """
    if on_host(provider):
        return
    gpu = find_gpu() if provider == "cuda" else None
    if isinstance(gpu, str):
        raise ProviderMissingError(
            f"CUDA was asked for, but there is {gpu}", PROVIDERS["cuda"].cure
        )
    start(provider)
