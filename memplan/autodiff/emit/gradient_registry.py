"""Who knows the gradient of which operator. One file per family in ``memplan/autodiff/rules/``.

A rule is a function of a :class:`Context` that returns one gradient per input of the forward node::

    @gradient("Relu")
    def relu(ctx: Context) -> Gradients:
        y = ctx.outputs[0]
        return (ctx.op("Where", ctx.op("Greater", y, 0.0), ctx.dy, 0.0),)

    @gradient("Mul", elementwise=True)
    def mul(ctx: Context) -> Gradients:
        a, b = ctx.tensors
        return (lambda: ctx.dy * b, lambda: ctx.dy * a)

- **An entry** is a tensor, None (zero), or a function without arguments that builds the tensor. A
  function is called only if that input needs a gradient, and inputs that are parameters come first;
  so rules with several differentiable inputs return functions. Trailing entries may be left out.
- **What a rule names is what is kept in memory**: take the cheapest form (the output rather than
  the input, a mask, indices, saved statistics). Nodes that nobody reads are dropped in the end.
- **Gradients in**: ``ctx.grads[k]`` belongs to output ``k``, None where none flows in; ``ctx.dy``
  is the first and must be there (the usual case of one differentiable output). They have the shape
  of the output, except in ``elementwise`` and ``broadcast`` rules: there they may be smaller and
  stand for what they broadcast to (the gradient of a mean is one number), which costs nothing to
  multiply with. ``ctx.whole(k)`` is the gradient in full size.
- **Gradients out** must have the shape of the input. In ``elementwise`` rules they may have any
  shape that broadcasts to that of the output: the builder sums over broadcast axes. In
  ``broadcast`` rules they may be smaller than the input and stand for what they broadcast to.
- **Scatters** add into ``ctx.base(k)``: what has been summed for input ``k`` so far, or zeros.
- **Further outputs** (a mask, indices, statistics): ``ctx.output(k)`` adds output ``k`` to the
  forward node if it has none. ``with ctx.in_forward():`` places nodes right behind the forward
  node.
- **Control flow**: a rule of a node with bodies returns a mapping from tensor names instead, which
  may name what the bodies capture.
- ``inputs=(0,)`` says which inputs have a gradient at all, ``outputs=(0,)`` which outputs can bring
  one in. Integer and bool tensors never do, and need no mention.

An operator that is differentiated through simpler ones has an expansion instead, which rewrites the
forward node (only where a gradient flows through it) and returns its outputs::

    @expansion("GlobalAveragePool")
    def global_average_pool(ctx: Context) -> Sequence[Value | None]:
        x = ctx.tensors[0]
        return [ctx.reduce("ReduceMean", x, range(2, x.rank))]

An operator may have both: ``when`` says of a node whether it is rewritten; ``everywhere``, that it
is where no gradient flows, too. Function operators of
ONNX with neither are inlined. ``no_gradient`` names those whose derivative is zero wherever it
exists. A float operator with none of these is an error that names every such operator of the model.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.emitter import RuleError
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError
from memplan.proto.nodes import domain_of

Gradient = Value | None | Callable[[], Value | None]
Gradients = Sequence[Gradient] | Mapping[str, Gradient]
Rule = Callable[[Context], Gradients]
Expansion = Callable[[Context], Sequence[Value | None]]


@dataclass(frozen=True, slots=True)
class Entry:
    """What the registry holds of one operator: a rule, an expansion, both, or ``zero``."""

    rule: Rule | None = None
    expansion: Expansion | None = None
    when: Callable[[onnx.NodeProto], bool] | None = None
    zero: bool = False
    elementwise: bool = False
    broadcast: bool = False
    inputs: frozenset[int] | None = None
    outputs: frozenset[int] | None = None
    everywhere: bool = False

    def expands(self, node: onnx.NodeProto, active: bool = True) -> bool:
        """Whether ``node`` is rewritten before it is differentiated; ``active``: a gradient flows
        through it."""
        wanted = self.expansion is not None and (active or self.everywhere)
        return wanted and (self.when is None or self.when(node))


_RULES = "memplan.autodiff.rules"
_ENTRIES: dict[tuple[str, str], Entry] = {}


def gradient(
    *ops: str,
    domain: str = "",
    elementwise: bool = False,
    broadcast: bool = False,
    inputs: Sequence[int] | None = None,
    outputs: Sequence[int] | None = None,
) -> Callable[[Rule], Rule]:
    """Register a rule for some operators; see the module's text."""

    def register(rule: Rule) -> Rule:
        entry = Entry(
            rule=rule,
            elementwise=elementwise,
            broadcast=broadcast,
            inputs=None if inputs is None else frozenset(inputs),
            outputs=None if outputs is None else frozenset(outputs),
        )
        _add(ops, domain, entry)
        return rule

    return register


def expansion(
    *ops: str,
    domain: str = "",
    when: Callable[[onnx.NodeProto], bool] | None = None,
    everywhere: bool = False,
) -> Callable[[Expansion], Expansion]:
    """Register an expansion for some operators; see the module's text."""

    def register(function: Expansion) -> Expansion:
        _add(ops, domain, Entry(expansion=function, when=when, everywhere=everywhere))
        return function

    return register


def no_gradient(*ops: str, domain: str = "") -> None:
    """Operators whose derivative is zero wherever it exists, or that have no float input."""
    _add(ops, domain, Entry(zero=True))


def _add(ops: Sequence[str], domain: str, entry: Entry) -> None:
    for op in ops:
        known = _ENTRIES.get((domain, op))
        merged = entry if known is None else _merged(known, entry) or _merged(entry, known)
        if merged is None:
            raise ValueError(f"two gradients are registered for {domain}:{op}")
        _ENTRIES[domain, op] = merged


def _merged(rule: Entry, rewriting: Entry) -> Entry | None:
    """Both in one, if the first has only a rule and the second only an expansion."""
    own = {name: getattr(rewriting, name) for name in ("expansion", "when", "everywhere")}
    if rule.rule is None or rule.expansion is not None or rewriting != replace(Entry(), **own):
        return None
    return replace(rule, **own)


@contextmanager
def fitting(node: onnx.NodeProto) -> Iterator[None]:
    """Around a call of a rule for ``node``. Rules take for granted that the inputs of their node
    fit each other; of what ONNX's shape inference does not check (the slopes of a PRelu, the states
    of an LSTM) nobody has looked whether they do.

    Raises:
        ModelError: the rule stumbles over them, or has made what cannot be.
    """
    try:
        yield
    except (RuleError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        raise ModelError(
            f"{node.op_type} '{node.name}': its inputs do not fit its operator ({error})",
            "if ONNX Runtime runs the model, it is a rule of memplan that is wrong: please report "
            "it with the model",
        ) from error


def entry_for(node: onnx.NodeProto) -> Entry | None:
    """What is registered for a node's operator."""
    _load_rules()
    return _ENTRIES.get((domain_of(node), node.op_type))


def registered() -> frozenset[tuple[str, str]]:
    """Every operator with an entry, as (domain, name)."""
    _load_rules()
    return frozenset(_ENTRIES)


@cache
def _load_rules() -> None:
    """Import all modules of rules, which register what they hold."""
    for module in pkgutil.iter_modules(import_module(_RULES).__path__):
        import_module(f"{_RULES}.{module.name}")
