"""Several steps of one model, trained in turns: discriminator and generator, actor and critic.

Each step has a session, an optimizer and a counter of its own. What is the model's (parameters,
running statistics, averages) is in memory once under its name: what one step renews is what the
others read, whether they train it too or have it frozen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping
from os import PathLike
from typing import Any

import numpy.typing as npt

from memplan.api.source import Model
from memplan.errors import UsageError
from memplan.ir.roles import SHARED
from memplan.shapes.dims import symbolic_dims
from memplan.training.batches import Batch
from memplan.training.checkpoint import TURNS, Progress, Wanted, load_checkpoint
from memplan.training.initial import Init, is_ignored
from memplan.training.kept import Kept, no_state_of
from memplan.training.knobs import Rate
from memplan.training.step_file import Slot, StepFile, read_step
from memplan.training.trained_weights import Weights, read_weights
from memplan.training.trainer import Trainer

Array = npt.NDArray[Any]


class AlternatingTrainer(Kept[dict[str, int]]):
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
        wanted = _wanted(files)
        given = {} if weights is None else read_weights(weights, wanted.state)
        about = None
        if resume is not None:
            given, about = load_checkpoint(resume, wanted)
        _require_known(files, given, wanted.state)
        rates = lr if isinstance(lr, Mapping) else dict.fromkeys(files, lr)
        for name in rates:
            _require_step(name, files)
        settings: dict[str, Any] = {"provider": provider, "threads": threads, "seed": seed}
        settings |= {"init": init, "in_place": in_place, "guard": guard}
        self._trainers: dict[str, Trainer] = {}
        self._keys = {
            name: {_key(name, slot): slot.name for slot in file.state}
            for name, file in files.items()
        }
        self.notes: tuple[str, ...] = ()
        for name, file in files.items():
            first = {n: given[k] for k, n in self._keys[name].items() if k in given}
            first |= self._shared_values(name, file, first)
            self._trainers[name] = Trainer(file, first, lr=rates.get(name), **settings)
        self._share()
        self._parts = {name: one.memory for name, one in self._trainers.items()}
        self.notes += tuple(
            f"{name}: {note}" for name, one in self._trainers.items() for note in one.notes
        )
        if about is not None:
            self._restore(given, about)

    def _shared_values(
        self, name: str, file: StepFile, given: Mapping[str, Any]
    ) -> dict[str, Array]:
        """What steps before this one have of its state, as far as nothing else is ``given``."""
        found: dict[str, Array] = {}
        differing = []
        for slot in _shared(file):
            owner = next((n for n, o in self._trainers.items() if slot.name in o.file.slots), None)
            if owner is None or slot.name in given:
                continue
            value = self._trainers[owner].session.get(slot.name)
            found[slot.name] = value
            if slot.default is not None and value.tobytes() != slot.default.tobytes():
                differing.append((slot.name, owner))
        if differing:
            first, owner = differing[0]
            more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            self.notes += (
                f"'{first}'{more} of step '{name}' begin as in step '{owner}', whose file has "
                "other values",
            )
        return found

    def _share(self) -> None:
        """Let all sessions have the same arrays of the model.

        Raises:
            UsageError: they are on different devices.
        """
        providers = {one.request.provider for one in self._trainers.values()}
        if len(providers) > 1:
            raise UsageError(
                f"the steps were planned for different providers: {', '.join(sorted(providers))}",
                "give one: provider='cpu'",
            )
        names = {n: {slot.name for slot in _shared(o.file)} for n, o in self._trainers.items()}
        for one, leader in self._trainers.items():
            for other, led in self._trainers.items():
                if other != one and (common := names[one] & names[other]):
                    leader.session.lead(led.session, common)

    # --- Steps ---------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Trainer:
        """The trainer of one step.

        Raises:
            UsageError: there is no such step.
        """
        _require_step(name, self._trainers)
        return self._trainers[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the steps."""
        return iter(self._trainers)

    def __len__(self) -> int:
        """How many steps there are."""
        return len(self._trainers)

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
        for other, one in self._trainers.items():
            if not one.is_whole:
                raise UsageError(
                    f"step '{other}' failed while it wrote in place: the state is partly new",
                    "load a checkpoint: resume(path)",
                )
        return trainer.step(batch, **arrays)

    @property
    def steps(self) -> dict[str, int]:
        """How many steps of each were taken."""
        return {name: one.steps for name, one in self._trainers.items()}

    # --- State ---------------------------------------------------------------------------------

    # ``state_dict`` names what is the model's by its name, optimizer state and counters
    # ``STEP/NAME``.

    @property
    def _step_files(self) -> list[StepFile]:
        return [one.file for one in self._trainers.values()]

    @property
    def _wanted(self) -> Wanted:
        return _wanted({name: one.file for name, one in self._trainers.items()})

    def _progress(self) -> Progress:
        numbers = {
            f"{name}/{key}": value
            for name, one in self._trainers.items()
            for key, value in one.numbers.items()
        }
        fingerprint = self._wanted.fingerprint
        return Progress(fingerprint, sum(self.steps.values()), numbers, {TURNS: self.steps})

    def adopt(self, about: Progress) -> None:
        taken = (about.data or {})[TURNS]
        for name, one in self._trainers.items():
            prefix = f"{name}/"
            numbers = {
                key.removeprefix(prefix): value
                for key, value in about.hyperparameters.items()
                if key.startswith(prefix)
            }
            one.adopt(Progress(about.fingerprint, taken[name], numbers))

    def close(self) -> None:
        """Let go of the sessions and their memory."""
        for one in self._trainers.values():
            one.close()

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {one!r}" for name, one in self._trainers.items())


