r"""Forms of the gradients of a convolution, which ONNX Runtime computes as convolutions.

Kernels of 3 x 3, stride 1. For the weight: *samples* are groups, which is what
``memplan/autodiff/rules/windows.py`` writes for grouped convolutions; *channels* are the image's as
the first of three spatial axes; *channels last* has them as the last, so that the windows of a
product are copied in runs of channels rather than of three elements (the image is transposed, too);
*exchanged* is that with x and dy exchanged, and the kernel's places reversed. For the input:
*transposed* convolution by the weight, or a convolution by its *reversed* places. Which of them is
written when says ``windows.py``.

A session's threads wait for more work for a while: each form runs some times in a row, then pauses.

    python -m benchmarks.steps.convolution_gradients \
        --json benchmarks/results/convolution_gradients.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import write_record

WEIGHT = {
    "samples": """
        image = Reshape(x, whole)
        kernel = Reshape(dy, marks)
        each = Conv<group = {n}, pads = [0, 1, 1, 0, 1, 1]>(image, kernel)
        apart = Reshape(each, split)
        found = ReduceSum<keepdims = 0>(apart, zero)
    """,
    "channels": """
        image = Unsqueeze(x, zero)
        turned = Transpose<perm = [1, 0, 2, 3]>(dy)
        kernel = Unsqueeze(turned, two)
        each = Conv<pads = [0, 1, 1, 0, 1, 1]>(image, kernel)
        found = Squeeze(each, zero)
    """,
    "channels last": """
        last = Transpose<perm = [0, 2, 3, 1]>(x)
        image = Unsqueeze(last, zero)
        turned = Transpose<perm = [1, 0, 2, 3]>(dy)
        kernel = Unsqueeze(turned, four)
        each = Conv<pads = [1, 1, 0, 1, 1, 0]>(image, kernel)
        whole_batch = Squeeze(each, zero)
        found = Transpose<perm = [0, 3, 1, 2]>(whole_batch)
    """,
    "exchanged": """
        last = Transpose<perm = [0, 2, 3, 1]>(dy)
        image = Unsqueeze(last, zero)
        turned = Transpose<perm = [1, 0, 2, 3]>(x)
        kernel = Unsqueeze(turned, four)
        each = Conv<pads = [1, 1, 0, 1, 1, 0]>(image, kernel)
        whole_batch = Squeeze(each, zero)
        mirrored = Transpose<perm = [3, 0, 1, 2]>(whole_batch)
        found = Slice(mirrored, back, before, spatial, back)
    """,
}
INPUT = {
    "transposed": "found = ConvTranspose<pads = [1, 1, 1, 1]>(dy, w)",
    "reversed": """
        turned = Transpose<perm = [1, 0, 2, 3]>(w)
        kernel = Slice(turned, back, before, spatial, back)
        found = Conv<pads = [1, 1, 1, 1]>(dy, kernel)
    """,
}
_GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[{n},{i},{s},{s}] x, float[{n},{o},{s},{s}] dy, float[{o},{i},3,3] w) => (found)
<int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] four = {{4}},
 int64[5] whole = {{1, {n}, {i}, {s}, {s}}}, int64[5] marks = {{{no}, 1, 1, {s}, {s}}},
 int64[5] split = {{{n}, {o}, {i}, 3, 3}}, int64[2] back = {{-1, -1}},
 int64[2] before = {{-1000, -1000}}, int64[2] spatial = {{2, 3}}>
{{ {nodes} }}
"""
_PAUSE = 0.02  # until threads of the session before have stopped waiting for work
_RUNS, _FIRST = 8, 3  # in a row; the first ones do not count


@dataclass(frozen=True, slots=True)
class Sizes:
    """Samples, channels of the input and of the output, height and width of both."""

    samples: int
    inputs: int
    outputs: int
    size: int


ALL = (
    *(Sizes(32, 32, 32, 32), Sizes(32, 64, 64, 16), Sizes(32, 128, 128, 8)),
    *(Sizes(16, 64, 64, 48), Sizes(8, 16, 16, 96), Sizes(8, 48, 16, 96), Sizes(8, 96, 32, 48)),
)


def compared(
    sizes: Sizes, gradient: str, forms: Mapping[str, str], threads: int, turns: int
) -> list[dict[str, Any]]:
    """A row per form: seconds by turns, and how far it is from the first in its largest element."""
    import numpy as np

    n, i, o, s = sizes.samples, sizes.inputs, sizes.outputs, sizes.size
    source = np.random.default_rng(0)
    shapes = {"x": (n, i, s, s), "dy": (n, o, s, s), "w": (o, i, 3, 3)}
    given = {name: source.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    sessions = {form: _session(sizes, nodes, threads) for form, nodes in forms.items()}
    wanted = next(iter(sessions.values())).run(None, given)[0]
    seconds: dict[str, list[float]] = {form: [] for form in forms}
    apart = {}
    for _ in range(turns):
        for form, session in sessions.items():
            time.sleep(_PAUSE)
            for k in range(_RUNS):
                begin = time.perf_counter()
                found = session.run(None, given)[0]
                if k >= _FIRST:
                    seconds[form].append(time.perf_counter() - begin)
            apart[form] = float(abs(found - wanted).max() / abs(wanted).max())
    return [
        {
            "gradient": gradient,
            **asdict(sizes),
            "form": form,
            "threads": threads,
            "seconds_median": statistics.median(times),
            "seconds_best": min(times),
            "flops_per_second_best": 2 * n * i * o * 9 * s * s / min(times),
            "relative_difference": apart[form],
        }
        for form, times in seconds.items()
    ]


def _session(sizes: Sizes, nodes: str, threads: int) -> Any:
    import onnx
    import onnxruntime

    n, i, o, s = sizes.samples, sizes.inputs, sizes.outputs, sizes.size
    text = _GRAPH.format(n=n, i=i, o=o, s=s, no=n * o, nodes=nodes.replace("{n}", str(n)))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # no form uses all the inputs and shapes
    model = onnx.parser.parse_model(text).SerializeToString()
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print a line for each form, and write a record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.convolution_gradients")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    rows = []
    for sizes in ALL:
        for gradient, forms in (("weight", WEIGHT), ("input", INPUT)):
            rows += compared(sizes, gradient, forms, options.threads, options.turns)
    for row in rows:
        print(
            f"{row['samples']} x {row['inputs']:3} to {row['outputs']:3} x {row['size']}²"
            f" {row['gradient']:7}{row['form']:14}"
            f"{1000 * row['seconds_median']:7.2f} ms, best {1000 * row['seconds_best']:6.2f}"
            f" ({row['flops_per_second_best'] / 1e9:.0f} GFLOP/s), {row['relative_difference']:.0e}"
        )
    if options.json:
        write_record(options.json, "python -m benchmarks.steps.convolution_gradients", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
