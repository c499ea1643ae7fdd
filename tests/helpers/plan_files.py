"""A small plan file with something in every field."""

import memplan
from memplan.planning.plan_file import (
    ChunkDecision,
    FormNode,
    LoopDecision,
    PassDecision,
    PlainDecision,
    PlanFile,
    PlannedModel,
    Settings,
    TensorDecision,
)

SMALL = PlanFile(
    memplan=memplan.__version__,
    accounting=1,
    model=PlannedModel("f" * 32, 3, 5, "onnxruntime 1.31.1", "e" * 32),
    session="tuned",
    provider="cpu",
    dims={"N": 8, "L": 16},
    optimize="extended",
    settings=Settings("loss", ("in-place",), ("w*",), "cpu", ("packed",), {"mark": "yes"}),
    budget_bytes=1000,
    baseline_peak_bytes=1500,
    predicted_peak_bytes=900,
    predicted_peak_with_workspace_bytes=990,
    extra_cost_fraction=0.25,
    bound_fraction=0.2,
    bound_kind="order-free",
    strategy="search",
    tensors=(
        TensorDecision("h", "fc1", "MatMul", "blocks.0", 512, "packed", 1),
        TensorDecision(
            "p", "soft\nmax", "Softmax", None, 256, "recomputed", 1, 0.5, 4, " softmax 0"
        ),
    ),
    chunks=(ChunkDecision("layers", ("h",), 0, 4, "fc1", "grad"),),
    chunk_cost_fraction=0.01,
    loops=(LoopDecision("scan", "scan_grad", ("a", "b")),),
    passes=(PassDecision("prune", True), PassDecision("order", False)),
    plain=PlainDecision(("x",), ("h",)),
    order=("fc1", "soft\nmax", "grad"),
    sequence=("fc1", "soft\nmax", FormNode("packed", "h", 0), "soft\nmax", "grad"),
)
