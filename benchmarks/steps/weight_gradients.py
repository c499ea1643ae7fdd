"""Forms of the gradient of a convolution's weight, which ONNX Runtime computes as a convolution.

Kernels of 3 x 3, stride 1, as many channels in as out. *samples*: as groups, which is what
``memplan/autodiff/rules/windows.py`` writes for grouped convolutions. *channels*: the image's as
the first of three spatial axes. *channels last*: as the last, so that the windows of a product are
copied in runs of channels rather than of three elements; the image is transposed, too. That is what
is written for the others.

    python -m benchmarks.steps.weight_gradients --json benchmarks/results/weight_gradients.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import write_record

SIZES = ((32, 32, 32), (32, 64, 16), (32, 128, 8), (16, 64, 48))
"""Samples, channels, and height and width of the image."""
FORMS = {
    "samples": """
        image = Reshape(x, whole)
        kernel = Reshape(dy, marks)
        each = Conv<group = {n}, pads = [0, 1, 1, 0, 1, 1]>(image, kernel)
        apart = Reshape(each, split)
        dw = ReduceSum<keepdims = 0>(apart, zero)
    """,
    "channels": """
        image = Unsqueeze(x, zero)
        turned = Transpose<perm = [1, 0, 2, 3]>(dy)
        kernel = Unsqueeze(turned, two)
        each = Conv<pads = [0, 1, 1, 0, 1, 1]>(image, kernel)
        dw = Squeeze(each, zero)
    """,
    "channels last": """
        last = Transpose<perm = [0, 2, 3, 1]>(x)
        image = Unsqueeze(last, zero)
        turned = Transpose<perm = [1, 0, 2, 3]>(dy)
        kernel = Unsqueeze(turned, four)
        each = Conv<pads = [1, 1, 0, 1, 1, 0]>(image, kernel)
        found = Squeeze(each, zero)
        dw = Transpose<perm = [0, 3, 1, 2]>(found)
    """,
}
_GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[{n},{c},{s},{s}] x, float[{n},{c},{s},{s}] dy) => (float[{c},{c},3,3] dw)
<int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] four = {{4}},
 int64[5] whole = {{1, {n}, {c}, {s}, {s}}}, int64[5] marks = {{{nc}, 1, 1, {s}, {s}}},
 int64[5] split = {{{n}, {c}, {c}, 3, 3}}>
{{ {nodes} }}
"""


def compared(n: int, c: int, s: int, threads: int, turns: int) -> list[dict[str, Any]]:
    """A row per form: seconds by turns, and how far it is from the first in its largest element."""
    import numpy as np
    import onnx
    import onnxruntime

    source = np.random.default_rng(0)
    feeds = {name: source.standard_normal((n, c, s, s), np.float32) for name in ("x", "dy")}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # no form uses all the shapes
    sessions = {}
    for form, nodes in FORMS.items():
        text = _GRAPH.format(n=n, c=c, s=s, nc=n * c, nodes=nodes.format(n=n))
        model = onnx.parser.parse_model(text).SerializeToString()
        sessions[form] = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    wanted = sessions["samples"].run(None, feeds)[0]
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    apart = {}
    for _ in range(turns):
        for form, session in sessions.items():
            begin = time.perf_counter()
            found = session.run(None, feeds)[0]
            seconds[form].append(time.perf_counter() - begin)
            apart[form] = float(abs(found - wanted).max() / abs(wanted).max())
    work = 2 * n * c * c * 9 * s * s
    return [
        {
            "samples": n,
            "channels": c,
            "size": s,
            "form": form,
            "threads": threads,
            "seconds_median": statistics.median(times),
            "seconds_best": min(times),
            "flops_per_second_best": work / min(times),
            "relative_difference": apart[form],
        }
        for form, times in seconds.items()
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print a line for each form, and write a record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.weight_gradients")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    rows = [row for sizes in SIZES for row in compared(*sizes, options.threads, options.turns)]
    for row in rows:
        print(
            f"{row['samples']} x {row['channels']} x {row['size']}² {row['form']:14}"
            f"{1000 * row['seconds_median']:7.2f} ms, best {1000 * row['seconds_best']:6.2f}"
            f" ({row['flops_per_second_best'] / 1e9:.0f} GFLOP/s), {row['relative_difference']:.0e}"
        )
    if options.json:
        write_record(options.json, "python -m benchmarks.steps.weight_gradients", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
