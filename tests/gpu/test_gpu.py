"""On a real GPU: the same predictions, results, and what `device` says. Skipped without one."""

from pathlib import Path

import pytest

from helpers.models import SAMPLES
from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
from memplan.api.validate.validating import ValidateOptions, validate
from memplan.runtime.cuda_device import describe_device
from memplan.units import parse_size


def test_device_starts_and_computes(gpu: str) -> None:
    device = describe_device()
    start = device.started("cuda")
    assert start.right
    assert not isinstance(device.gpu, str)
    assert 0 < (start.free_bytes or 0) <= device.gpu.total_bytes


@pytest.mark.parametrize("session", ["tuned", "default"])
@pytest.mark.parametrize("name", ["mlp_adamw", "gpt_dropout"])
def test_a_rewritten_model_keeps_its_budget(
    name: str, session: str, gpu: str, tmp_path: Path
) -> None:
    model, target = SAMPLES / f"{name}.onnx", tmp_path / "fits.onnx"
    options = RewriteOptions(parse_size("80%"), provider="cuda", session=session, time_limit=5.0)
    rewrite(model, options, target)
    proof = validate(model, target, ValidateOptions(provider="cuda", runs=2))
    assert proof.within_budget
    assert proof.rewritten.predicted_peak_bytes == proof.rewritten.measured_peak_bytes
    assert not proof.findings, proof.findings
