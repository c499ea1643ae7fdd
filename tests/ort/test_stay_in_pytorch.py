"""*Stay in PyTorch* of ``docs/pytorch.md`` as it stands: its file, its commands, its loops."""

import copy
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from helpers.models import ROOT
from helpers.pages import files
from memplan_cli.main import main

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from torch.profiler import ProfilerActivity, profile  # noqa: E402

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGE = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
BLOCKS = BLOCK.findall(PAGE.partition("\n## Stay in PyTorch\n")[2])


def peak_of(step: Any) -> int:
    """The most bytes that PyTorch has allocated at once in ``step``, by its profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as done:
        step()
    held = most = 0
    events = done.profiler.kineto_results.events()
    told = (event for event in events if event.name() == "[memory]")
    for event in sorted(told, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def gradients(model: Any, loss: Any, batch: Any) -> dict[str, Any]:
    model.zero_grad()
    torch.manual_seed(2)
    loss(model, *batch).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_the_page_runs_and_the_policy_keeps_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training, compiling = (text for kind, text in BLOCKS if kind == "python")
    (tmp_path / "gpt.py").write_text(files("pytorch.md")["gpt.py"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (commands,) = (text for kind, text in BLOCKS if not kind)
    for line in commands.splitlines():
        command = shlex.split(line)[1:]
        quick = ["--effort", "2"] if command[0] == "rewrite" else []
        assert main([*command, *quick]) == 0, capsys.readouterr().err

    scope: dict[str, Any] = {}
    torch.manual_seed(1)
    exec(compile(training, "training", "exec"), scope)
    assert scope["value"].item() < 5.0  # of 5.5 at first
    exec(compile(compiling, "compiling", "exec"), scope)
    assert scope["solver"].report is not None

    plain = scope["Gpt"]()
    policy = runpy.run_path("policy.py")
    planned = policy["checkpoint_as_planned"](copy.deepcopy(plain))
    batch = (scope["window"][:, :-1], scope["window"][:, 1:])
    expected, found = (gradients(model, scope["loss"], batch) for model in (plain, planned))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    plain.zero_grad()
    planned.zero_grad()
    before, after = (
        peak_of(lambda model=model: scope["loss"](model, *batch).backward())
        for model in (plain, planned)
    )
    assert after < 0.6 * before
