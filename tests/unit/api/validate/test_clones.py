"""The nodes of a run: their order, and recomputed ones among them."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from helpers.graphs import TUNED, open_text, parse
from helpers.offloading import CUDA
from helpers.running_inside import without_children
from memplan.api.validate import validating
from memplan.api.validate.clones import clone_findings, order_kept
from memplan.api.validate.validating import ValidateOptions, validate
from memplan.runtime.messages import Measurement, NodeRun
from memplan.simulate.opened import on_devices
from memplan.simulate.timeline import simulate

TEXT = """g (float[4] x) => (float[4] y) {
  [a] a = Exp(x)  [b] b = Neg(a)  [again] c = Exp(x)  [d] y = Mul(b, c) }"""
NOTHING = Measurement((), (), 0, 0, 0, 0)


def measured(*names: str, elsewhere: str = "") -> Measurement:
    return replace(
        NOTHING,
        nodes=tuple(NodeRun(n, "", "Other" if n == elsewhere else "CPU", 0) for n in names),
    )


def test_another_order_is_seen() -> None:
    model = open_text(TEXT)
    timeline = simulate(model.graph, TUNED)
    assert order_kept(model, timeline, measured("a", "b", "again", "d"))
    assert not order_kept(model, timeline, measured("a", "again", "b", "d"))
    assert not order_kept(model, timeline, measured("a", "b", "d"))


COPIED = """g (float[4] x) => (float[4] y) {
  [a] a = Exp(x)  [out] h = MemcpyToHost(a)  [b] b = Neg(x)  [back] c = MemcpyFromHost(h)
  [d] y = Mul(b, c) }"""


def test_copies_of_the_file_have_their_place_in_the_order() -> None:
    model = on_devices(open_text(COPIED), CUDA)
    timeline = simulate(model.graph, CUDA, model.devices)
    assert order_kept(model, timeline, measured("a", "out", "b", "back", "d"))
    assert not order_kept(model, timeline, measured("a", "b", "out", "back", "d"))
    assert not order_kept(model, timeline, measured("a", "b", "d"))


def test_copies_that_the_runtime_adds_have_none() -> None:
    """Their names are its own (Tan has no CUDA kernel)."""
    model = on_devices(open_text(TEXT.replace("Neg(a)", "Tan(a)")), CUDA)
    assert len(model.devices.copies) == 2
    timeline = simulate(model.graph, CUDA, model.devices)
    planned = [model.graph.nodes[i] for i in timeline.order]
    names = [n.name if n.id not in model.devices.copies else f"Memcpy{n.id}" for n in planned]
    assert order_kept(model, timeline, measured(*names))


@pytest.mark.parametrize(
    ("ran", "said"),
    [
        (measured("a", "b", "again", "d"), ""),
        (measured("a", "b", "d"), "1 recomputed node did not run"),
        (measured("a", "again", "b", "d"), "1 recomputed node ran earlier than planned"),
        (
            measured("a", "b", "again", "d", elsewhere="again"),
            "1 recomputed node ran on another provider",
        ),
    ],
    ids=["right", "gone", "early", "moved"],
)
def test_what_is_wrong_with_recomputed_nodes(ran: Measurement, said: str) -> None:
    proto = parse(TEXT)
    clone = next(n for n in proto.graph.node if n.name == "again")
    onnx.helper.set_metadata_props(clone, {"memplan.role": "recompute", "memplan.of": "a"})
    model = open_text(proto)
    found = clone_findings(model, simulate(model.graph, TUNED), ran)
    assert [text[: len(said)] for text in found] == ([said] if said else [])


def test_another_order_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_children(monkeypatch)
    onnx.save(parse(TEXT), tmp_path / "m.onnx")
    options = ValidateOptions(runs=1, plain=False)
    assert validate(tmp_path / "m.onnx", tmp_path / "m.onnx", options).proved
    monkeypatch.setattr(validating, "order_kept", lambda *_: False)
    found = validate(tmp_path / "m.onnx", tmp_path / "m.onnx", options)
    assert [f.part for f in found.findings] == ["nodes"]
    assert not found.proved
    assert "node order NOT as planned" in "\n".join(found.details)
