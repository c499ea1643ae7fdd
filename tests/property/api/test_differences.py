"""Whatever two graphs are, the changes of their tensors sum to the difference of the peaks."""

from __future__ import annotations

import onnx
from hypothesis import HealthCheck, given, settings

from helpers.effort import tries
from helpers.random_graphs import models
from helpers.renaming import renamed, sums
from memplan.api.diff.diffing import diff

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(QUIET, max_examples=tries(100))
@given(models(), models())
def test_changes_sum_to_the_difference(a: onnx.ModelProto, b: onnx.ModelProto) -> None:
    sums(diff(a, b))
    assert diff(a, renamed(a)).changes == ()
