"""A plan as MaxText's settings of a custom ``remat_policy``.

MaxText has one policy for all layers, and a fixed list of tensors that may be kept on the device,
offloaded or rematerialized. Which call of PyTorch is which of them is found by the last name in its
module's path, as the usual models of transformers name their projections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from memplan.errors import UsageError
from memplan.planning.plan_file import PlanFile
from memplan.report.policies.layers import AGAIN, HOST, KEPT, Layer, LayerCall, layers
from memplan.report.policies.plan_calls import (
    Policy,
    common_notes,
    first_names,
    header,
    not_told,
    other_forms,
    planned_calls,
)

INPUT = "decoder_layer_input"
RULES = (
    ("query_proj", r"(q|query|wq|q_proj|query_proj)"),
    ("key_proj", r"(k|key|wk|k_proj|key_proj)"),
    ("value_proj", r"(v|value|wv|v_proj|value_proj)"),
    ("qkv_proj", r"(qkv|c_attn|wqkv|in_proj|qkv_proj|query_key_value)"),
    ("out_proj", r"(o|wo|o_proj|out_proj|.*attn.*\.(c_proj|proj|dense)|.*attention.*\.dense)"),
    ("mlpwi_0", r"(w1|gate_proj)"),
    ("mlpwi_1", r"(w3|up_proj)"),
    ("mlpwi", r"(fc1|c_fc|linear1|lin1|dense_h_to_4h|mlp\.0|intermediate\.dense)"),
    ("mlpwo", r"(w2|fc2|linear2|lin2|down_proj|dense_4h_to_h|mlp\.2|mlp\.c_proj|output\.dense)"),
)
"""MaxText's tensors, and what the end of a module's path is for each; the first that fits."""
CONTEXT = "context"
_PATTERNS = tuple((key, re.compile(rf"(.*\.)?{rule}", re.IGNORECASE)) for key, rule in RULES)
_ATTENTION = re.compile(r"(.*\.)?[a-z_]*(attn|attention)[a-z_]*", re.IGNORECASE)
_WORDS = {KEPT: "device", HOST: "offload", AGAIN: "remat"}


def maxtext_policy(plan: PlanFile) -> Policy:
    """Lines for a configuration of MaxText.

    Raises:
        UsageError: the plan names no calls, or has no decoder layers.
    """
    found = [layer for layer in layers(planned_calls(plan)) if layer.path]
    fates: dict[str, set[str]] = {}
    left: list[str] = []
    for layer in found:
        for call in layer.calls:
            key = maxtext_key(call)
            if key is not None:
                fates.setdefault(key, set()).add(call.fate)
            elif call.fate == KEPT:
                left.append(f"{layer.path}.{call.name}")
    if not fates:
        raise UsageError(
            "no call of the plan is one of MaxText's tensors",
            "MaxText has decoder layers: q_proj, k_proj, v_proj, o_proj, up_proj, down_proj",
        )
    notes = (
        *common_notes(plan),
        *other_forms(plan.tensors, also="offloaded"),
        *not_told(plan.tensors),
        *_told(fates, left, found),
    )
    head = header(plan, "MaxText's settings by a plan of memplan: add to a configuration", notes)
    lines = [f"# {line}".rstrip() for line in head]
    lines += ["remat_policy: 'custom'", f"{INPUT}: 'device'"]
    for key in (*(key for key, _ in RULES), CONTEXT):
        if key in fates:
            lines.append(f"{key}: '{_WORDS[_fate(fates[key])]}'")
    return Policy("\n".join(lines) + "\n", notes)


def maxtext_key(call: LayerCall) -> str | None:
    """The name of a call's result in MaxText; None: it has none."""
    if call.operator == "scaled_dot_product_attention":
        return CONTEXT
    if call.operator in ("matmul", "bmm"):
        return CONTEXT if call.number == 1 and _ATTENTION.fullmatch(call.path) else None
    if call.operator not in ("linear", "addmm", "mm"):
        return None
    return next((key for key, rule in _PATTERNS if rule.fullmatch(call.path)), None)


def _fate(found: set[str]) -> str:
    """One for all layers: what takes the least of the device."""
    return next(fate for fate in (AGAIN, HOST, KEPT) if fate in found)


def _told(fates: dict[str, set[str]], left: Sequence[str], found: Sequence[Layer]) -> Iterator[str]:
    differ = [key for key, each in fates.items() if len(each) > 1]
    if differ:
        yield (
            f"layers differ in {first_names(differ)}: one policy holds for all of {len(found)}, "
            "the one that takes the least memory"
        )
    if left:
        yield f"kept in the plan, and no tensor of MaxText: {first_names(left)}"
    yield f"{INPUT} stays on the device: MaxText starts from it"
