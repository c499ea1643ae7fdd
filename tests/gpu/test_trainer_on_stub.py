"""On CUDA, a step of the trainer copies the batch in and the loss out, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.networks import batches, training_step

CHILD = """
import ctypes, json, sys
import numpy as np
stub = ctypes.CDLL("libcuda_stub.so")
names = ("to_device", "to_device_bytes", "to_host", "to_host_bytes")
def counted():
    return [ctypes.c_ulonglong.in_dll(stub, f"stub_{name}").value for name in names]
from memplan import Trainer
trainer = Trainer(sys.argv[1], provider="cuda", measure=True)
with np.load(sys.argv[2]) as data:
    batch = dict(data)
found = []
for _ in range(4):
    before = counted()
    trainer.step(batch)
    found.append([after - first for after, first in zip(counted(), before)])
print(json.dumps({
    "copies": found,
    "knobs": sum(slot.role == "hyperparameter" for slot in trainer.file.slots.values()),
    "in_place": len(trainer.placing.in_place),
    "reasons": trainer.placing.reasons,
    "measured": trainer.measured_peaks(),
    "predicted": trainer.predicted().dynamic_bytes,
}))
"""


@pytest.mark.parametrize("family", ["mlp", "gpt"])
def test_a_step_copies_the_batch_and_the_loss(family: str, cuda_stub: Path, tmp_path: Path) -> None:
    model = training_step(family)
    onnx.save(model, tmp_path / "step.onnx")
    (batch,) = batches(model, 1)
    np.savez(tmp_path / "batch.npz", **batch)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, "step.onnx", "batch.npz"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    batch_bytes = sum(array.nbytes for array in batch.values())
    assert found["copies"][1:] == [[len(batch), batch_bytes, 1, 4]] * 3
    first = found["copies"][0]  # the learning rate is copied where it changes
    assert first == [len(batch) + found["knobs"], batch_bytes + 4 * found["knobs"], 1, 4]
    assert found["in_place"] > 10
    assert found["measured"] == [found["predicted"]] * 4
