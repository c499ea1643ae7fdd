"""What a step takes in the graphs of the two roads, side by side."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import memplan
from memplan.ir.roles import Role

WARM_UP, ROUNDS = 5, 101


class Runner:
    """A captured graph in a tuned session of one thread."""

    def __init__(self, capture: memplan.Capture, feeds: Mapping[str, Any], path: Path) -> None:
        import onnx
        import onnxruntime

        onnx.save(capture.model, path)
        settings = memplan.session_options(path)
        settings.intra_op_num_threads = 1
        settings.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(
            path, settings, providers=["CPUExecutionProvider"]
        )
        states = set(capture.contract.named(Role.OPTIMIZER_STATE))
        zeros = {
            value.name: np.zeros(value.shape, np.float32)
            for value in self.session.get_inputs()
            if value.name in states
        }
        self.feeds = {**zeros, **feeds}
        self.seconds: list[float] = []

    def step(self) -> None:
        """Run it once, and note the seconds of CPU: others' work on the machine is not in them."""
        begin = time.thread_time()
        self.session.run(None, self.feeds)
        self.seconds.append(time.thread_time() - begin)


def times(captures: Mapping[str, memplan.Capture], batch: Mapping[str, Any]) -> dict[str, object]:
    """Medians of ``captures`` by road, run in turn (a, b, a, b, …), and their quotient."""
    load = os.getloadavg()[0]
    with TemporaryDirectory() as folder:
        runners = {
            road: Runner(capture, batch, Path(folder) / f"{road}.onnx")
            for road, capture in captures.items()
        }
        for _ in range(WARM_UP + ROUNDS):
            for runner in runners.values():
                runner.step()
    medians = {r: statistics.median(runner.seconds[WARM_UP:]) for r, runner in runners.items()}
    return {
        "rounds": ROUNDS,
        "load": round(load, 1),
        **{f"{road}_ms": round(seconds * 1e3, 4) for road, seconds in medians.items()},
        "joint_to_grad": round(medians["joint"] / medians["grad"], 3),
    }
