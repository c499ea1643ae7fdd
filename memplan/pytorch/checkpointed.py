"""Selective checkpointing by a plan, as ``memplan plan-as torch`` prints it: this file from the
first import on, with a plan in the place of the empty one."""

import contextlib
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

# Checkpointed modules -> a module in them -> a family of operators -> for each of its calls, in
# their order: s (saved) or r (recomputed). What has no letter is recomputed.
PLAN: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
# The families of operators in PLAN.
FAMILIES: dict[str, str] = {}


def checkpoint_as_planned(model: torch.nn.Module) -> torch.nn.Module:
    """Checkpoint the modules that PLAN names, in place, and give the model back.

    Names of parameters stay as they are. Modules that work in place (``inplace=True``) are told
    not to: what is saved must not be written over.
    """
    for paths, inside in PLAN.items():
        for path in paths:
            _Region(model.get_submodule(path), path, inside)
    return model


class _Region:
    """A checkpointed module: whose calls are counted while it runs."""

    def __init__(
        self, module: torch.nn.Module, path: str, inside: dict[str, dict[str, str]]
    ) -> None:
        self.path, self.inside = path, inside
        self.modules: Counter[str] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.within = [""]
        self.checked = False
        self.forward = module.forward
        self.averaging = [
            each
            for each in module.modules()
            if getattr(each, "num_batches_tracked", None) is not None
        ]
        for name, each in module.named_modules():
            if getattr(each, "inplace", False):
                each.inplace = False
            if name:
                each.forward = self.counted(name, each.forward)
        module.forward = functools.wraps(self.forward)(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*args, **kwargs)
        return checkpoint(self.run, *args, use_reentrant=False, context_fn=self.contexts, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.modules, self.calls = Counter(), Counter()
        self.within = [""]
        result = self.forward(*args, **kwargs)
        if not self.checked:
            self.checked = True
            self.check()
        return result

    def counted(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def called(*args: Any, **kwargs: Any) -> Any:
            number = self.modules[name]
            self.modules[name] += 1
            self.within.append(f"{name}@{number}" if number else name)
            try:
                return forward(*args, **kwargs)
            finally:
                self.within.pop()

        return called

    def contexts(self) -> tuple[Any, Any]:
        saving, replaying = create_selective_checkpoint_contexts(self.policy)
        return saving, self.replayed(replaying)

    @contextlib.contextmanager
    def replayed(self, replaying: Any) -> Iterator[None]:
        # A second run must not renew running statistics once more.
        kept = [(module, dict(module._buffers)) for module in self.averaging]
        for module, buffers in kept:
            copies = {k: b if b is None else b.clone() for k, b in buffers.items()}
            module._buffers.update(copies)
        try:
            with replaying:
                yield
        finally:
            for module, buffers in kept:
                module._buffers.update(buffers)

    def policy(self, context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        name = getattr(operator, "overloadpacket", operator).__name__.rstrip("_")
        family = FAMILIES.get(name, name)
        call = (self.within[-1], family)
        number = self.calls[call]
        self.calls[call] += 1
        letters = self.inside.get(call[0], {}).get(family, "")
        if letters[number : number + 1] == "s" and not _is_fixed(operator, family):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    def check(self) -> None:
        """Warn of planned calls that were not made: the model is not the one that was planned."""
        for name, families in self.inside.items():
            for family, letters in families.items():
                if self.calls[name, family] <= letters.rfind("s"):
                    where = ".".join(part for part in (self.path, name) if part)
                    warnings.warn(
                        f"planned for {len(letters)} calls of {family} in {where}, found "
                        f"{self.calls[name, family]}: plan anew for this model",
                        stacklevel=2,
                    )


def _is_fixed(operator: Any, family: str) -> bool:
    """Whether an operator must run again: it writes over a tensor, or draws random numbers, which
    have to be drawn in the order of the first run."""
    random = torch.Tag.nondeterministic_seeded in operator.tags and family != "attention"
    return bool(random or operator._schema.is_mutable)
