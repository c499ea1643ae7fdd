"""Everything that can be reached from a step and may change between two of its calls.

A walk through Python objects, breadth first, so that what is found is named by its shortest path:
attributes of modules and of the user's objects, containers, tensors that no state dict holds,
closures, defaults, globals that the user's functions name, class attributes, iterators, generators
of random numbers, hooks, modes. It runs no code of the user's: no property, no ``__getattr__``, no
``__eq__``. Libraries are not entered, and references that are weak are not followed.
"""

from __future__ import annotations

import random
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache, partial
from itertools import count
from operator import length_hint
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from memplan.pytorch import state_keepers as keepers
from memplan.pytorch.state_keepers import MISSING, Keeper, SavedTensor
from memplan.pytorch.user_code import (
    attributes_of,
    is_entered,
    is_own_module,
    module_of,
    names_in,
    slots_of,
)

Token = tuple[Any, ...]
Write = Callable[[Any], None]
MOST_OBJECTS = 100_000
MOST_BYTES = 2**28
"""Of tensors and arrays that are copied."""
_TOLD = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(...), range, CodeType)
_PARTS = ("_parameters", "_buffers", "_modules")


class StateWalk:
    """What was found.

    ``tokens`` tell by path what something is now; ``numbers`` are those of them that count, and how
    another is put in their place. ``keepers`` put everything back, ``tensors`` those of tensors.
    ``limited``: there was more.
    """

    def __init__(
        self,
        roots: Iterable[tuple[str, Any]],
        known: Mapping[int, str],
        saved: Mapping[int, SavedTensor],
    ) -> None:
        """Walk.

        Args:
            roots: what to begin with, and what it is called.
            known: names of tensors whose contents are not looked at, by ``id``.
            saved: tensors that an earlier walk has copied, by ``id``.
        """
        self.tokens: dict[str, Token] = {}
        self.numbers: dict[str, tuple[Any, Write]] = {}
        self.keepers: list[Keeper] = []
        self.tensors: dict[int, SavedTensor] = {}
        self.limited = False
        self._known, self._saved, self._room = known, saved, MOST_BYTES
        self._seen: dict[int, str] = {}
        self._alive: list[Any] = []
        self._globals: set[tuple[int, str]] = set()
        self._todo: deque[tuple[str, Any, Write | None]] = deque()
        for path, value in roots:
            self._todo.append((path, value, None))
        while self._todo:
            if len(self._alive) > MOST_OBJECTS:
                self.limited = True
                break
            path, value, write = self._todo.popleft()
            try:
                self._visit(path, value, write)
            except Exception as error:  # an object that does not let itself be read
                self._note(path, (type(error).__name__,))

    def _note(self, path: str, token: Token) -> str:
        """Take note of a token; the path, which no other has."""
        while path in self.tokens:
            path += "'"
        self.tokens[path] = token
        return path

    def _visit(self, path: str, value: Any, write: Write | None) -> None:
        kind: Any = type(value)
        if kind in _PLAIN:
            path = self._note(path, (kind.__name__, repr(value) if kind is float else value))
            if kind in (int, float) and write is not None:
                self.numbers[path] = (value, write)
            return
        if kind in _TOLD:
            self._note(path, (str(value),))
            return
        if id(value) in self._seen:
            self._note(path, ("the same as", self._seen[id(value)]))
            return
        rule = _rule_of(kind)
        if rule == "ignored":
            return
        self._seen[id(value)] = path
        self._alive.append(value)
        getattr(self, f"_{rule}")(path, value, write)

    def _later(self, path: str, value: Any, write: Write | None = None) -> None:
        self._todo.append((path, value, write))

    # --- Values ---------------------------------------------------------------------------------

    def _opaque(self, path: str, value: Any, _write: Write | None) -> None:
        self._note(path, (type(value).__qualname__, id(value)))

    def _scalar(self, path: str, value: Any, write: Write | None) -> None:
        """A number or text of a class of its own, a member of an enumeration."""
        kind = type(value)
        if issubclass(kind, np.generic):
            path = self._note(path, (kind.__name__, repr(value.item())))
            if issubclass(kind, np.integer | np.floating) and write is not None:
                set_to = write
                self.numbers[path] = (value.item(), lambda number: set_to(kind(number)))
            return
        base = next(b for b in (Enum, int, float, str, bytes) if issubclass(kind, b))
        token = value._name_ if base is Enum else base.__repr__(value)
        self._note(path, (kind.__qualname__, token))
        if base is not Enum:
            self._attributes(path, value)

    def _random(self, path: str, value: Any, _write: Write | None) -> None:
        found = keepers.of_generator(value)
        if found is not None:
            self._note(path, ("random", hash(found[0])))
            self.keepers.append(found[1])

    def _iterator(self, path: str, value: Any, _write: Write | None) -> None:
        """It counts, or tells how much is left, and cannot be turned back."""
        said = repr(value) if type(value) is count else length_hint(value, -1)
        self._note(path, (type(value).__name__, said))

    def _generator(self, path: str, value: GeneratorType[Any, Any, Any], _: Write | None) -> None:
        frame = value.gi_frame
        self._note(path, ("generator", frame.f_lasti if frame is not None else None))
        if frame is not None:
            for name, held in frame.f_locals.items():
                self._later(f"{path}'s local '{name}'", held)
            code = value.gi_code
            self._globals_of(frame.f_globals, names_in(code), code.co_filename)

    # --- Tensors --------------------------------------------------------------------------------

    def _tensor(self, path: str, value: Tensor, _write: Write | None) -> None:
        name = self._known.get(id(value))
        if name is not None:
            self._note(path, ("tensor", name, value.requires_grad))
            self.keepers.append(keepers.of_attribute(value, "requires_grad"))
            self._tensor_hooks(path, value)
        else:
            saved = SavedTensor(value, self._room, self._saved.get(id(value)))
            self._room -= saved.copied_bytes
            self.tensors[id(value)] = saved
            path = self._note(path, saved.token)
            if value.numel() == 1 and not value.is_meta and saved.copy is not None:
                self.numbers[path] = (value.detach().item(), value.detach().fill_)
        held = attributes_of(value)
        if held:
            self._dictionary_of(path, held, lambda key: f"{path}.{key}")

    def _tensor_hooks(self, path: str, value: Tensor) -> None:
        self.keepers.append(keepers.of_tensor_hooks(value))
        for hooks in keepers.tensor_hooks(value).values():
            for hook in (hooks or {}).values():
                self._later(f"hook '{_name(hook)}' of {path}", hook)

    def _array(self, path: str, value: np.ndarray[Any, Any], _write: Write | None) -> None:
        plain = np.asarray(value)
        if plain.dtype == object:
            self._note(path, ("array", plain.shape))
            for k, each in enumerate(plain.flat):
                self._later(f"{path}[{k}]", each)
        else:
            digest = keepers.digest_of(np.ascontiguousarray(plain))
            self._note(path, ("array", plain.shape, str(plain.dtype), digest))
        if plain.nbytes <= self._room and plain.flags.writeable:
            self._room -= plain.nbytes
            self.keepers.append(keepers.of_array(value))

    # --- Containers -----------------------------------------------------------------------------

    def _dict(self, path: str, value: dict[Any, Any], _write: Write | None) -> None:
        self._note(path, (type(value).__qualname__, dict.__len__(value)))
        self._dictionary_of(path, value, lambda key: f"{path}[{key!r}]")
        self._attributes(path, value)

    def _dictionary_of(self, path: str, held: dict[Any, Any], called: Callable[[Any], str]) -> None:
        """The values of a dictionary, each called after its key."""
        self.keepers.append(keepers.of_container(held))
        for k, (key, value) in enumerate(list(dict.items(held))):
            name = called(key) if type(key) in _PLAIN else f"{path}[{type(key).__name__} {k}]"
            self._later(name, value, partial(dict.__setitem__, held, key))

    def _sequence(self, path: str, value: Any, _write: Write | None) -> None:
        kind: Any = next(each for each in (list, tuple, deque) if issubclass(type(value), each))
        items = list(kind.__iter__(value))
        self._note(path, (type(value).__qualname__, len(items)))
        if kind is not tuple:
            self.keepers.append(keepers.of_container(value))
        for k, each in enumerate(items):
            write = None if kind is tuple else partial(kind.__setitem__, value, k)
            self._later(f"{path}[{k}]", each, write)
        self._attributes(path, value)

    def _set(self, path: str, value: Any, _write: Write | None) -> None:
        items = list(set.__iter__(value) if issubclass(type(value), set) else iter(value))
        plain = frozenset((type(i).__name__, i) for i in items if type(i) in _PLAIN)
        self._note(path, (type(value).__qualname__, len(items), plain))
        if issubclass(type(value), set):
            self.keepers.append(keepers.of_container(value))
        for each in items:
            if type(each) not in _PLAIN:
                self._later(f"{path}'s {type(each).__name__}", each)
        self._attributes(path, value)

    # --- Code -----------------------------------------------------------------------------------

    def _function(self, path: str, value: FunctionType, _write: Write | None) -> None:
        code = value.__code__
        self._note(path, ("function", id(code)))
        module = value.__globals__.get("__name__", "")
        if type(module) is not str or not is_own_module(module):
            for held in (keepers.in_cell(cell) for cell in value.__closure__ or ()):
                if type(held) in (FunctionType, MethodType, partial):  # what a decorator is around
                    self._later(path, held)
            return
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            self.keepers.append(keepers.of_cell(cell))
            held = keepers.in_cell(cell)
            if held is not MISSING and name != "__class__":
                where = f"{path}'s closure '{name}'"
                self._later(where, held, partial(setattr, cell, "cell_contents"))
        self.keepers.append(keepers.of_attribute(value, "__defaults__"))
        defaults = value.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount][-len(defaults) :]
        for name, held in zip(names, defaults, strict=False):
            self._later(f"{path}'s default '{name}'", held)
        if value.__kwdefaults__:
            where = f"{path}'s default"
            self._dictionary_of(path, value.__kwdefaults__, lambda key: f"{where} '{key}'")
        self._dictionary_of(path, value.__dict__, lambda key: f"{path}'s attribute '{key}'")
        self._globals_of(value.__globals__, names_in(code), code.co_filename)

    def _globals_of(self, held: dict[str, Any], names: Iterable[str], file: str) -> None:
        """The globals of a module of the user's that code there names."""
        new = sorted(name for name in names if (id(held), name) not in self._globals)
        self._globals |= {(id(held), name) for name in new}
        values = {name: held.get(name, MISSING) for name in new}
        self.keepers.append(
            keepers.of_names(
                values,
                lambda name: held.get(name, MISSING),
                partial(dict.__setitem__, held),
                partial(dict.__delitem__, held),
            )
        )
        short = file.rpartition("/")[2]
        for name, value in values.items():
            if type(value) is ModuleType:
                if is_own_module(value.__name__):
                    own = vars(value)
                    self._globals_of(own, set(names) & own.keys(), f"{value.__name__}.py")
            elif value is not MISSING:
                write = partial(dict.__setitem__, held, name)
                self._later(f"global '{name}' of {short}", value, write)

    def _method(self, path: str, value: MethodType, _write: Write | None) -> None:
        self._note(path, ("method", id(value.__func__)))
        self._later(path, value.__self__)
        self._later(path, value.__func__)

    def _builtin(self, path: str, value: Any, _write: Write | None) -> None:
        owner = value.__self__
        self._note(path, ("builtin", value.__name__))
        if type(owner) is not ModuleType:
            self._later(path, owner)

    def _partial(self, path: str, value: partial[Any], _write: Write | None) -> None:
        self._note(path, ("partial", len(value.args)))
        self._later(path, value.func)
        for k, each in enumerate(value.args):
            self._later(f"{path}'s argument {k}", each)
        self._dictionary_of(path, value.keywords, lambda key: f"{path}'s argument '{key}'")

    def _class(self, path: str, value: type, _write: Write | None) -> None:
        self._note(path, ("class", id(value)))
        if not is_own_module(module_of(value)):
            return
        name = value.__qualname__.rpartition("<locals>.")[2]
        held = {
            key: each
            for key, each in vars(value).items()
            if type(each) is FunctionType or not (key.startswith("__") or key == "_abc_impl")
        }
        self.keepers.append(
            keepers.of_names(
                held,
                lambda key: vars(value).get(key, MISSING),
                partial(type.__setattr__, value),
                partial(type.__delattr__, value),
            )
        )
        for key, each in held.items():
            inner = _inner_function(each)
            if inner is not None:
                self._later(f"{name}.{key}", inner)
            else:
                write = partial(type.__setattr__, value, key)
                self._later(f"class attribute {name}.{key}", each, write)
        for base in value.__mro__[1:]:
            self._later(base.__qualname__, base)

    # --- Objects --------------------------------------------------------------------------------

    def _object(self, path: str, value: Any, _write: Write | None) -> None:
        self._note(path, (type(value).__qualname__,))
        self._attributes(path, value)

    def _attributes(self, path: str, value: Any) -> None:
        """What an object has as attributes and in slots, and what its class has."""
        kind = type(value)
        if not is_entered(kind):
            return
        held = attributes_of(value)
        if held is not None:
            self._dictionary_of(path, held, lambda key: f"{path}.{key}")
        slots = dict(slots_of(kind))
        if slots:
            read = partial(_slot, slots, value)
            self.keepers.append(
                keepers.of_names(
                    slots,
                    read,
                    lambda name, new: slots[name].__set__(value, new),
                    lambda name: slots[name].__delete__(value),
                )
            )
            for name, slot in slots.items():
                if read(name) is not MISSING:
                    self._later(f"{path}.{name}", read(name), partial(slot.__set__, value))
        if is_own_module(module_of(kind)):
            self._later(kind.__qualname__, kind)

    def _module(self, path: str, value: nn.Module, write: Write | None) -> None:
        """A module: what it consists of is called as in its state dict."""
        self._note(path, (type(value).__qualname__,))
        held = attributes_of(value) or {}
        self.keepers.append(keepers.of_container(held))
        for key, each in list(held.items()):
            if key in _PARTS and issubclass(type(each), dict):
                self._note(f"{path}'s {key[1:]}", tuple(each))
                self._dictionary_of(path, each, lambda name: f"{path}.{name}")
            elif key.endswith("hooks") and issubclass(type(each), dict):
                self.keepers.append(keepers.of_container(each))
                if each:
                    self._note(f"{path}'s {key[1:].replace('_', ' ')}", (len(each),))
                for hook in each.values():
                    self._later(f"hook '{_name(hook)}' of {path}", hook)
            else:
                self._later(f"{path}.{key}", each, partial(dict.__setitem__, held, key))
        if is_own_module(module_of(type(value))):
            self._later(type(value).__qualname__, type(value))


