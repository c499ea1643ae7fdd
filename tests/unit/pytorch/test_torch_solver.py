"""A compiled step within a budget: the same bits, the bytes that were told, no way around."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memplan
from memplan.errors import InfeasibleError, ModelError, RuntimeUnavailableError, UsageError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow  # torch.compile takes seconds, however small the model
EFFORT = 4


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(3)


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Layers of all kinds: normalised with state, branches, random numbers, views."""

    def __init__(self, width: int = 32, depth: int = 3, rate: float = 0.2) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.layers = torch.nn.ModuleList(linear(width, width) for _ in range(depth))
        self.norm = torch.nn.BatchNorm1d(width)
        self.drop = torch.nn.Dropout(rate)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            left, right = torch.nn.functional.gelu(layer(x)).chunk(2, -1)
            x = x + self.drop(torch.cat([right.tanh(), left.sigmoid()], -1))
        return self.end(self.norm(x))

    def end(self, x: Any) -> Any:
        return x.square().mean()


class Bare(Net):
    """Without kernels that take scratch memory: dropout, products with a number, norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = self.drop = torch.nn.Identity()

    def end(self, x: Any) -> Any:
        return x.tanh().sum()


def step(run: Callable[..., Any], net: Any, *inputs: Any) -> list[Any]:
    """The loss, the gradients and the buffers of one step with a seed of its own."""
    torch.manual_seed(11)
    net.zero_grad()
    loss = run(*inputs)
    loss.backward()
    state = [each.clone() for each in net.buffers()]
    return [loss.detach(), *(each.grad.clone() for each in net.parameters()), *state]


def taken(make: Callable[[], Any], *inputs: Any, budget: str, **options: Any) -> Any:
    """The solver of a step at ``budget`` whose results are those of eager PyTorch, bit for bit."""
    eager = make()
    planned = make()
    planned.load_state_dict(eager.state_dict())
    solver = memplan.torch_solver(budget, backend="aot_eager", effort=EFFORT, **options)
    expected = step(eager, eager, *inputs)
    got = step(torch.compile(planned, backend=solver.backend), planned, *inputs)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    return solver


def test_gradients_are_those_of_eager_and_the_budget_holds() -> None:
    x = torch.randn(512, 32)
    peaks = []
    for budget in ("100%", "80%", "min"):
        torch._dynamo.reset()
        report = taken(Net, x, budget=budget).report
        assert report.predicted_peak_bytes <= report.budget_bytes
        assert report.bound_fraction <= report.extra_cost_fraction + 1e-9
        peaks.append(report.predicted_peak_bytes)
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[2] < 0.8 * peaks[0]


def test_random_operators_run_once() -> None:
    report = taken(Net, torch.randn(256, 32), budget="min").report
    random = [name for name, why in report.refusals.items() if why == "draws random numbers"]
    assert len(random) == 3
    assert report.recomputed
    assert not {each.tensor for each in report.recomputed} & set(random)


def test_what_was_predicted_is_allocated(tmp_path: Path) -> None:
    """PyTorch's own allocations, in order: the peak is that of the report, to the byte."""
    from torch.profiler import ProfilerActivity, profile

    net, x = Bare(), torch.randn(512, 32)
    for budget in ("100%", "70%"):
        torch._dynamo.reset()
        solver = memplan.torch_solver(budget, backend="aot_eager", effort=EFFORT)
        run = torch.compile(net, backend=solver.backend)
        step(run, net, x)
        net.zero_grad(set_to_none=True)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            loss = run(x)
            loss.backward()
        found.export_chrome_trace(str(tmp_path / "trace.json"))
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        told = [each for each in events if each.get("name") == "[memory]"]
        told.sort(key=lambda each: each["ts"])
        begin = told[0]["args"]["Total Allocated"] - told[0]["args"]["Bytes"]
        peak = max(each["args"]["Total Allocated"] for each in told) - begin
        report = solver.report
        assert peak == report.predicted_peak_bytes - report.resident_bytes
        del loss  # or it goes while the next one is measured


def test_sizes_may_be_symbols() -> None:
    net = Net()
    solver = memplan.torch_solver("80%", backend="aot_eager", effort=EFFORT)
    run = torch.compile(net, backend=solver.backend, dynamic=True)
    for rows in (128, 192):
        x = torch.randn(rows, 32)
        assert all(map(torch.equal, step(net, net, x)[:3], step(run, net, x)[:3]))
    assert solver.report.symbolic
    assert "sizes are symbolic" in str(solver.report)


def test_below_the_floor_is_an_error() -> None:
    net = Net()
    solver = memplan.torch_solver(5000, backend="aot_eager", effort=EFFORT)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        step(torch.compile(net, backend=solver.backend), net, torch.randn(64, 32))
    inner = caught.value.inner_exception
    assert isinstance(inner, InfeasibleError)
    assert "below the floor" in str(inner)
    assert "resident" in (inner.hint or "")
    with pytest.raises(ModelError, match="no step has been compiled"):
        _ = solver.report


