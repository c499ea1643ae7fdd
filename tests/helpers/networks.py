"""Small networks of five families, their training steps, batches, and a plain loop around a step
(``benchmarks/nets/small.py``)."""

from __future__ import annotations

from helpers.models import load_benchmark

_nets = load_benchmark("nets.small")
FAMILIES = _nets.FAMILIES
batches = _nets.batches
plain_loop = _nets.plain_loop
training_step = _nets.training_step
