"""A step as PyTorch takes it, eagerly: what a captured one is held against.

The step runs on the user's own modules, as its code reads it, but on other values: parameters and
buffers are exchanged for copies meanwhile, and everything is as it was afterwards (gradients,
generators and what the step keeps in Python, too), unless the caller wants the step to have been
taken.
"""

from __future__ import annotations

import random
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memplan.pytorch.draws import Draws, TorchDraw
from memplan.pytorch.hidden_state import HiddenState
from memplan.pytorch.prepared_step import PreparedStep, user_name
from memplan.pytorch.torch_checkpoints import marked_regions
from memplan.pytorch.torch_internals import internal
from memplan.pytorch.trace import quiet

_Mode: Any = internal("torch.utils._python_dispatch.TorchDispatchMode")
_pytree: Any = internal("torch.utils._pytree")
_OWN = 0.75
"""What a row of a batch keeps of itself, where it is mixed with another."""
_SCALED = 1 / 64


@dataclass(frozen=True, slots=True)
class EagerStep:
    """One eager step: forward and backward.

    ``values`` are tensors by kind and the user's name: the ``loss``, an array in float64; every
    ``gradient`` that PyTorch gave, in the parameter's type or float64; each ``metric`` beside the
    loss; as ``buffer`` all buffers and frozen parameters, as the step left them. ``outside`` says
    that Python's or NumPy's random numbers were drawn, ``ties`` which operators PyTorch lets choose
    among equal elements, and did; ``peak_bytes`` is the most that tensors made in the step took at
    a time, where it was watched.
    """

    loss: float
    values: dict[tuple[str, str], Any]
    draws: tuple[TorchDraw, ...]
    unknown: tuple[str, ...]
    ties: tuple[str, ...]
    outside: bool
    seconds: float
    peak_bytes: int


