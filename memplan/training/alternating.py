"""Several steps of one model, trained in turns: discriminator and generator, actor and critic.

Each step has a session, an optimizer and a counter of its own. What is the model's (parameters,
running statistics, averages) is in memory once under its name: what one step renews is what the
others read, whether they train it too or have it frozen.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from memplan.api.source import Model
from memplan.errors import UsageError
from memplan.ir.roles import SHARED
from memplan.shapes.dims import symbolic_dims
from memplan.training.batches import Batch
from memplan.training.checkpoint import TURNS, Progress, Wanted
from memplan.training.initial import Begin, Init, first_state
from memplan.training.knobs import Rate
from memplan.training.state import Array, Steps, TrainingState
from memplan.training.step_file import Slot, StepFile, read_step
from memplan.training.trained_weights import Weights
from memplan.training.trainer import Trainer


class Group(TrainingState[Steps]):
    """Steps that share the state to which ``_keys`` gives one name."""

    _own: dict[str, Trainer]

    def _open(
        self,
        files: Mapping[str, StepFile],
        begin: Begin,
        rates: Mapping[str, Rate | None],
        **settings: Any,
    ) -> None:
        """Make the trainers, of which all but the first begin with what those before have.

        Args:
            files: the steps by name, with first values.
            begin: state by the names that it has outside, and how far it has come.
            rates: learning rates by the name of a step.
            settings: further arguments of :class:`Trainer`.

        Raises:
            UsageError: a value is missing, or is state of no step; steps have different types or
                shapes of one name, or are planned for different providers.
            ModelError, RuntimeUnavailableError: see :class:`Trainer`.
        """
        given, about = begin
        self._own = {}
        self.notes = ()
        for name, file in files.items():
            keys = self._keys[name]
            values = {inside: given[key] for key, inside in keys.items() if key in given}
            values |= self._shared_values(name, file, values)
            own = (values, self._part_of(name, about))
            self._own[name] = Trainer(file, resume=own, lr=rates.get(name), **settings)
        providers = {one.request.provider for one in self._own.values()}
        if len(providers) > 1:
            raise UsageError(
                f"the steps were planned for different providers: {', '.join(sorted(providers))}",
                "give one: provider='cpu'",
            )
        for name, leader in self._own.items():
            for other, led in self._own.items():
                here, there = self._keys[name], self._keys[other]
                if common := here.keys() & there.keys() if other != name else ():
                    leader.session.lead(led.session, {here[key]: there[key] for key in common})
        self.notes += tuple(
            f"{name}: {note}" for name, one in self._own.items() for note in one.notes
        )

    def _shared_values(
        self, name: str, file: StepFile, given: Mapping[str, Any]
    ) -> dict[str, Array]:
        """What steps before this one have of its state, as far as nothing else is ``given``."""
        found: dict[str, Array] = {}
        differing = []
        for key, inside in self._keys[name].items():
            owner = next((other for other in self._own if key in self._keys[other]), None)
            if owner is None or inside in given:
                continue
            value = found[inside] = self._own[owner].memory.get(self._keys[owner][key])
            default = file.slots[inside].default
            if default is not None and value.tobytes() != default.tobytes():
                differing.append((inside, owner))
        if differing:
            first, owner = differing[0]
            more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            self.notes += (
                f"'{first}'{more} of step '{name}' begin as in step '{owner}', whose file has "
                "other values",
            )
        return found

    @property
    def _trainers(self) -> dict[str, Trainer]:
        return self._own

    @abstractmethod
    def _part_of(self, name: str, about: Progress) -> Progress:
        """What a checkpoint says of one step."""

    def adopt(self, about: Progress) -> None:
        for name, one in self._own.items():
            one.adopt(self._part_of(name, about))

    def _require_whole(self) -> None:
        """Refuse to take a step with a state of which another step has left half.

        Raises:
            UsageError: one has.
        """
        for name, one in self._own.items():
            if not one.is_whole:
                raise UsageError(
                    f"step '{name}' failed while it wrote in place: the state is partly new",
                    "load a checkpoint: resume(path)",
                )

    def close(self) -> None:
        """Let go of the sessions and their memory."""
        for one in self._own.values():
            one.close()


class AlternatingTrainer(Group[dict[str, int]]):
    """Trains with several steps that share parameters, one at a time.

        trainer = memplan.AlternatingTrainer({"d": "d_step.onnx", "g": "g_step.onnx"})
        for images, noise in batches:
            trainer.step("d", x=images, z=noise)
            trainer.step("g", z=noise)

    ``trainer["d"]`` is the :class:`memplan.training.trainer.Trainer` of one step, with its learning
    rate, hyperparameters, metrics and :meth:`export_forward`.

    Args:
        steps: training steps by name: paths or ``ModelProto``. What one of them trains is to be an
            input of all that read it: ``memplan capture --frozen inputs``.
        weights: first values by name, of any of them; see ``Trainer``. Other shared values are
            those of the first step that has them.
        init: see ``Trainer``.
        resume: a checkpoint of these steps to go on from.
        lr: the learning rate of all, or a mapping by name of the step.
        provider: see ``Trainer``.
        dims: sizes of symbolic dimensions, of any of them.
        threads: see ``Trainer``.
        in_place: see ``Trainer``.
        guard: see ``Trainer``.
        seed: see ``Trainer``.

    Raises:
        ModelError: a file cannot be read, or renews nothing.
        UsageError: a value is missing or does not fit; two steps have different types or shapes of
            one name, or one has as a constant what another renews.
        RuntimeUnavailableError: ONNX Runtime refuses a file or the provider.
    """

    def __init__(
        self,
        steps: Mapping[str, Model],
        weights: Weights | None = None,
        *,
        init: Init = None,
        resume: PathLike[str] | str | None = None,
        lr: Rate | Mapping[str, Rate] | None = None,
        provider: str | None = None,
        dims: Mapping[str, int] | None = None,
        threads: int = 0,
        in_place: bool = True,
        guard: bool = True,
        seed: int = 0,
    ) -> None:
        files = _read(steps, dims or {})
        _require_fitting(files)
        self._keys = {
            name: {_key(name, slot): slot.name for slot in file.state}
            for name, file in files.items()
        }
        self._wanted = _wanted(files)
        rates = lr if isinstance(lr, Mapping) else dict.fromkeys(files, lr)
        for name in rates:
            _require_step(name, files)
        self._open(
            files,
            first_state(files.values(), self._wanted, weights, resume),
            rates,
            init=init,
            provider=provider,
            threads=threads,
            in_place=in_place,
            guard=guard,
            seed=seed,
        )

    # --- Steps ---------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Trainer:
        """The trainer of one step.

        Raises:
            UsageError: there is no such step.
        """
        _require_step(name, self._own)
        return self._own[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the steps."""
        return iter(self._own)

    def __len__(self) -> int:
        """How many steps there are."""
        return len(self._own)

    def step(self, name: str, batch: Batch | None = None, /, **arrays: Any) -> float:
        """Take one of the steps, and return its loss.

        Args:
            name: which.
            batch: arrays by name; see ``Trainer.step``.
            arrays: further arrays and hyperparameters.

        Raises:
            UsageError, TrainingError, RuntimeUnavailableError: see ``Trainer.step``.
        """
        trainer = self[name]
        self._require_whole()
        return trainer.step(batch, **arrays)

    @property
    def steps(self) -> dict[str, int]:
        """How many steps of each were taken."""
        return {name: one.steps for name, one in self._own.items()}

    def _progress(self) -> Progress:
        numbers = {
            f"{name}/{key}": value
            for name, one in self._own.items()
            for key, value in one.numbers.items()
        }
        taken = self.steps
        return Progress(self._wanted.fingerprint, sum(taken.values()), numbers, {TURNS: taken})

    def _part_of(self, name: str, about: Progress) -> Progress:
        prefix = f"{name}/"
        numbers = {
            key.removeprefix(prefix): value
            for key, value in about.hyperparameters.items()
            if key.startswith(prefix)
        }
        taken = (about.data or {}).get(TURNS, {}).get(name, 0)
        return Progress(about.fingerprint, taken, numbers)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {one!r}" for name, one in self._own.items())


