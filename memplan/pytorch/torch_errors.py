"""What torch says when it refuses, in one line, and what to change."""

from __future__ import annotations

import re

from torch import nn

from memplan.errors import MemplanError, ModelError
from memplan.pytorch.installed_torch import own_failure, own_place, torch_notes
from memplan.pytorch.places import frames_of, raised_in

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_HINTS = (
    (
        re.compile(
            r"data-dependent|DynamicOutputShape|GuardOnDataDependent|unbacked|_local_scalar_dense",
            re.I,
        ),
        "it depends on the values of a tensor (.item(), if on a tensor, nonzero): use torch.where "
        "or torch.cond, or do it before the step",
    ),
    (
        re.compile(r"constraint|Constraints violated|specializ|ConstraintViolation", re.I),
        "the model fixes a dimension that was to be dynamic: leave it out of the dynamic "
        "dimensions, or compute with x.shape instead of numbers",
    ),
    (
        re.compile(r"No ONNX function found|No decompositions registered", re.I),
        "an operator has no form in ONNX: write it with others",
    ),
    (
        re.compile(r"FakeTensor ?Device|same device|two devices", re.I),
        "model, batch and every tensor that the model makes must be on one device: make them with "
        "device=x.device",
    ),
    (
        re.compile(r"torch\.autograd\.grad|functorch tensor"),
        "gradients within a step, as a gradient penalty has them, cannot be traced: write the "
        "derivative out, or leave the term out of the captured step",
    ),
    (
        re.compile(r"pytree|unsupported input type|Unsupported.*type", re.I),
        "a batch is made of tensors",
    ),
)
_PLAIN = (
    (
        re.compile(r"No ONNX function found for <OpOverload\(op='(\w+)\.(\w+)', overload='(\w+)'"),
        "{0}.{1}.{2} has no ONNX form",
    ),
    (
        re.compile(r"data-dependent expression|DataDependentOutput|_local_scalar_dense"),
        "a size, a branch or a number is data-dependent",
    ),
)
"""What is said more plainly than torch does."""
_NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|bad_alloc", re.I)
_COUNTED = (
    "a BatchNorm with momentum=None averages over all batches, whose number is not known while "
    "tracing: give it a momentum"
)
_PACKED = "a packed sequence"
_CURES = {
    "_detect_is_causal_mask": "nn.Transformer looks at the values of a mask to see whether it is "
    "causal: say it, with tgt_is_causal=True (nn.Transformer, nn.TransformerDecoder) or "
    "is_causal=True (nn.TransformerEncoder; src_is_causal in nn.Transformer), and False for any "
    "other mask",
    "one_hot": "one_hot counts the classes in the values: give it num_classes",
    _PACKED: "packed sequences have sizes that depend on values: run the recurrent module on the "
    "padded batch, and leave the padding out of the loss by a mask",
}
"""By the function of PyTorch that fails: the change of one argument or line that is known to help.
"""
_GENERAL = "torch.export.export(model, batch) alone may show more; so does -vv"


def ran_out_of_memory(error: Exception) -> bool:
    """Whether a step failed for want of memory."""
    return isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error)))


def nothing_trained() -> ModelError:
    """No gradient reaches a parameter."""
    return ModelError(
        "no parameter that requires a gradient leads to the loss",
        "unfreeze what is to be trained, and check that nothing is detached on the way",
    )


def refusal(what: str, error: BaseException, model: nn.Module | None = None) -> MemplanError:
    """What torch refuses, with the module and the line of the user's code, as far as it tells; or
    what memplan itself does not follow, or that its own code failed.

    Args:
        what: the beginning of the message.
        error: torch's.
        model: what was traced, for the names of its modules.
    """
    own = own_failure(error)
    if own is not None:
        return own
    where = raised_in(error, model)
    said, deepest = reason_of(error), _deepest(error)
    if isinstance(deepest, NotImplementedError) and own_place(deepest):
        what, said = "the step cannot be captured", str(deepest)
    counted = "data-dependent" in said and any(
        isinstance(each, BATCH_NORMS) and each.momentum is None
        for each in (model.modules() if model is not None else ())
    )
    hints = (_COUNTED if counted else cure_for(error) or hint_for(error), *torch_notes())
    return ModelError(f"{what}: {said}{f' ({where})' if where else ''}", "; ".join(hints))


def reason_of(error: BaseException) -> str:
    """The line of torch's message that says what is wrong."""
    deepest = _deepest(error)
    text = str(deepest)
    for pattern, said in _PLAIN:
        found = pattern.search(text)
        if found:
            return said.format(*found.groups())
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("#", "==", "__", "⬆"))]
    said = lines[0] if lines else "no message"
    if said.endswith(":") and len(lines) > 1:
        said = f"{said} {lines[1]}"
    if "Constraints violated" in said:  # what is violated stands in a list below
        said = next((line.lstrip("- ") for line in lines if line.startswith("- ")), said)
    return f"{type(deepest).__name__}: {said}"[:400]


def _deepest(error: BaseException) -> BaseException:
    """The first cause that says something."""
    found, seen = error, error.__cause__
    while seen is not None:
        found = seen if str(seen) else found
        seen = seen.__cause__
    return found


def cure_for(error: BaseException) -> str:
    """The known cure for what PyTorch ran when it failed; empty if there is none."""
    for frame, _ in frames_of(error):
        given = frame.f_locals
        names = [frame.f_code.co_name, getattr(given.get("func"), "__name__", "")]
        if isinstance(given.get("self"), nn.RNNBase) and given.get("batch_sizes") is not None:
            names.append(_PACKED)
        if cure := next((_CURES[name] for name in names if name in _CURES), ""):
            return cure
    return ""


def hint_for(error: BaseException) -> str:
    """What to change in the model."""
    text = f"{type(error).__name__} {error} {_deepest(error)}"
    return next((hint for pattern, hint in _HINTS if pattern.search(text)), _GENERAL)