class _Watch(_Mode):
    """Counts the bytes of tensors that operators make, as long as they live."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See the class."""
        for tensor in _tensors((args, kwargs)):
            self._known.add(tensor.untyped_storage()._cdata)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._count(tensor.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def _count(self, storage: Any) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += nbytes

        def gone() -> None:
            self.now -= nbytes
            self._known.discard(key)

        weakref.finalize(storage, gone)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


class Eager:
    """Takes a prepared step again and again; ``state`` is what the next one finds in Python,
    ``batch`` what it is given. ``plain``: nothing looks on, for steps that do not run otherwise
    (``torch.cond`` compiles); draws are PyTorch's then, and no bytes are counted."""

    def __init__(self, prepared: PreparedStep, state: HiddenState | None = None) -> None:
        """Take note of what there is."""
        self.prepared, self.state = prepared, state or HiddenState(prepared)
        self.batch, self.plain = prepared.batch, False
        self.parameters = prepared.parameters()
        self.buffers = {user_name(n): b for n, b in prepared.module.named_buffers()}
        self._held = (*self.parameters.values(), *self.buffers.values(), *self.batch.values())

    @property
    def has_values(self) -> bool:
        """Whether there is something to compute with: not on the meta device."""
        return not any(tensor.is_meta for tensor in self._held)

    @property
    def resident_bytes(self) -> int:
        """Parameters, buffers and the batch."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._held)

    def run(
        self,
        number: int = 0,
        values: Mapping[str, Tensor] | None = None,
        *,
        advance: bool = False,
        **how: bool,
    ) -> EagerStep:
        """Take the step once.

        Args:
            number: tells the draws of this step from those of others.
            values: parameters and buffers to use instead of those that are there, by name.
            advance: what the step leaves in Python stays; else that is as before the step.
            how: ``wide``: in float64; ``draws=False``: random numbers come from PyTorch's generator
                rather than from :class:`~memplan.pytorch.draws.Draws`; ``watched``: count bytes;
                ``marked``: what is checkpointed runs once, as in a graph.

        Raises:
            Exception: whatever the user's code raises; the step is not taken then.
        """
        try:
            found = self._run(Draws(number), values or {}, **how)
        except BaseException:
            self.state.put_back()
            raise
        if advance:
            self.state = self.state.again()
        else:
            self.state.put_back()
        return found

    def go_to(self, state: HiddenState, batch: Mapping[str, Tensor] | None = None) -> None:
        """Let the next step find another state in Python, and another batch than the example."""
        state.put_back()
        self.state = state
        self.batch = self.prepared.batch if batch is None else batch

    def _run(
        self,
        drawn: Draws,
        values: Mapping[str, Tensor],
        *,
        wide: bool = False,
        draws: bool = True,
        watched: bool = False,
        marked: bool = False,
    ) -> EagerStep:
        watch = _Watch()
        with ExitStack() as stack:
            stack.enter_context(quiet())
            stack.enter_context(self._exchanged(values, wide))
            outside = stack.enter_context(_generators_kept())
            stack.enter_context(marked_regions() if marked else nullcontext())
            batch = {name: _as(t.clone(), wide) for name, t in self.batch.items()}
            if not self.plain:
                # What the step would compile is not to see the modes below.
                stack.enter_context(torch.compiler.set_stance("force_eager"))
                stack.enter_context(watch if watched else nullcontext())
                stack.enter_context(drawn if draws else nullcontext())
            generator = torch.get_rng_state()
            begin = time.perf_counter()
            with torch.enable_grad():
                result = self.prepared.module(batch)
                loss, metrics = result if isinstance(result, tuple) else (result, {})
                value = float(loss.detach())
                loss.backward()
            seconds = time.perf_counter() - begin
            del result, loss
            return EagerStep(
                loss=value,
                values=self._values_now(value, metrics),
                draws=tuple(drawn.made),
                unknown=tuple(drawn.unknown) or self._drawn_alone(generator),
                ties=tuple(drawn.ties),
                outside=outside(),
                seconds=seconds,
                peak_bytes=watch.peak,
            )

    def shaken(
        self, values: Mapping[str, Tensor], share: float, seed: int = 0
    ) -> dict[str, Tensor]:
        """Parameters, those of ``values`` where it has them, each element off by about ``share`` of
        itself, in float64; and the buffers of ``values``."""
        generator = torch.Generator().manual_seed(seed)
        found = dict(values)
        for name, parameter in self.parameters.items():
            wide = values.get(name, parameter).detach().double()
            noise = torch.randn(wide.shape, generator=generator, dtype=torch.float64)
            found[name] = wide * (1 + share * noise.to(wide.device))
        return found

    def _drawn_alone(self, before: Tensor) -> tuple[str, ...]:
        """What drew from PyTorch's generator while nothing looked on."""
        drew = self.plain and not torch.equal(before, torch.get_rng_state())
        return ("what draws in this step",) if drew else ()

    def _values_now(self, loss: float, metrics: Mapping[str, Tensor]) -> dict[tuple[str, str], Any]:
        parameters, buffers = self.parameters.items(), self.prepared.module.named_buffers()
        found: dict[tuple[str, str], Any] = {("loss", "loss"): np.asarray(loss)}
        found |= {("gradient", n): p.grad for n, p in parameters if p.grad is not None}
        found |= {("metric", n): metric for n, metric in metrics.items()}
        found |= {("buffer", n): p.detach() for n, p in parameters if not p.requires_grad}
        named = {user_name(n): b.detach() for n, b in buffers}
        return found | {("buffer", n): b for n, b in named.items() if n in self.buffers}

    @contextmanager
    def _exchanged(self, values: Mapping[str, Tensor], wide: bool) -> Iterator[None]:
        """Inside, the module has copies for parameters and buffers."""
        module = self.prepared.module
        own = [(p, p.data, p.grad) for p in self.parameters.values()]
        places = [
            (each, key, buffer)
            for each in module.modules()
            for key, buffer in each._buffers.items()
            if buffer is not None
        ]
        copies = {
            id(buffer): _as(values.get(name, buffer).detach().clone(), wide)
            for name, buffer in self.buffers.items()
        }
        try:
            for name, parameter in self.parameters.items():
                parameter.grad = None
                parameter.data = _as(values.get(name, parameter).detach().clone(), wide)
            for each, key, buffer in places:
                each._buffers[key] = copies.get(id(buffer), buffer)
            yield
        finally:
            for parameter, data, grad in own:
                parameter.grad = None
                parameter.data = data
                parameter.grad = grad
            for each, key, buffer in places:
                each._buffers[key] = buffer


def _as(tensor: Tensor, wide: bool) -> Tensor:
    return tensor.double() if wide and tensor.is_floating_point() else tensor


@contextmanager
def _generators_kept() -> Iterator[Any]:
    """Restores the generators of PyTorch, Python and NumPy; gives a function that says whether one
    of the latter two was used."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)

    def used() -> bool:
        now: Any = np.random.get_state(legacy=False)
        return random.getstate() != python or repr(now) != repr(numpy)

    with torch.random.fork_rng(devices=[]):
        try:
            yield used
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def other_batch(example: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """A batch of the same shapes and types; batch 1 is the example.

    Rows of all tensors that have the common size change places in the same way. Floating-point
    numbers that are not all whole are mixed with those of another row: probabilities remain such,
    and what lies between bounds does. With a single row, the second axis is taken, and
    floating-point numbers become a little smaller.

    Args:
        example: tensors by name.
        number: tells it from other batches.
    """
    if number == 1 or any(tensor.is_meta for tensor in example.values()):
        return dict(example)
    generator = torch.Generator().manual_seed(number)
    axis = 0 if _common(example, 0) > 1 else 1
    size = _common(example, axis)
    if size < 1:
        return dict(example)
    order, other = (torch.randperm(size, generator=generator, device="cpu") for _ in range(2))
    found = {}
    for name, tensor in example.items():
        found[name] = tensor
        if tensor.dim() <= axis or tensor.shape[axis] != size:
            continue
        moved = tensor.detach().index_select(axis, order.to(tensor.device))
        if not _mixes(tensor):
            found[name] = moved
        elif axis:
            found[name] = tensor.detach() * (1 - _SCALED * number)
        else:
            mixed = tensor.detach().index_select(axis, other.to(tensor.device))
            found[name] = _OWN * moved + (1 - _OWN) * mixed
    return found


def _common(example: Mapping[str, Tensor], axis: int) -> int:
    """The size that most tensors have along an axis."""
    sizes = Counter(tensor.shape[axis] for tensor in example.values() if tensor.dim() > axis)
    return max(sizes, key=lambda size: sizes[size], default=0)


def _mixes(tensor: Tensor) -> bool:
    """Whether a tensor holds measurements, rather than numbers of things, flags or masks."""
    if not tensor.is_floating_point():
        return False
    values = tensor.detach()
    return bool(torch.isfinite(values).all()) and not bool((values == values.round()).all())
