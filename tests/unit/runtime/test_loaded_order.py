"""What a tuned session holds, read from the file that the runtime saves, bodies among it."""

from pathlib import Path

from helpers.graphs import parse
from memplan.runtime.loaded_order import loaded_graph, outputs_by_index
from memplan.runtime.messages import RunRequest
from memplan.runtime.session_options import session_options
from memplan.runtime.sessions import open_session

BODIES = """t (float[4] h, float[5,4] xs, bool c) => (float[4] last, float[5,4] ys, float[4] z)
{ k = Abs(h)
  last, ys = Scan <num_scan_inputs = 1,
    body = b (float[4] s, float[4] x) => (float[4] n, float[4] y)
    { q = Add(s, k) n = Add(q, x) y = Tanh(n) }> (h, xs)
  z = If <then_branch = t1 () => (float[4] one) { one = Add(k, h) },
          else_branch = t2 () => (float[4] two) { two = Mul(k, k) }> (c) }"""


def test_nodes_come_with_what_their_bodies_read() -> None:
    held = loaded_graph(parse(BODIES), RunRequest(), None)
    assert [(n.op_type, list(n.input), list(n.output)) for n in held.graph.node] == [
        ("Abs", ["h"], ["k"]),
        ("Scan", ["h", "xs"], ["last", "ys"]),
        ("If", ["c"], ["z"]),
    ]
    inside = [[v.name for a in n.attribute for v in a.g.output] for n in held.graph.node]
    assert [sorted(names) for names in inside] == [[], ["k"], ["h", "k"]]


def test_outputs_by_index_go_into_bodies(tmp_path: Path) -> None:
    saved = tmp_path / "loaded.ort"
    options = session_options("tuned")
    options.optimized_model_filepath = str(saved)
    options.add_session_config_entry("session.save_model_format", "ORT")
    open_session(parse(BODIES).SerializeToString(), RunRequest(), options)
    found = outputs_by_index(saved)
    assert found[:6] == ("k", "last", "q", "n", "y", "z")
    assert sorted(found[6:]) == ["one", "two"]
