"""What commands are given."""

from pathlib import Path

import pytest

from helpers import odd_models as odd
from helpers.odd_models import saved


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small training step in the folder where the program runs."""
    return saved(odd.training(), tmp_path)