def _read(steps: Mapping[str, Model], dims: Mapping[str, int]) -> dict[str, StepFile]:
    """The files, each with the sizes of its own symbolic dimensions."""
    if not isinstance(steps, Mapping) or not steps:
        raise UsageError("steps are given by name", 'as in {"d": "d_step.onnx", "g": ...}')
    plain = {name: read_step(model) for name, model in steps.items()}
    known = {name: set(symbolic_dims(file.whole)) for name, file in plain.items()}
    unknown = [dim for dim in dims if not any(dim in names for names in known.values())]
    if unknown:
        raise UsageError(f"no step has a dimension '{unknown[0]}'")
    own = {name: {d: n for d, n in dims.items() if d in known[name]} for name in plain}
    return {
        name: read_step(steps[name], own[name]) if own[name] else file
        for name, file in plain.items()
    }


def _shared(file: StepFile) -> list[Slot]:
    """The state of a step that is the model's."""
    return [slot for slot in file.state if slot.role in SHARED]


def _key(step: str, slot: Slot) -> str:
    return slot.name if slot.role in SHARED else f"{step}/{slot.name}"


def _require_step(name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise UsageError(f"unknown step '{name}'", f"steps: {', '.join(known)}")


def _require_known(
    files: Mapping[str, StepFile], given: Iterable[str], state: Container[str]
) -> None:
    """Refuse values for what is state of no step."""
    for key in given:
        if key not in state and not is_ignored(key):
            raise no_state_of(files.values(), key)


def _require_fitting(files: Mapping[str, StepFile]) -> None:
    """Refuse steps that cannot have their parameters in common.

    Raises:
        UsageError: a name has different types or shapes; or what one step renews is a constant of
            another, which would go on reading the first value.
    """
    seen: dict[str, tuple[str, Slot]] = {}
    for name, file in files.items():
        for slot in _shared(file):
            other, first = seen.setdefault(slot.name, (name, slot))
            if (slot.element, slot.static_shape) != (first.element, first.static_shape):
                raise UsageError(
                    f"'{slot.name}' is {first.words} in step '{other}' and {slot.words} in step "
                    f"'{name}'",
                    "steps of one trainer share what has one name: capture them from one model",
                )
    for name, file in files.items():
        renewed = set(file.contract.new_values.values())
        for slot in _shared(file):
            for other, second in files.items():
                if slot.name in renewed and second.has_constant(slot.name):
                    raise UsageError(
                        f"'{slot.name}' is renewed by step '{name}' and a constant of step "
                        f"'{other}', which would never see its new values",
                        f"capture '{other}' with --frozen inputs",
                    )


def _fingerprint(files: Mapping[str, StepFile]) -> str:
    text = "\n".join(f"{name} {file.fingerprint}" for name, file in files.items())
    return hashlib.sha256(text.encode()).hexdigest()


def _wanted(files: Mapping[str, StepFile]) -> Wanted:
    """What a checkpoint of all steps must be of."""
    slots: dict[str, Slot] = {}
    for name, file in files.items():
        for slot in file.state:
            slots.setdefault(_key(name, slot), slot)
    knobs = [f"{name}/{knob}" for name, file in files.items() for knob in file.knobs]
    return Wanted(_fingerprint(files), slots, knobs, list(files))