def _read(steps: Mapping[str, Model], dims: Mapping[str, int]) -> dict[str, StepFile]:
    """The files, each with the sizes of its own symbolic dimensions."""
    if not isinstance(steps, Mapping) or not steps:
        raise UsageError("steps are given by name", 'as in {"d": "d_step.onnx", "g": ...}')
    files: dict[str, StepFile] = {}
    known: set[str] = set()
    for name, model in steps.items():
        file = read_step(model)
        own = {dim: dims[dim] for dim in symbolic_dims(file.model) if dim in dims}
        files[name] = read_step(model, own) if own else file
        known |= own.keys()
    unknown = [dim for dim in dims if dim not in known]
    if unknown:
        raise UsageError(f"no step has a dimension '{unknown[0]}'")
    return files


def _key(step: str, slot: Slot) -> str:
    """The name outside: what is the model's has its own, all else ``STEP/NAME``."""
    return slot.name if slot.role in SHARED else f"{step}/{slot.name}"


def _require_step(name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise UsageError(f"unknown step '{name}'", f"steps: {', '.join(known)}")


def _require_fitting(files: Mapping[str, StepFile]) -> None:
    """Refuse steps that cannot have their parameters in common.

    Raises:
        UsageError: a name has different types or shapes; or what one step renews is a constant of
            another, which would go on reading the first value.
    """
    seen: dict[str, tuple[str, Slot]] = {}
    for name, file in files.items():
        renewed = set(file.contract.new_values.values())
        for slot in file.named(*SHARED):
            other, first = seen.setdefault(slot.name, (name, slot))
            if (slot.element, slot.static_shape) != (first.element, first.static_shape):
                raise UsageError(
                    f"'{slot.name}' is {first.words} in step '{other}' and {slot.words} in step "
                    f"'{name}'",
                    "steps of one trainer share what has one name: capture them from one model",
                )
            fixed = (n for n, f in files.items() if f.has_constant(slot.name))
            if slot.name in renewed and (other := next(fixed, "")):
                raise UsageError(
                    f"'{slot.name}' is renewed by step '{name}' and a constant of step "
                    f"'{other}', which would never see its new values",
                    f"capture '{other}' with --frozen inputs",
                )


def _wanted(files: Mapping[str, StepFile]) -> Wanted:
    """What a checkpoint of all steps must be of."""
    slots: dict[str, Slot] = {}
    for name, file in files.items():
        for slot in file.without_values().state:
            slots.setdefault(_key(name, slot), slot)
    knobs = [f"{name}/{knob}" for name, file in files.items() for knob in file.knobs]
    text = "\n".join(f"{name} {file.fingerprint}" for name, file in files.items())
    return Wanted(hashlib.sha256(text.encode()).hexdigest(), slots, knobs, list(files))
