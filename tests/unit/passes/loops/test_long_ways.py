"""What leads from a forward loop to a backward one may be long, and made to take forever."""

from __future__ import annotations

from helpers.graphs import open_text
from memplan.api.analysis import analyze_open
from memplan.simulate.session import session_kind

SCANS = """
g (float[3,4] x, float[4] z) => (float[4] bs, float[4] fs)
  <int64[1] i0 = {{0}}, int64[1] i4 = {{4}}, int64[1] i1 = {{1}}>
{{
  fs, st = Scan <num_scan_inputs = 1,
    body = b (float[4] s, float[4] e) => (float[4] s2, float[4] o)
    {{ s2 = Add(s, e)  o = Identity(s2) }}> (z, x)
  {way}
  bs = Scan <num_scan_inputs = 1,
    body = c (float[4] s, float[4] e) => (float[4] s2) {{ s2 = Add(s, e) }}> (z, {end})
}}"""


def test_a_way_that_doubles_at_every_node_is_walked_once() -> None:
    """Both inputs of each Concat are the one before: 2 to the power of 40 ways."""
    count, lines = 40, ["d0 = Identity(st)"]
    for k in range(count):
        lines.append(f"c{k} = Concat <axis = 1> (d{k}, d{k})")
        lines.append(f"d{k + 1} = Slice(c{k}, i0, i4, i1)")
    model = open_text(SCANS.format(way="\n".join(lines), end=f"d{count}"))
    assert analyze_open(model, session_kind("tuned")).timeline.peak_bytes > 0


def test_a_way_of_3000_copies_is_walked() -> None:
    """Not by a function that calls itself."""
    lines = ["d0 = Identity(st)", *(f"d{k + 1} = Identity(d{k})" for k in range(3000))]
    model = open_text(SCANS.format(way="\n".join(lines), end="d3000"))
    assert analyze_open(model, session_kind("tuned")).timeline.peak_bytes > 0
