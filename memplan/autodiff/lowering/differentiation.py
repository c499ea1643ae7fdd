"""What of a stripped graph is differentiated, and by what.

The gradients of a loss begin with 1. Those of outputs that ORTModule handed to PyTorch came from
PyTorch. In a file of its own there is nobody to bring them:

- one output that is a scalar is a loss, and its gradient is 1;
- where the loss is named, it alone is differentiated;
- else every gradient becomes a graph input: whoever runs the file brings them.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from memplan.autodiff.activity import find_activity
from memplan.autodiff.backward import Request
from memplan.autodiff.lowering.strip import Stripped
from memplan.errors import ModelError, UsageError
from memplan.shapes.tensor_type import UNKNOWN, TensorType, Types


@dataclass(frozen=True, slots=True)
class Differentiation:
    """What to differentiate; None: the graph had no gradients.

    ``loss`` is the loss output. ``seeded`` is it where a boundary to PyTorch handed it out.
    ``still`` was trained, and does not depend on what is differentiated.
    """

    request: Request | None
    loss: str | None
    seeded: str | None = None
    still: tuple[str, ...] = ()


def differentiation_of(
    graph: onnx.GraphProto, stripped: Stripped, types: Types, wanted: str | None
) -> Differentiation:
    """What is to be differentiated.

    Args:
        graph: the forward graph, flat.
        stripped: what the training graph said of it.
        types: of its tensors.
        wanted: the loss, where the user names it.

    Raises:
        UsageError: the loss is not a scalar output of the forward part.
        ModelError: there are gradients, and nothing that they can be of.
    """
    outputs = [value.name for value in graph.output]
    scalars = [name for name in outputs if _is_scalar(types.get(name, UNKNOWN))]
    loss, brought = wanted, stripped.brought
    if wanted is not None and wanted not in scalars:
        raise UsageError(
            f"--loss {wanted}: no scalar output of the forward part",
            "scalar outputs: " + (", ".join(scalars[:8]) or "none"),
        )
    if wanted is None and stripped.handed:
        alone = len(brought) == 1 and next(iter(brought)) in scalars
        loss = next(iter(brought)) if alone else None
    elif wanted is None:
        begun = [name for name in scalars if name in stripped.begun]
        loss = next(iter((*begun, *scalars)), None)
    if not stripped.trained:
        return Differentiation(None, loss)
    ys = tuple(brought) if loss is None else (loss,)
    if not ys:
        raise ModelError(
            "the file has gradients, and no scalar output of the forward part, which they could "
            "be of",
            "--loss NAME says which output is the loss",
        )
    ys, xs, still = _moving(graph, types, ys, stripped.trained)
    seeds = () if loss is not None else tuple(brought[y] for y in ys)
    return Differentiation(Request(ys, xs, seeds), loss, loss if loss in brought else None, still)


def _moving(
    graph: onnx.GraphProto, types: Types, ys: tuple[str, ...], xs: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The ys that depend on an x, the xs that they depend on, and the other xs; all of them where
    none does, which is an error of its own.

    Raises:
        ModelError: an x is no float tensor of the forward part.
    """
    for x in xs:
        if not types.get(x, UNKNOWN).is_float:
            raise ModelError(
                f"the file has a gradient of '{x}', which is no float tensor of the forward part",
                "export the model again; the file is damaged or was edited",
            )
    active = find_activity(list(graph.node), types, ys, xs).tensors
    by = tuple(x for x in xs if x in active)
    if not by:
        return ys, xs, ()
    return tuple(y for y in ys if y in active), by, tuple(x for x in xs if x not in active)


def _is_scalar(found: TensorType) -> bool:
    return found.is_float and found.elements == 1
