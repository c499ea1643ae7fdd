"""Graphs of laws: some nodes between two others, and constants for them."""

CONSTANTS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] minus = {-1}, int64[1] nine = {9},
 int64[1] two = {2}, int64[1] three = {3}, int64[2] shape = {2, 3}, int64[2] turned = {3, 2},
 int64[2] keep = {0, 3}, int64[2] swap = {3, 0}, int64[2] ones = {1, 1}, int64[2] twice = {1, 2},
 int64[4] pads = {0, 0, 0, 0}, int64[4] moved = {0, 1, 0, -1}, int64[2] parts = {1, 2},
 int64[3] wide = {1, 2, 3}, int64[3] wider = {2, 2, 3}, int64[1] flat = {6},
 int64[2] partly = {2, -1}, int64[2] other_way = {-1, 2}, int64[3] long = {1, -1, 1},
 float ratio = {0.5}, float none = {0}, bool yes = {1}, bool no = {0}, int64[1] back = {-9},
 int64[3] cube = {2, 1, 3}, int64[2] all = {0, 1}, int64[2] starts = {0, 0},
 int64[2] once = {1, 3}, float unused = {0}"""
SYMBOLS = "N, 3"


def graph(nodes: str, read: str = "b", shape: str = "2, 3", more: str = "") -> str:
    """A graph in which ``nodes`` stand between ``a`` and what reads ``read``."""
    return (
        f"g (float[{shape}] x, float[{shape}] other, bool mode{more}) => (float[] y) "
        f"<{CONSTANTS}> {{ [first] a = Tanh (x) {nodes} [last] y = Neg ({read}) }}"
    )
