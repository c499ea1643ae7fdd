"""A page is written to a terminal or a CI log, too: names steer neither."""

from __future__ import annotations

import re

import pytest

from helpers.graphs import parse
from memplan.api.analysis import analyze
from memplan.report.html.page import page as page_of
from memplan.report.tell.analysis import tell_analysis

HOSTILE = "n\x1b]0;title\x07\x1b[2J\n::error file=x.py::told\r\u202eleft\u2028\x9b31m"
FORWARD = "g (float[4, 8] x, float[8, 3] w) => (float[4, 3] y) { [n] h = MatMul(x, w) y = Relu(h) }"
STEERS = re.compile(r"^::|[^\x20-\x7e\n\u00a0-\uffff]|[\u2028-\u202e\u2066-\u2069]", re.MULTILINE)


@pytest.mark.parametrize("what", ["node", "tensor", "module", "operator"])
def test_a_page_steers_no_terminal_and_no_log(what: str) -> None:
    model = parse(FORWARD)
    node = model.graph.node[0]
    if what == "node":
        node.name = HOSTILE
    elif what == "tensor":
        node.output[0] = model.graph.node[1].input[0] = HOSTILE
    elif what == "module":
        node.metadata_props.add(key="memplan.module", value=HOSTILE)
    else:
        node.op_type, node.domain = HOSTILE, "theirs"
        model.opset_import.add(domain="theirs", version=1)
        value = model.graph.value_info.add(name=node.output[0])
        value.type.CopyFrom(model.graph.output[0].type)
    page = page_of(tell_analysis(analyze(model)))
    assert not STEERS.search(page)
    assert "]0;title" in page
