"""Passes on real and random graphs: what stays keeps its bits, peaks are as simulated."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.graphs import parse
from helpers.models import SAMPLES, each, runnable_models
from helpers.originals import original
from helpers.plans import outputs_of
from helpers.random_graphs import models
from memplan.api.validate.same_interface import without_inputs
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.ir.reach import trained_outputs
from memplan.passes.elide import Elide
from memplan.passes.graph_pass import Pass
from memplan.passes.manager import run_passes
from memplan.passes.masks import Masks
from memplan.passes.order import Order
from memplan.passes.prune import Prune
from memplan.passes.release import Release
from memplan.runtime.inputs import synthesize
from memplan.shapes.prepare import prepare as prepare_model
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

TUNED = session_kind("tuned")


def half(model: OpenModel) -> tuple[str, ...]:
    """Names of every second trained parameter."""
    owners = trained_outputs(model.graph, model.phases)
    names = sorted({model.graph.tensors[p].name for found in owners.values() for p in found})
    return tuple(name.replace("[", "[[]") for name in names[::2])


def all_passes(wrt: tuple[str, ...] = ()) -> list[Pass]:
    return [Elide(), Prune(wrt), Release(), Masks(), Order(rounds=2)]


@pytest.mark.nightly
@pytest.mark.parametrize("path", each(runnable_models("gpt_dropout")))
def test_real_training_graphs(path: Path) -> None:
    source = original(path)
    model, names = source.model, set(source.tuned.output_names)
    before = simulate(model.graph, TUNED)
    # The sample models are large; narrowed, they show all passes at once.
    for wrt in [half(model)] if path.parent == SAMPLES else [(), half(model)]:
        steps = run_passes(all_passes(wrt), model, before)
        gone = tuple(name for step in steps for name in step.removed_inputs)
        after = steps[-1]
        fewer = without_inputs(source.inputs, source.feeds, gone)
        measured, compared = source.run(after.model.prepared.proto, fewer)
        assert measured.dynamic_bytes == after.timeline.dynamic_peak_bytes
        assert after.timeline.peak_with_workspace_bytes <= before.peak_with_workspace_bytes
        assert compared.bitwise, compared
        removed = {name for step in steps for name in step.removed_outputs}
        assert names - set(measured.output_names) == removed
        assert bool(removed) == bool(wrt)


# --- Random graphs ------------------------------------------------------------------------------

SHAPE = (4, 33)
ACTS = ("Relu({})", "Clip({}, zero, half)", "LeakyRelu({})", "Max({}, zero)", "Min({}, half)")
TESTS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
SPECIALS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 0.25, -1.5, 1e-45, 3e38], np.float32)


@st.composite
def masked(draw: st.DrawFn) -> onnx.ModelProto:
    """Activations, splits of which one part is read, and a gradient behind one or two comparisons
    of what every activation read."""
    lines, value, read = [], "x", list[str]()
    for k in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            a, b = f"a{k}", f"b{k}"
            lines.append(f"c{k} = Concat <axis = 1> ({value}, {value})")
            lines.append(f"{a}, {b} = Split <axis = 1, num_outputs = 2> (c{k})")
            value = draw(st.sampled_from((a, b)))
        read.append(value)
        lines.append(f"v{k} = {draw(st.sampled_from(ACTS)).format(value)}  s{k} = Sin(v{k})")
        value = f"s{k}"
    lines.append(f"g = Neg({value})")
    gradient = "g"
    for k, name in reversed([*enumerate(read)]):
        for turn in range(draw(st.integers(1, 2))):
            bound = draw(st.sampled_from(("zero", "half", "none")))
            pair = draw(st.permutations((name, bound)))
            new = f"g{k}_{turn}"
            lines.append(f"m{new} = {draw(st.sampled_from(TESTS))}({pair[0]}, {pair[1]})")
            lines.append(f"{new} = Where(m{new}, {gradient}, zero)")
            gradient = new
    size = ",".join(map(str, SHAPE))
    return parse(
        f"masked (float[{size}] x) => (float[{size}] {value}, float[{size}] {gradient}) "
        f"<float zero = {{0}}, float none = {{-0.0}}, float half = {{0.5}}> {{ {' '.join(lines)} }}"
    )


def special(seed: int) -> dict[str, np.ndarray]:
    """Numbers, with NaN, infinities, both zeros and ties among them."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(SHAPE).astype(np.float32)
    places = random.random(SHAPE) < 0.3
    x[places] = random.choice(SPECIALS, places.sum())
    return {"x": x}


@settings(
    max_examples=tries(350),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.one_of(models(longest=30), masked()), st.integers(0, 2**32 - 1))
def test_random_graphs_keep_their_bits_and_no_peak_rises(model: onnx.ModelProto, seed: int) -> None:
    before = opened(prepare_model(model, Path("random.onnx"), {}))
    timeline = simulate(before.graph, TUNED)
    steps = run_passes(all_passes(), before, timeline)
    peaks = [each.peak_with_workspace_bytes for each in (timeline, *(s.timeline for s in steps))]
    assert peaks == sorted(peaks, reverse=True)
    after = steps[-1].model.prepared.proto
    proof = prove(reference_side(before.prepared), Side(after, Path()))
    assert proof.proved, proof.reason
    feeds = special(seed) if model.graph.name == "masked" else synthesize(before.graph)
    reference, _ = outputs_of(model, feeds)
    outputs, result = outputs_of(after, feeds)
    dynamic = [node.nbytes - result.base_bytes for node in result.nodes]
    assert dynamic == steps[-1].timeline.dynamic.tolist()
    for a, b in zip(reference, outputs, strict=True):
        assert a.tobytes() == b.tobytes()
