"""What memplan writes into ``metadata_props`` of models, nodes and values, and reads back.

Authors may write there too: the checkpoints that they mark. ONNX Runtime's optimizer drops all
metadata of nodes and values, so marks are carried over by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

import onnx

from memplan.errors import ModelError
from memplan.providers import PROVIDERS

PREFIX = "memplan."
PHASE_KEY = "memplan.phase"
"""On a node: its part of the training step."""
FORWARD_KEY = "memplan.forward"
"""On a node of the backward pass: the name of the forward node whose gradient it belongs to."""
CHECKPOINT_KEY = "memplan.checkpoint"
"""On a node or a value: ``true`` or ``1`` marks it as a checkpoint. The mark of a node speaks of
all its outputs."""
MODULE_KEY = "memplan.module"
"""On a node that was captured from PyTorch: the path of the module that made it."""
LINE_KEY = "memplan.line"
"""On a node of a graph that was captured for its sizes alone: the line of the user's code that made
it. Files that are handed on do not tell."""
CALL_KEY = "memplan.call"
"""On a node that was captured from PyTorch: the call that made its outputs, as modules from the
outside in, operator and number (``blocks.0/attn/qkv linear 0``). Calls that cannot be kept,
random ones among them, are not told."""
CHUNK_KEY = "memplan.chunk"
"""On a node: the chunk that it belongs to, where another chunk may have an equal one."""
NEW_VALUES = "new_values"
"""On a model, ``memplan.new_values``: graph output → the graph input that it is the next value of.
It stays in files that are written from the model, those that have lost an output among them."""
ROLES = "roles"
"""On a model, ``memplan.roles``: graph input or output → its role in a training step
(:class:`memplan.ir.roles.Role`)."""
GRADIENTS = "gradients"
"""On a model, ``memplan.gradients``: graph output → the graph input that it is the gradient of."""
SEAL = "seal"
"""On a model in a file, ``memplan.seal``: a digest of these three, and of the names and types of
graph inputs and outputs. In memory it is only there, as :data:`BROKEN`, if that of the file was
another."""
BROKEN = "broken"
STATE = "state"
"""On a model, ``memplan.state``: :data:`IN_PLACE` if it was planned for sessions that write new
values over the old ones, :data:`APART` if for those that make them in memory of the run."""
IN_PLACE, APART = "in-place", "apart"
CHUNKED = "chunked"
"""On a model, ``memplan.chunked``: regions of it run in chunks, so that it equals its original up
to rounding."""
BOUND_DIMS = "bound_dims"
"""On a model, ``memplan.bound_dims``: symbolic dimensions of the original, for whose sizes alone
this model is."""
_SEALED = (NEW_VALUES, ROLES, GRADIENTS)
_CONTRACT = (*_SEALED, STATE)
_PLANNED_FOR = {"session": ("tuned", "default"), "provider": tuple(PROVIDERS)}
_SHOWN = 40  # characters of a value
_YES = frozenset({"1", "true"})


class Unreadable(str):
    """In place of a value that cannot be read: why."""


class Names(dict[str, str]):
    """A mapping of strings, read once and not to be changed; ``told`` are its values."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.told = frozenset(values.values())


def set_metadata(model: onnx.ModelProto, values: Mapping[str, object]) -> None:
    """Store ``values`` as JSON under ``memplan.<key>``, replacing earlier ones.

    What the file says of its state stays unless ``values`` say otherwise.
    """
    told = {PREFIX + key for key in _CONTRACT if key not in values}
    texts = {item.key: item.value for item in model.metadata_props}
    kept = [
        (item.key, item.value)
        for item in model.metadata_props
        if not item.key.startswith(PREFIX) or item.key in told
    ]
    _replace_metadata(model, kept)
    for key, value in values.items():
        text = texts.get(PREFIX + key)
        if text is None or not isinstance(value, Names) or _parsed(text) is not value:
            text = json.dumps(value, sort_keys=True)  # else it is as it was read
        model.metadata_props.add(key=PREFIX + key, value=text)


def sealed_bytes(model: onnx.ModelProto) -> bytes:
    """What a file of ``model`` holds: what it says of its inputs and outputs is sealed. It was made
    by memplan, or was sealed when it was read."""
    kept = [(item.key, item.value) for item in model.metadata_props if item.key != PREFIX + SEAL]
    said = any(key == PREFIX + each for key, _ in kept for each in _SEALED)
    own = [(PREFIX + SEAL, json.dumps(_digest(model)))] if said else []
    _replace_metadata(model, [*kept, *own])
    data: bytes = model.SerializeToString()
    _replace_metadata(model, kept)
    return data


