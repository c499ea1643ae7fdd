"""``rewrite --offload``: the file, the report, and what is refused."""

from pathlib import Path
from typing import Any

import onnx
import pytest

import memplan
from helpers.offloading import deep, linked
from helpers.reports import text_of
from memplan.api.rewrite.rewriting import Rewrite, RewriteOptions, rewrite
from memplan.errors import UsageError
from memplan.report.tell.rewrite import tell_rewrite
from memplan.units import parse_size


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "deep.onnx"
    onnx.save(deep(size=128), path)
    return path


def options(**more: Any) -> RewriteOptions:
    given = {"provider": "cuda", "optimize": "none", "offload": True, "strategy": "greedy", **more}
    return RewriteOptions(parse_size(given.pop("budget", "75%")), **given)


@pytest.fixture(scope="module")
def offloaded(model: Path) -> Rewrite:
    """With a link so fast that copies are cheaper than anything."""
    target = model.with_name("offloaded.onnx")
    with linked(400e12):
        return rewrite(model, options(), target)


def test_the_report_says_what_is_copied_and_that_it_is_experimental(offloaded: Rewrite) -> None:
    found = offloaded.offload
    assert found is not None
    assert found.out_bytes == sum(t.nbytes for t in found.tensors)
    assert found.back_bytes >= found.out_bytes
    assert 0 < found.host_bytes <= found.out_bytes
    assert offloaded.timeline.peak_with_workspace_bytes <= offloaded.budget_bytes
    text = text_of(tell_rewrite(offloaded), width=120)
    assert "offloaded (experimental)" in text
    assert "assumed at 400000.0 GB/s each way" in text
    assert "host memory for it" in text
    assert "EXPERIMENTAL" in text
    assert "a link of a test" in " ".join(text.split())
    assert found.note in offloaded.waterfall[-1].note


def test_json_has_all_of_it(offloaded: Rewrite) -> None:
    found: Any = offloaded.as_json()["offload"]
    assert offloaded.offload is not None
    assert found["experimental"] is True
    assert found["to_host_bytes"] == offloaded.offload.out_bytes
    assert found["to_device_bytes"] == offloaded.offload.back_bytes
    assert found["host_bytes"] == offloaded.offload.host_bytes
    assert found["link_bytes_per_second"] == 400e12
    assert found["link_source"] == "a link of a test"
    assert found["tensors"] == {
        t.name: {"nbytes": t.nbytes, "reads_back": t.reads_back} for t in offloaded.offload.tensors
    }


def test_the_price_of_a_copy_is_told_and_at_a_high_one_nothing_is_copied(
    model: Path,
) -> None:
    result = rewrite(model, options(device="a100"), dry_run=True)
    assert any("26.8 GB/s each way (PCIe 4.0 x16" in note for note in result.assumptions)
    with linked(100e6):
        result = rewrite(model, options(), dry_run=True)
    assert result.offload is None
    assert result.as_json()["offload"] is None
    (note,) = [note for note in result.assumptions if note.startswith("offload")]
    assert "nothing is offloaded" in note


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"provider": "cpu"}, "the CPU provider has no other memory"),
        ({"strategy": "segments"}, "does not know what is offloaded"),
        ({"strategy": "search{order=0}"}, "does not know what is offloaded"),
        ({"session": "default"}, "a tuned session alone keeps"),
    ],
)
def test_what_cannot_be_had_is_refused(model: Path, more: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        rewrite(model, options(**more), dry_run=True)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_the_file_is_read_again_and_counts_as_planned(offloaded: Rewrite) -> None:
    assert offloaded.output is not None
    found = memplan.analyze(offloaded.output, provider="cuda")
    assert found.timeline.dynamic_peak_bytes == offloaded.timeline.dynamic_peak_bytes
    assert found.as_json()["host_dynamic_peak_bytes"] == offloaded.offload.host_bytes  # type: ignore[union-attr]
    assert not any("never probed" in note for note in found.assumptions)


def test_on_the_cpu_it_is_counted_and_said_not_to_run(offloaded: Rewrite) -> None:
    assert offloaded.output is not None
    found = memplan.analyze(offloaded.output)
    assert found.timeline.dynamic_peak_bytes > offloaded.timeline.dynamic_peak_bytes
    assert any("the CPU provider does not run this file" in note for note in found.inexact)


def test_a_rewritten_file_can_be_rewritten_again(offloaded: Rewrite) -> None:
    assert offloaded.output is not None
    again = rewrite(offloaded.output, options(budget="100%", offload=False), dry_run=True)
    assert again.timeline.peak_bytes == offloaded.timeline.peak_bytes
    assert again.equivalence.proved


def refused(call: Any, *arguments: Any, **more: Any) -> None:
    with pytest.raises(UsageError, match="offloads tensors to the host") as caught:
        call(*arguments, **more)
    assert "--provider cuda" in caught.value.hint
    assert caught.value.exit_code == 2


def test_no_cpu_session_is_made_of_such_a_file(offloaded: Rewrite, model: Path) -> None:
    path = offloaded.output
    refused(memplan.validate, model, path, memplan.ValidateOptions(provider="cpu"))
    refused(memplan.load, path, providers=["CPUExecutionProvider"])
    refused(memplan.profile, path)
    refused(rewrite, path, "100%", dry_run=True)
