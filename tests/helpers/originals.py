"""Originals, run once for all tests that hold something against them."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from helpers.models import DIMS
from memplan.runtime.compare_outputs import Comparison, compare_outputs
from memplan.runtime.inputs import synthesize
from memplan.runtime.measure import measure
from memplan.runtime.messages import Measurement, RunRequest
from memplan.simulate.opened import OpenModel, open_model

# One thread: ScatterND(reduction=add) adds in no fixed order with more. No timed runs.
THREADS, RUNS = 1, 0


@dataclass(frozen=True)
class Original:
    """A model, inputs for it, and a folder for what is made of it.

    ``folder`` and what lies in it are there as long as the object is.
    """

    path: Path
    dims: dict[str, int]
    model: OpenModel
    feeds: dict[str, Any]
    folder: TemporaryDirectory[str]

    def file(self, name: str) -> Path:
        """A file in the folder."""
        return Path(self.folder.name) / name

    def request(self, session: str) -> RunRequest:
        """How it runs: two profiled runs on one thread."""
        return RunRequest(session, "cpu", self.dims, runs=RUNS, threads=THREADS)

    @cached_property
    def inputs(self) -> Path:
        """The archive of its inputs."""
        path = self.file("inputs.npz")
        np.savez(path, **self.feeds)
        return path

    @cached_property
    def tuned(self) -> Measurement:
        """What it does in a tuned session; its outputs are in ``tuned.npz``."""
        return measure(self.path, self.request("tuned"), self.inputs, self.file("tuned.npz"))

    @cached_property
    def outputs(self) -> list[Any]:
        """Its outputs in a tuned session."""
        names = self.tuned.output_names
        with np.load(self.file("tuned.npz")) as archive:
            return [archive[f"o{index}"] for index in range(len(names))]

    def run(
        self, changed: onnx.ModelProto, inputs: Path | None = None
    ) -> tuple[Measurement, Comparison]:
        """What a changed model does in a tuned session, and how its outputs compare."""
        target, outputs = self.file("changed.onnx"), self.file("changed.npz")
        target.write_bytes(changed.SerializeToString())
        found = measure(target, self.request("tuned"), inputs or self.inputs, outputs)
        before = self.tuned.output_names
        return found, compare_outputs(self.file("tuned.npz"), outputs, before, found.output_names)


@lru_cache(maxsize=1)
def original(path: Path) -> Original:
    """The model in ``path``, as an original; tests of one model follow one another."""
    dims = DIMS.get(path.stem, {})
    model = open_model(path, dims)
    folder = TemporaryDirectory(prefix="memplan-tests-")
    return Original(path, dims, model, synthesize(model.graph), folder)