def unseal(model: onnx.ModelProto) -> None:
    """Take away a model's seal; and what it says of its inputs and outputs, if they, or that, were
    changed since it was sealed. Files that older versions wrote have no seal, and are believed."""
    key = PREFIX + SEAL
    seals = [item.value for item in model.metadata_props if item.key == key]
    if not seals:
        return
    broken = seals != [json.dumps(_digest(model))]
    gone = {key, *(PREFIX + each for each in _SEALED if broken)}
    kept = [(item.key, item.value) for item in model.metadata_props if item.key not in gone]
    _replace_metadata(model, [*kept, (key, json.dumps(BROKEN))] if broken else kept)


def _digest(model: onnx.ModelProto) -> str:
    said = {PREFIX + each for each in _SEALED}
    values = (*model.graph.input, *model.graph.output)
    rows = sorted((i.key, i.value) for i in model.metadata_props if i.key in said)
    interface = [(v.name, v.type.SerializeToString(deterministic=True).hex()) for v in values]
    text = json.dumps([rows, len(model.graph.input), interface])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _replace_metadata(model: onnx.ModelProto, items: Sequence[tuple[str, str]]) -> None:
    del model.metadata_props[:]
    for key, value in items:
        model.metadata_props.add(key=key, value=value)


def get_metadata(model: onnx.ModelProto) -> dict[str, object]:
    """The values that :func:`set_metadata` stored; one that cannot be read is :class:`Unreadable`,
    and so is one that is there twice, or has a name twice."""
    found: dict[str, object] = {}
    for item in model.metadata_props:
        if item.key.startswith(PREFIX):
            key, value = item.key.removeprefix(PREFIX), _parsed(item.value)
            if key in found:
                value = Unreadable("is there twice")
            found[key] = dict(value) if type(value) is dict else value
    return found


@lru_cache(maxsize=16)  # a file is looked at many times, and what it says may be long
def _parsed(text: str) -> object:
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats)
        if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
            return Names(value)
        return value
    except RecursionError:
        return Unreadable("is nested too deep")
    except json.JSONDecodeError:
        return Unreadable("is not JSON")
    except ValueError as error:  # a name twice; also numbers of thousands of digits
        return Unreadable(str(error))


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        left = dict(found)
        twice = next(key for key, _ in pairs if left.pop(key, pairs) is pairs)
        raise ValueError(f"says two things of '{twice}'")
    return found


def planned_for(metadata: Mapping[str, object]) -> tuple[str, str]:
    """The kind of session and the provider that a file was planned for.

    Raises:
        ModelError: there is no such kind or provider.
    """
    found = []
    for key, known in _PLANNED_FOR.items():
        value = metadata.get(key, known[0])
        if not isinstance(value, str) or value not in known:
            raise ModelError(
                f"{PREFIX}{key} of the file is {str(value)[:_SHOWN]!r}: expected "
                + " or ".join(known),
                "its metadata is damaged: take the file that 'memplan rewrite' wrote",
            )
        found.append(value)
    return found[0], found[1]


def node_metadata(node: onnx.NodeProto) -> dict[str, str]:
    """A node's ``metadata_props`` as a dictionary."""
    return {item.key: item.value for item in node.metadata_props}


def marked_names(graph: onnx.GraphProto) -> list[str]:
    """Names of the marked tensors, in order of the nodes that make them."""
    stated = (*graph.value_info, *graph.output)
    values = {value.name for value in stated if value.metadata_props and _is_marked(value)}
    found = []
    for node in graph.node:
        marked = bool(node.metadata_props) and _is_marked(node)
        if marked or values:
            found += [name for name in node.output if name and (marked or name in values)]
    return found


def carry_marks(source: onnx.GraphProto, target: onnx.GraphProto) -> list[str]:
    """Mark in ``target`` what is marked in ``source``; names that ``target`` does not make."""
    wanted = dict.fromkeys(marked_names(source))
    stated = {value.name: value for value in (*source.value_info, *source.output)}
    known = {value.name: value for value in (*target.value_info, *target.output)}
    for node in target.node:
        made = [name for name in node.output if name]
        hits = [name for name in made if name in wanted]
        for name in hits:
            del wanted[name]
        if len(hits) < len(made) and all(name in known or name in stated for name in hits):
            for name in hits:
                if name not in known:
                    target.value_info.add().CopyFrom(stated[name])
                    known[name] = target.value_info[-1]
                if not _is_marked(known[name]):
                    known[name].metadata_props.add(key=CHECKPOINT_KEY, value="true")
        elif hits:
            node.metadata_props.add(key=CHECKPOINT_KEY, value="true")
    return list(wanted)


def _is_marked(proto: onnx.NodeProto | onnx.ValueInfoProto) -> bool:
    for item in proto.metadata_props:
        if item.key == CHECKPOINT_KEY and item.value.strip().lower() in _YES:
            return True
    return False
