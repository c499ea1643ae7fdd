"""A plan as names for JAX's checkpoint policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memplan.errors import UsageError
from memplan.planning.plan_file import PlanFile
from memplan.report.policies.layers import AGAIN, HOST, KEPT, Layer, layers
from memplan.report.policies.plan_calls import (
    Policy,
    common_notes,
    first_names,
    header,
    not_told,
    other_forms,
    planned_calls,
)
from memplan.units import counted

_CODE = '''
import jax

# The names, and the calls of PyTorch that they stand for. Where a layer computes such a result:
#     x = jax.ad_checkpoint.checkpoint_name(x, NAME)
NAMES = {names}
# Layers with one policy -> names that are saved, names that are offloaded. The rest is recomputed.
LAYERS = {layers}


def policy(layer):
    """The policy of a layer, for jax.checkpoint; None where nothing is recomputed."""
    for layers, (saved, offloaded) in LAYERS.items():
        if layer in layers and offloaded:
            return jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=list(saved),
                names_which_can_be_offloaded=list(offloaded),
                offload_src="device",
                offload_dst="pinned_host",
            )
        if layer in layers:
            return jax.checkpoint_policies.save_only_these_names(*saved)
    return None


def remat(function, layer):
    """The function of a layer, such as 'blocks.0', with its policy."""
    found = policy(layer)
    return function if found is None else jax.checkpoint(function, policy=found)
'''


def jax_policy(plan: PlanFile) -> Policy:
    """A Python module with names to give, and a policy for each layer.

    Raises:
        UsageError: the plan names no calls, or no layer recomputes anything.
    """
    found = layers(planned_calls(plan))
    numbered = [layer for layer in found if layer.path and layer.recomputes]
    if not numbered:
        raise UsageError(
            "no numbered module of the plan (blocks.0, layers.3) recomputes anything",
            "JAX recomputes whole layers: plan a model that has them, for a lower budget",
        )
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    names: dict[str, str] = {}
    for layer in numbered:
        for call in (call for call in layer.calls if call.fate != AGAIN):
            names.setdefault(call.name, f"{call.operator} of {call.path or 'the layer itself'}")
        saved = tuple(dict.fromkeys(call.name for call in layer.calls if call.fate == KEPT))
        away = tuple(dict.fromkeys(call.name for call in layer.calls if call.fate == HOST))
        groups.setdefault((saved, away), []).append(layer.path)
    notes = (
        *common_notes(plan),
        *other_forms(plan.tensors, also="offloaded"),
        *not_told(plan.tensors),
        *_told(found, len(groups)),
    )
    what = "Checkpoint policies by a plan of memplan: layer = remat(layer, 'blocks.0')"
    text = "\n".join(header(plan, what, notes)).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    code = _CODE.replace("{names}", _lines(f"{name!r}: {call!r}" for name, call in names.items()))
    code = code.replace("{layers}", _lines(_group(k, paths) for k, paths in groups.items()))
    return Policy(f'"""{text}\n"""\n{code}', notes)


def _told(found: Sequence[Layer], groups: int) -> Iterator[str]:
    outside = [call.name for layer in found if not layer.path for call in layer.calls]
    lost = [
        call.name for layer in found if not layer.path for call in layer.calls if call.fate != KEPT
    ]
    if lost:
        several = counted(len(lost), "call")
        yield f"{several} of {len(outside)} outside of layers: {first_names(lost)}"
    if groups > 1:
        yield f"jax.lax.scan over layers: it needs one policy, and this plan has {groups}"


def _group(key: tuple[tuple[str, ...], tuple[str, ...]], paths: Sequence[str]) -> str:
    inner = "".join(f"            {name!r},\n" for name in key[0])
    saved = f"(\n{inner}        )" if inner else "()"
    return f"{tuple(paths)!r}: (\n        {saved},\n        {key[1]!r},\n    )"


def _lines(rows: Iterator[str]) -> str:
    return "{\n" + "".join(f"    {row},\n" for row in rows) + "}"
