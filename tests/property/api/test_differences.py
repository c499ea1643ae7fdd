"""Whatever two graphs are, the changes of their tensors sum to the difference of the peaks."""

from pathlib import Path

import onnx
from hypothesis import HealthCheck, given, settings

from helpers.effort import tries
from helpers.random_graphs import models
from helpers.renaming import renamed, sums
from memplan.api.analysis import Analysis, analyze_open
from memplan.api.diff.diffing import compare_analyses
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import opened
from memplan.simulate.session import session_kind

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck))


def analyzed(model: onnx.ModelProto) -> Analysis:
    """The nodes of the file: no process is begun to ask the runtime what it makes of them."""
    return analyze_open(opened(prepare(model, Path("model.onnx"), {})), session_kind("tuned"))


@settings(QUIET, max_examples=tries(100))
@given(models(), models())
def test_changes_sum_to_the_difference(a: onnx.ModelProto, b: onnx.ModelProto) -> None:
    old, new, other = map(analyzed, (a, b, renamed(a)))
    sums(compare_analyses(old, new))
    assert compare_analyses(old, other).changes == ()
