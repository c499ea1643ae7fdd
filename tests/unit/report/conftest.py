"""Analyses of real models."""

from pathlib import Path

import pytest

from helpers.models import DIMS, SAMPLES, sample_models
from memplan.api.analysis import Analysis, analyze


@pytest.fixture(scope="module", params=["tuned", "default"])
def session(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=sample_models(), ids=lambda path: path.stem)
def analysis(request: pytest.FixtureRequest, session: str) -> Analysis:
    path: Path = request.param
    return analyze(path, DIMS.get(path.stem), session=session)


@pytest.fixture(scope="module")
def mlp() -> Analysis:
    return analyze(SAMPLES / "mlp_adamw.onnx")
