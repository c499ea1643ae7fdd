"""Muon: the momentum of a matrix, made orthogonal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from memplan.autodiff.emit.value import Value
from memplan.autodiff.emit.without_bfloat16 import BFLOAT16
from memplan.autodiff.optimizers.adaptive import AdamW
from memplan.autodiff.optimizers.optimizer import FLOAT, Optimizer, UpdateBuilder
from memplan.shapes.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Muon(Optimizer):
    """Jordan 2024 (https://kellerjordan.github.io/posts/muon), as ``torch.optim.Muon``.

    ``ns_steps`` iterations of Newton and Schulz, X ← ns_a·X + (ns_c·(XXᵀ)² - ns_b·XXᵀ)·X, bring all
    singular values of the momentum near 1. PyTorch computes them in bfloat16, for which ONNX
    Runtime's CPU provider has no products: they are float32's here, and rounded as PyTorch's are.
    (Without that, directions with small singular values, which most gradients have, come out
    otherwise: the iteration multiplies rounding errors in them by up to ns_a^ns_steps.)
    ``adjust_lr_fn`` says how steps depend on the shape: ``original`` √max(1, rows/columns),
    ``match_rms_adamw`` (arXiv:2502.16982) 0.2·√max(rows, columns). The weight itself decays.
    What is not a matrix is updated by AdamW, with the same learning rate and weight decay.
    """

    name: ClassVar[str] = "muon"
    flags: ClassVar[tuple[str, ...]] = ("maximize", "nesterov")
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "adjust_lr_fn": ("original", "match_rms_adamw")
    }
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: int = 1
    ns_a: float = 3.4445
    ns_b: float = 4.775
    ns_c: float = 2.0315
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str = "original"

    def suited(self, parameter: TensorType) -> Optimizer:
        """See the base class."""
        if parameter.sizes is not None and len(parameter.sizes) == 2:
            return self
        shared = {item.name: getattr(self, item.name) for item in fields(Optimizer)}
        return AdamW(**{**shared, "no_decay": ""})

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        rows, columns = weight.type.sizes or ()
        state = build.state(weight, "momentum")
        speed = build.averaged(state, grad, self.momentum)
        mixed = grad * (1 - self.momentum) + speed * self.momentum if self.nesterov else speed
        step = self._orthogonal(build, mixed, tall=rows > columns)
        size = build.rate(weight) * self._adjusted(rows, columns)
        new = build.shrunk(weight) - build.cast(step, weight) * size
        return {weight.name: new, state.name: speed}

    def _adjusted(self, rows: int, columns: int) -> float:
        if self.adjust_lr_fn == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1, rows / columns))

    def _orthogonal(self, build: UpdateBuilder, mixed: Value, *, tall: bool) -> Value:
        """The product is taken over the longer side; XXᵀ is symmetric, so nothing is transposed."""
        emit, product = build.emitter.op, build.operations.gemm

        def rounded(value: Value) -> Value:
            return emit("Cast", emit("Cast", value, to=BFLOAT16), to=FLOAT)

        x = rounded(mixed)
        norm = emit("Sqrt", emit("ReduceSumSquare", x, keepdims=0))
        x = rounded(x / rounded(emit("Max", norm, self.eps)))
        for _ in range(self.ns_steps):
            gram = rounded(product(x, x, trans_a=1) if tall else product(x, x, trans_b=1))
            inner = rounded(emit("Gemm", gram, gram, gram, alpha=self.ns_c, beta=-self.ns_b))
            pair = (x, inner) if tall else (inner, x)
            x = rounded(emit("Gemm", *pair, x, beta=self.ns_a))
        return x
