"""Dropouts whose mask nobody reads are drawn with the runtime's optimizer, too."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.graphs import parse
from helpers.sessions import outputs
from memplan.autodiff.finished_graph import without_known_faults

TEXT = """
<ir_version: 10, opset_import: ["" : 22]>
graph (float[100, 10] x) => (float[100, 10] y, bool[100, 10] m)
<float ratio = {0.25}, bool on = {1}, bool off = {0}>
{
  a = Dropout <seed = 7> (x, ratio, on)
  b, m = Dropout <seed = 8> (x, ratio, on)
  c = Dropout (x, ratio, off)
  d = Sub (c, c)
  e = Mul (b, d)
  y = Add (a, e)
}
"""


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_an_unread_mask_is_drawn(level: str) -> None:
    model = parse(TEXT)
    without_known_faults(model)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds[:3] == ["Dropout", "Where", "Dropout"]
    assert kinds.count("Dropout") == 3
    y = outputs(model, {"x": np.full((100, 10), 3, np.float32)}, level)["y"]
    assert set(np.unique(y)) == {0.0, 4.0}
    assert 0.2 < (y == 0).mean() < 0.3
