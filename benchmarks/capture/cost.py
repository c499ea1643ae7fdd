"""What ``capture`` takes at real size: seconds and memory, beside PyTorch's export alone.

    python -m benchmarks.capture.cost --json benchmarks/results/capture_cost.json
    python -m benchmarks.capture.cost --net gpt2_tiny    # a trial

GPT-2 small with 4 sequences of 512 tokens and ResNet-50 with 16 images, AdamW, CPU. Each in three
ways, one after the other, every one a process of its own: ``export`` is ``torch.export`` and
``torch.onnx.export`` of the forward part, ``capture`` makes the training graph and writes it
without a check, ``checked`` holds it against PyTorch, too. ``seconds`` are of the clock,
``cpu_seconds`` those of all threads; ``growth_bytes`` is how far the resident set rose above that
of the process with model and batch, whose own are ``model_bytes``. Rows of an earlier record stay,
except those of networks that are measured anew.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from benchmarks.record import Row, arguments, in_process, run
from memplan.runtime.resident_set import reset_peak_rss, resident_bytes

NETS = ("gpt2_small", "resnet50")
WAYS = ("export", "capture", "checked")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Every network in every way, in a process of its own."""
    for net in options.net or NETS:
        for way in options.way or WAYS:
            # Threads of glibc's malloc keep what they are given back: one arena shows what is used.
            told = in_process("capture.cost.taken", net, way, MALLOC_ARENA_MAX="1")
            yield {"net": net, "way": way, **told}


def taken(name: str, way: str) -> Row:
    """What one network takes in one way, in this process."""
    import torch

    import memplan
    from benchmarks.nets import TINY, Gpt, Net, images, resnet, text

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    large = {
        "gpt2_small": Net(lambda: Gpt(length=512, tied=True), text(512, 50257), 4),
        "resnet50": Net(resnet, images(224, 1000), 16),
    }
    net = {**large, **TINY}[name]
    model, batch = net.make(), net.batch()
    held = [*model.parameters(), *model.buffers(), *batch]
    start, begin, used = reset_peak_rss(), time.perf_counter(), time.process_time()
    found: Row = {}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "step.onnx"
        if way == "export":
            program = torch.export.export(model, batch)
            torch.onnx.export(program, f=target, external_data=True, verbose=False, optimize=False)
        else:
            step = memplan.TorchStep(model, None, batch, torch.optim.AdamW(model.parameters()))
            made = memplan.capture(step, target, check=way == "checked")
            found = {"nodes": len(made.model.graph.node), "peak_bytes": made.peak_bytes}
            if made.check is not None:
                found |= {"verdict": str(made.check.verdict), "reason": made.check.reason}
                found["not_checked"] = list(made.check.not_checked)
    row = {
        "seconds": round(time.perf_counter() - begin, 2),
        "cpu_seconds": round(time.process_time() - used, 2),
        "growth_bytes": resident_bytes("VmHWM") - start,
        "model_bytes": sum(tensor.nbytes for tensor in held),
    }
    return row | found


if __name__ == "__main__":
    parser = arguments("capture.cost", __doc__)
    parser.add_argument("--net", action="append", help="one of these or a tiny one, repeatable")
    parser.add_argument("--way", action="append", choices=WAYS, help="repeatable; else all")
    run(parser, rows, of=("net", "way"))
