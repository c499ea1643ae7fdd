"""Plans by hand, of steps that were captured from PyTorch."""

from collections.abc import Iterable
from dataclasses import replace

from helpers.plan_files import SMALL
from memplan.planning.plan_file import PlanFile, TensorDecision

NBYTES = 1024


def plan_of(*rows: tuple[str, str] | tuple[str, str, int]) -> PlanFile:
    """A plan of calls, each with its decision, and its bytes if they matter."""
    tensors = tuple(_tensor(f"t{number}", *row) for number, row in enumerate(rows))
    sequence = [row.node for row in tensors]
    sequence += [row.node for row in tensors if row.times]
    return replace(SMALL, tensors=tensors, sequence=tuple(sequence), chunks=(), loops=())


def _tensor(name: str, call: str, decision: str, nbytes: int = NBYTES) -> TensorDecision:
    module, operator, _ = call.rsplit(" ", 2)
    path = module.replace("/", ".") or None
    times = int(decision == "recomputed")
    return TensorDecision(name, name, operator, path, nbytes, decision, times, call=call)


def block(path: str, kept: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The calls of a block of a transformer, of which some are kept."""
    calls = (
        "/ln1 layer_norm 0",
        "/attn/qkv linear 0",
        "/attn matmul 0",
        "/attn softmax 0",
        "/attn matmul 1",
        " add 0",
        "/ln2 layer_norm 0",
        "/mlp/0 linear 0",
        "/mlp/1 gelu 0",
        " add 1",
    )
    named = set(kept)
    return tuple(
        (f"{path}{call}", "kept" if call.strip("/ ") in named else "recomputed") for call in calls
    )
