"""What ``capture`` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from memplan.api.capture.capture_check import Check
from memplan.api.summary import Summary, attributes_json
from memplan.ir.contract import Contract
from memplan.ir.roles import FOUND_INF, Role

SCHEMA = "memplan.capture/1"


@dataclass(frozen=True, slots=True, repr=False)
class Capture(Summary):
    """A captured training step; ``output`` is None if nothing was written.

    Attributes:
        source: what was captured.
        output: the file.
        data: the file that holds the weights, if they are apart.
        model: the graph. Its weights are in it unless they are apart or were left out.
        peak_bytes: simulated for a tuned session on the CPU, with kernel workspace, at the sizes of
            the example batch; ``stash_bytes``: what the forward part keeps for the backward part.
        contract: what every input and output is.
        trained: parameters by which the loss was differentiated.
        frozen: parameters that are read and not trained; constants of the graph, or inputs.
        frozen_inputs: those of them, and the buffers, that are inputs which nothing renews.
        unused: parameters that the loss does not depend on; not in the graph.
        dims: the sizes of dynamic dimensions in the example batch.
        optimizer: its kind, or None: the gradients are outputs.
        lr: the default of the learning rate, or None.
        loss_scale: as ``grad --loss-scale`` takes it; ``none``: the loss is not scaled.
        clip_norm: the norm that gradients are clipped to, or None.
        clip_value: what their elements are clipped to, or None.
        weights: ``embed``, ``copy`` or ``none``; ``weight_bytes`` is how much they are.
        ema_decay: that of the averages of the weights, or None.
        dropout: where masks come from, as ``--dropout`` takes it.
        counted_masks: how many masks come from a counter.
        notes: what the user should know.
        check: what came of holding it against PyTorch; None: that was not asked for.
        torch: the version of PyTorch.
    """

    source: str
    output: Path | None
    data: Path | None
    model: onnx.ModelProto
    peak_bytes: int
    stash_bytes: int
    contract: Contract
    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    unused: tuple[str, ...]
    dims: Mapping[str, int]
    optimizer: str | None
    lr: float | None
    weights: str
    weight_bytes: int
    notes: tuple[str, ...] = ()
    torch: str = ""
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    loss_scale: str = "none"
    clip_norm: float | None = None
    clip_value: float | None = None
    check: Check | None = None
    frozen_inputs: tuple[str, ...] = ()
    ema_decay: float | None = None
    dropout: str = "operator"
    counted_masks: int = 0

    @property
    def metrics(self) -> tuple[str, ...]:
        """The outputs beside the loss that the loss function names."""
        return tuple(name for name in self.contract.named(Role.OUTPUT) if name != FOUND_INF)

    @property
    def batch(self) -> tuple[str, ...]:
        """The inputs to feed in every step."""
        return self.contract.named(Role.BATCH)

    @property
    def title(self) -> str:
        """What ``repr`` heads it with."""
        return f"of {self.source}"

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "nodes": len(self.model.graph.node),
            **attributes_json(self, "peak_bytes", "stash_bytes"),
            "loss": self.contract.loss,
            "batch": {name: list(self.sizes[name]) for name in self.batch},
            **attributes_json(self, "dims", "trained", "frozen", "frozen_inputs"),
            "averages": list(self.contract.named(Role.AVERAGE)),
            **attributes_json(self, "ema_decay", "metrics", "unused", "optimizer", "lr"),
            **attributes_json(self, "loss_scale", "clip_norm", "clip_value"),
            **attributes_json(self, "dropout", "counted_masks"),
            **attributes_json(self.contract, "roles", "new_values", "gradients"),
            **attributes_json(self, "weights", "weight_bytes", "notes", "check", "torch"),
            **attributes_json(self, "output", "data"),
        }
