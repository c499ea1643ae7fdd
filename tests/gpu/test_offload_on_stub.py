"""Offloaded tensors on the real CUDA provider over the stub: order, streams, bytes on both sides.

Copies are real there, kernels do nothing: what is read back is what was copied out, and no more is
said of values or time.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import onnx
import pytest

import memplan
from helpers.cuda_runs import check as check_run
from helpers.cuda_runs import run
from helpers.half_steps import ALL
from helpers.models import SAMPLES
from helpers.offloading import deep, linked
from memplan.api.rewrite.rewriting import Rewrite, RewriteOptions, rewrite
from memplan.units import parse_size

SIZE = 128 * 128 * 4
RUN = """
import sys, numpy, memplan
session = memplan.load(sys.argv[1])
feeds = {v.name: numpy.zeros(v.shape, numpy.float32) for v in session.get_inputs()}
open(sys.argv[2], "w").close()
session.run(None, feeds)
"""


def offloaded(path: Path, target: Path, budget: str, dims: dict[str, int] | None = None) -> Rewrite:
    """The model rewritten; copies cost next to nothing, so that many are made."""
    options = RewriteOptions(
        parse_size(budget), provider="cuda", optimize="none", strategy="greedy", offload=True
    )
    with linked(900e12):
        result = rewrite(path, options, target, dims=dims)
    assert result.offload is not None
    return result


def check(path: Path, dims: dict[str, int]) -> None:
    """Order and provider of every node, and bytes on the device at every step."""
    ran = run(path, dims=dims)
    check_run(ran)
    assert not ran.model.devices.copies
    planned = [ran.model.graph.nodes[index].name for index in ran.timeline.order]
    assert planned == [node.name for node in ran.measured.nodes]
    assert ran.measured.cuda.counted_peak_bytes == ran.timeline.peak_bytes


@pytest.mark.nightly
def test_a_sample_model_is_exact_at_every_step(cuda_stub: Path, tmp_path: Path) -> None:
    """With a symbolic dimension: the file states no shapes of copies."""
    target = tmp_path / "offloaded.onnx"
    result = offloaded(SAMPLES / "gpt_dynamic.onnx", target, "70%", {"N": 2})
    check(target, {"N": 2})
    assert result.timeline.peak_with_workspace_bytes <= result.budget_bytes


def test_a_small_step_in_float16_is_exact_at_every_step(cuda_stub: Path, tmp_path: Path) -> None:
    path, target = tmp_path / "step.onnx", tmp_path / "offloaded.onnx"
    onnx.save(ALL["renewed"]("float16"), path)
    offloaded(path, target, "85%")
    check(target, {})


@pytest.mark.parametrize("dtype", ["float16", "bool", "int64", "double"])
def test_any_type_is_copied(dtype: str, cuda_stub: Path, tmp_path: Path) -> None:
    """A file by hand: out, back, and read on."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g ({dtype}[64,64] x) => ({dtype}[64,64] y)
    {{ [a] a = Concat<axis = 0>(x) [out] h = MemcpyToHost(a) [back] b = MemcpyFromHost(h)
       [y] y = Concat<axis = 0>(b) }}"""
    path = tmp_path / "copied.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    check(path, {})


@pytest.fixture
def toy(cuda_stub: Path, tmp_path: Path) -> tuple[Path, Rewrite]:
    path = tmp_path / "deep.onnx"
    onnx.save(deep(size=128), path)
    return path, offloaded(path, tmp_path / "offloaded.onnx", "65%")


def test_copies_run_in_the_stream_of_the_kernels_in_order_and_are_those_of_the_report(
    toy: tuple[Path, Rewrite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stream: no copy overtakes a kernel, so nothing is read before it is there."""
    _, result = toy
    assert result.offload is not None
    log = tmp_path / "log"
    monkeypatch.setenv("CUDA_STUB_LOG", str(log))
    subprocess.run(
        [sys.executable, "-c", RUN, str(result.output), str(log)], check=True, capture_output=True
    )
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len({stream for what, stream, _ in lines if what != "pinned"}) == 1
    graph = result.original.graph
    copied = [(what, int(nbytes)) for what, _, nbytes in lines if what in ("to_host", "to_device")]
    ops = {"MemcpyToHost": "to_host", "MemcpyFromHost": "to_device"}
    assert copied[len(graph.inputs) : -len(graph.outputs)] == [
        (ops[node.op_type], SIZE) for node in result.model.graph.node if node.op_type in ops
    ]
    moved: Counter[str] = Counter()
    for what, _, nbytes in lines:
        moved[what] += int(nbytes)
    fed = sum(graph.tensors[t].nbytes for t in graph.inputs)
    fetched = sum(graph.tensors[t].nbytes for t in graph.outputs)
    assert moved["to_host"] - fetched == result.offload.out_bytes
    assert moved["to_device"] - fed == result.offload.back_bytes
    assert moved["pinned"] >= result.offload.host_bytes  # an arena that grows in powers of two


def test_validate_proves_such_a_file(toy: tuple[Path, Rewrite]) -> None:
    path, result = toy
    assert result.output is not None
    found = memplan.validate(
        path, result.output, memplan.ValidateOptions(provider="cuda", runs=0, plain=False)
    )
    assert not found.findings
    assert found.order_kept
    assert found.rewritten.measured_peak_bytes == result.timeline.peak_bytes
