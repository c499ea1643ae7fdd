"""A graph's random nodes take the draws of an eager step."""

import numpy as np
import onnx
import pytest
from onnx import helper

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from memplan.api.capture.trial import _feed_draws
from memplan.autodiff.counter_dropouts import CounterDropout, from_counter
from memplan.pytorch.draws import NORMAL, UNIFORM, TorchDraw
from memplan.runtime.messages import RunRequest
from memplan.runtime.session_options import session_options
from memplan.runtime.sessions import open_session, run_step


def drawn(family: str, shape: tuple[int, ...], number: int = 0) -> TorchDraw:
    return TorchDraw(family, shape, "operator", (0, number))


def graph(text: str) -> onnx.GraphProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    inferred: onnx.GraphProto = onnx.shape_inference.infer_shapes(model).graph
    return inferred


def run(made: onnx.GraphProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = session_options("default")
    session = open_session(model.SerializeToString(), RunRequest(session="default"), options)
    return list(run_step(session, feeds))


ONE = {
    "Dropout(x, ratio, yes)": (UNIFORM, lambda u, x: np.where(u > 0.25, x / 0.75, 0)),
    "Bernoulli(p)": (UNIFORM, lambda u, x: (1 - u < 0.25).astype(np.float32)),
    "RandomUniformLike<low: float = -1.0, high: float = 3.0>(x)": (UNIFORM, lambda u, x: 4 * u - 1),
    "RandomUniform<shape: ints = [2, 3]>()": (UNIFORM, lambda u, x: u),
    "RandomNormalLike<mean: float = 1.0, scale: float = 2.0>(x)": (
        NORMAL,
        lambda z, x: 2 * z + 1,
    ),
    "RandomNormal<shape: ints = [2, 3]>()": (NORMAL, lambda z, x: z),
}


@pytest.mark.parametrize("node", ONE)
def test_what_a_random_node_computes_from_its_draw(node: str) -> None:
    family, wanted = ONE[node]
    made = graph(
        f"""g (float[2, 3] x) => (float[2, 3] y)
        <float ratio = {{0.25}}, bool yes = {{1}}, float[2, 3] p = {{0.25, 0.25, 0.25, 0.25, 0.25, 0.25}}>
        {{ y = {node} }}"""  # noqa: E501
    )
    draw = drawn(family, (2, 3))
    missing, places = _feed_draws(made, [draw], {})
    assert (missing, list(places)) == ("", [0])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = run(made, {"x": x, places[0]: draw.values()})
    np.testing.assert_allclose(found, wanted(draw.values(), x), rtol=1e-6)


def test_a_mask_of_a_counter_takes_the_draw() -> None:
    made = graph(
        """g (float[2, 3] x) => (float[2, 3] y, bool[2, 3] m) <float ratio = {0.25}, bool yes = {1}>
        { y, m = Dropout(x, ratio, yes) }"""
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    counted = from_counter(model, CounterDropout()).model.graph
    draw = drawn(UNIFORM, (2, 3))
    missing, places = _feed_draws(counted, [draw], {})
    assert (missing, list(places)) == ("", [0])
    x = np.ones((2, 3), np.float32)
    y, mask, _ = run(counted, {"x": x, places[0]: draw.values()})
    np.testing.assert_array_equal(mask, draw.values() > 0.25)
    np.testing.assert_array_equal(y, mask / np.float32(0.75))


TWO = """g (float[N, 3] x, float[2] z) => (float[N, 3] y, float[2] w) <float ratio = {0.5}, bool yes = {1}>
    { y = Dropout(x, ratio, yes)
      w = RandomUniformLike(z) }"""  # noqa: E501


def test_draws_meet_by_shape_where_shapes_are_known() -> None:
    draws = [drawn(UNIFORM, (2,), 0), drawn(UNIFORM, (4, 3), 1)]
    made = graph(TWO)
    missing, places = _feed_draws(made, draws, {"N": 4})
    assert missing == ""
    read = {name for node in made.node for name in node.input}
    assert set(places.values()) <= read
    x, z = np.ones((4, 3), np.float32), np.zeros(2, np.float32)
    feeds = {places[k]: draw.values() for k, draw in enumerate(draws)}
    _, w = run(made, {"x": x, "z": z, **feeds})
    np.testing.assert_array_equal(w, draws[0].values())


@pytest.mark.parametrize(
    "draws",
    [
        [],
        [drawn(UNIFORM, (4, 3))],
        [drawn(UNIFORM, (4, 3)), drawn(NORMAL, (2,))],
        [drawn(UNIFORM, (4, 3)), drawn(UNIFORM, (3,))],
        [drawn(UNIFORM, (4, 3)), drawn(UNIFORM, (2,)), drawn(UNIFORM, (2,))],
    ],
)
def test_other_draws_are_said(draws: list[TorchDraw]) -> None:
    missing, places = _feed_draws(graph(TWO), draws, {"N": 4})
    assert "the graph 2 times" in missing
    assert places == {}


def test_what_does_not_draw_is_left_alone() -> None:
    made = graph(
        """g (float[2] x) => (float[2] y, float[2] w) <float ratio = {0.5}, float none = {0}, bool yes = {1}>
        { y = Dropout(x, ratio)
          w = Dropout(x, none, yes) }"""  # noqa: E501
    )
    before = made.SerializeToString()
    assert _feed_draws(made, [], {}) == ("", {})
    assert made.SerializeToString() == before


def test_randomness_that_cannot_be_given_is_said() -> None:
    made = graph(
        """g (float[1, 4] x) => (int32[1, 2] y) { y = Multinomial<sample_size: int = 2>(x) }"""
    )
    assert "Multinomial" in _feed_draws(made, [], {})[0]