def test_a_step_in_two_graphs_is_refused() -> None:
    class Broken(Net):
        def forward(self, x: Any) -> Any:
            y = self.layers[0](x).tanh()
            torch._dynamo.graph_break()
            return self.layers[1](y).tanh().mean()

    net = Broken()
    solver = memplan.torch_solver("100%", backend="aot_eager", effort=EFFORT)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="several graphs"):
        step(torch.compile(net, backend=solver.backend), net, torch.randn(64, 32))


def test_without_gradients_nothing_is_planned() -> None:
    net, x = Net().eval(), torch.randn(64, 32)
    solver = memplan.torch_solver("100%", backend="aot_eager")
    run = torch.compile(net, backend=solver.backend)
    with torch.no_grad():
        assert torch.equal(run(x), net(x))
    assert not solver.reports


def test_the_same_options_have_the_same_uuid() -> None:
    def uuid(**options: Any) -> Any:
        return memplan.torch_solver("6GB", **options).uuid()

    assert uuid() == uuid()
    assert len({uuid(), uuid(seed=1), uuid(effort=2), uuid(backend="aot_eager")}) == 4


def test_the_report_as_json_and_as_text() -> None:
    report = taken(Net, torch.randn(256, 32), budget="70%").report
    found = json.loads(json.dumps(report.as_json()))
    assert found["schema"] == "memplan.torch_plan/1"
    assert found["predicted_peak_bytes"] <= found["budget_bytes"] < found["baseline_peak_bytes"]
    kept = [each for each in found["tensors"] if each["decision"] == "kept"]
    assert sum(each["nbytes"] for each in kept) == found["saved_bytes"]
    assert {each["module"] for each in kept} & {"layers.0", "layers.1", "drop"}
    text = str(report)
    assert "never recomputed: 3 random operators" in text
    assert "saved for backward" in text


def test_effort_gives_the_same_plan_twice() -> None:
    first, second = (
        taken(Net, torch.randn(256, 32), budget="70%").report.as_json() for _ in range(2)
    )
    first.pop("planning_seconds"), second.pop("planning_seconds")
    assert first == second


def test_a_run_that_nobody_reads_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch drops it from the graphs: neither its time nor its bytes are in the report."""
    from dataclasses import replace

    import numpy as np

    from memplan.pytorch import solver_plan

    search = solver_plan.checked

    def with_doubles(strategy: Any, problem: Any, *rest: Any) -> Any:
        outcome = search(strategy, problem, *rest)
        again = set(problem.arrays.maker.tolist())
        order = problem.order.tolist()
        place = next(
            p for p, node in enumerate(order) if node in again and problem.arrays.cost[node]
        )
        sequence = np.insert(problem.order, place, order[place])
        return replace(outcome, decision=replace(outcome.decision, sequence=sequence))

    monkeypatch.setattr(solver_plan, "checked", with_doubles)
    report = taken(Net, torch.randn(128, 32), budget="100%").report
    assert report.extra_cost_fraction == 0
    assert not report.recomputed
    assert report.predicted_peak_bytes == report.baseline_peak_bytes


def test_a_wrong_cut_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each half is compared with the joint graph: an operator that runs twice is found."""
    from memplan.errors import MemplanError
    from memplan.pytorch import solver_joint, solver_plan

    draws = solver_joint.draws
    monkeypatch.setattr(solver_joint, "draws", lambda node: False)
    cut = solver_plan.split

    def with_truth(module: Any, joint: Any, sequence: Any, outputs: int) -> Any:
        from dataclasses import replace

        ops = tuple(
            replace(op, refusal="draws random numbers") if draws(op.node) else op
            for op in joint.operators
        )
        twice = [i for i, op in enumerate(ops) if draws(op.node)][:1]
        at = sequence.index(len(ops))
        sequence = [*sequence[: at + 1], *twice, *sequence[at + 1 :]]
        return cut(module, replace(joint, operators=ops), sequence, outputs)

    monkeypatch.setattr(solver_plan, "split", with_truth)
    net = Net()
    solver = memplan.torch_solver("100%", backend="aot_eager", effort=EFFORT)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        step(torch.compile(net, backend=solver.backend), net, torch.randn(64, 32))
    assert isinstance(caught.value.inner_exception, MemplanError)


@pytest.mark.parametrize(
    ("budget", "options", "message"),
    [
        ("much", {}, "is not a size"),
        ("1GB", {"backend": "eager"}, "unknown backend 'eager'"),
        ("1GB", {"device": "abacus"}, "unknown device 'abacus'"),
        ("1GB", {"time_limit": 0.0}, "positive time limit"),
    ],
)
def test_bad_arguments(budget: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        memplan.torch_solver(budget, **options)


def test_another_pytorch_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "memplan.pytorch.torch_solver", raising=False)
    monkeypatch.delattr("torch._inductor.custom_graph_pass.CustomPartitionerFn")
    missing = r"does not fit PyTorch \d.*CustomPartitionerFn"
    with pytest.raises(RuntimeUnavailableError, match=missing):
        memplan.torch_solver("1GB")
