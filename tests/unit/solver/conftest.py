"""What solves is compiled first."""

import pytest

from memplan.solver.search.warm_up import warm_up


@pytest.fixture(scope="session", autouse=True)
def machine_code() -> None:
    """Compile before any time limit runs."""
    warm_up()