def _slot(slots: Mapping[str, Any], held: Any, name: str) -> Any:
    try:
        return slots[name].__get__(held)
    except AttributeError:
        return MISSING


def _inner_function(held: Any) -> FunctionType | None:
    """The function in what a class holds under a name."""
    kind, found = type(held), held
    if kind in (staticmethod, classmethod):
        found = held.__func__
    elif kind is property:
        found = held.fget
    return found if isinstance(found, FunctionType) else None


def _name(hook: Any) -> str:
    name = hook.__qualname__ if type(hook) is FunctionType else type(hook).__qualname__
    return name.rpartition("<locals>.")[2]


@cache
def _rule_of(kind: type) -> str:
    """By which method of :class:`StateWalk` objects of a class are looked at."""
    for kinds, rule in _RULES:
        if issubclass(kind, kinds):
            return rule
    if kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__"):
        return "iterator"
    return "object" if is_entered(kind) and kind is not object else "opaque"


_RULES: tuple[tuple[Any, str], ...] = (
    ((weakref.ref, weakref.ProxyType, weakref.CallableProxyType, ModuleType), "ignored"),
    (Tensor, "tensor"),
    (np.ndarray, "array"),
    (nn.Module, "module"),
    ((np.generic, Enum, int, float, str, bytes), "scalar"),
    (dict, "dict"),
    ((list, tuple, deque), "sequence"),
    ((set, frozenset), "set"),
    (FunctionType, "function"),
    (MethodType, "method"),
    ((BuiltinFunctionType, MethodWrapperType), "builtin"),
    ((random.Random, np.random.Generator, np.random.RandomState, torch.Generator), "random"),
    (partial, "partial"),
    (type, "class"),
    (GeneratorType, "generator"),
)
