"""Mutants of what real steps say of their inputs and outputs, trained in this process.

What must hold: a step that is trained without a note that the unmutated one does not give ends in
the same state to the bit, with nothing missing; else it is refused (exit code 2 or 3), or a note is
given.
Training follows from the contract that was read, so that each contract is trained once per step.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx

import memplan
from memplan.errors import MemplanError
from memplan.training.step_file import read_step

COMMAND = "metadata"
_STEPS = 3
_EVERY = 500  # mutants between two lines of figures
_REFUSALS = (1, 2, 3)  # 1: a loss that is not a number
_KEYS = ("roles", "new_values", "gradients")
_ROLES = (
    *("parameter", "frozen", "average", "optimizer-state", "running-statistic", "step-counter"),
    *("batch", "hyperparameter", "loss", "gradient", "new-value", "output", "nonsense", ""),
)
_NAMES = "nothing", "w", "loss_new", "", "step", "memplan.roles"
_OTHERS: Mapping[str, Sequence[Any]] = {
    "provider": ("zz", "cpu", 1, None, ["cpu"], ""),
    "session": ("zz", "tuned", 0, {}, "plain"),
    "state": ("in-place", "apart", "zz", []),
    "dims": ({"N": "x"}, {"N": -1}, [], {"M": 3}, {"N": True}),
}

_LAYERS = """
 g (float[4,6] x, int64[4] labels{extra}) => (float loss, float[4,3] logits)
 {{ a = MatMul(x, w1) b = Add(a, b1) {middle} logits = MatMul(d, w2)
    loss = SoftmaxCrossEntropyLoss(logits, labels) }}"""
_NORMED = "c, m1, v1 = BatchNormalization <training_mode = 1> (b, s, t, m, v) d = Relu(c)"
_SHAPES = {"w1": (6, 6), "b1": (6,), "w2": (6, 3), "s": (6,), "t": (6,), "m": (6,), "v": (6,)}
_BY_HAND = """
 g (float[4,6] x, float[6] frozen, float[6] w, float[6] p, float[6] w_ema, float[6] seen, float lr,
    int64 step)
   => (float loss, float[6] o1, float[6] o2, float[6] w_ema_new, float[6] seen_new, int64 step_new,
       float far)
 { y = Mul(x, w)  z = Mul(y, p)  d = Sub(z, frozen)  s = Mul(d, d)
   loss = ReduceMean <keepdims = 0> (s)  far = ReduceMax <keepdims = 0> (s)
   axis = Constant <value_ints = [0]> ()
   share = Constant <value = float {0.1}> ()
   one = Constant <value = int64 {1}> ()
   g = ReduceMean <keepdims = 0> (d, axis)  gw = Mul(g, p)  gp = Mul(g, w)
   dw = Mul(gw, lr)  o1 = Sub(w, dw)  dp = Mul(gp, lr)  o2 = Sub(p, dp)
   away = Sub(o1, w_ema)  some = Mul(away, share)  w_ema_new = Add(w_ema, some)
   mean = ReduceMean <keepdims = 0> (x, axis)  part = Mul(mean, share)
   seen_new = Add(seen, part)  step_new = Add(step, one) }"""
_NEXT = {
    "o1": "w",
    "o2": "p",
    "w.ema_new": "w.ema",
    "seen_new": "seen",
    "step_new": "step",
}
_SAID = {
    "roles": {
        "x": "batch",
        "frozen": "frozen",
        "w": "parameter",
        "p": "parameter",
        "w.ema": "average",
        "seen": "running-statistic",
        "lr": "hyperparameter",
        "step": "step-counter",
        "loss": "loss",
        "far": "output",
        **dict.fromkeys(_NEXT, "new-value"),
    },
    "new_values": _NEXT,
    "gradients": {},
}


@dataclass(frozen=True, slots=True)
class Step:
    """A file whose metadata is mutated, and how to train with it: ``open`` takes the mutated model
    and gives a trainer, ``batches`` are those of its steps."""

    name: str
    model: onnx.ModelProto
    open: Callable[[onnx.ModelProto], Any]
    batches: Sequence[Any]


@dataclass(slots=True)
class _Found:
    """What training ended in: the state, and the notes; or a refusal, or an error of ours."""

    state: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refused: str = ""
    wrong: str = ""


def main(options: Any) -> int:
    """Train with the mutants of ``options`` (``count``, ``seed``, ``seconds`` in all, ``only``,
    ``keep``); 1 if one was trained otherwise without a word."""
    begun, counts, defects = time.monotonic(), Counter[str](), Counter[str]()
    numbers = range(options.count) if options.only is None else [options.only]
    done = 0
    for number in numbers:
        if options.seconds is not None and time.monotonic() - begun > options.seconds:
            break
        step, model, found, ended = outcome(options.seed, number)
        done += 1
        counts[ended] += 1
        if ended not in ("refused", "said", "same"):
            defects[f"{step.name}: {ended}"] += 1
            print(f"  {step.name}: {ended} (--only {number}) {found.wrong}", flush=True)
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                onnx.save(model, options.keep / f"{COMMAND}-{options.seed}-{number}.onnx")
        if options.only is not None:
            print(step.name, changes(step, model), found.refused, found.notes, found.wrong)
        if done % _EVERY == 0:
            print(_line(done, counts, begun), flush=True)
    print(_line(done, counts, begun), flush=True)
    return int(bool(defects))


def _line(done: int, counts: Counter[str], begun: float) -> str:
    told = ", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items()))
    return f"{COMMAND}: {done:,} mutants, {told}; {time.monotonic() - begun:.0f} s"


def outcome(seed: int, number: int) -> tuple[Step, onnx.ModelProto, _Found, str]:
    """One mutant, and how training with it ended: ``same`` as unmutated, ``said`` (a note),
    ``refused``, or a defect."""
    r = random.Random(f"{seed}/{COMMAND}/{number}")
    step = r.choice(steps())
    model = mutated(step.model, r)
    found, wanted = _trained(step, model), _wanted(step.name)
    if found.wrong:
        return step, model, found, "an error that is no refusal"
    if found.refused:
        return step, model, found, "refused"
    if not set(found.notes) <= set(wanted.notes):
        return step, model, found, "said"
    same = found.state.keys() >= wanted.state.keys() and all(
        np.array_equal(found.state[name], wanted.state[name]) for name in wanted.state
    )
    return step, model, found, "same" if same else "trained otherwise, and not a word"


def changes(step: Step, model: onnx.ModelProto) -> list[str]:
    """The entries of metadata that differ, as they are."""
    before = {item.key: item.value for item in step.model.metadata_props}
    return [f"{i.key}={i.value}" for i in model.metadata_props if before.get(i.key) != i.value]


@cache
def _wanted(name: str) -> _Found:
    step = next(step for step in steps() if step.name == name)
    found = _trained(step, step.model)
    assert found.state, (found.refused, found.wrong)
    return found


_KNOWN: dict[tuple[str, str], _Found] = {}


def _trained(step: Step, model: onnx.ModelProto) -> _Found:
    try:
        contract = read_step(model).contract
        others = {i.key: i.value for i in model.metadata_props if i.key[8:] not in _KEYS}
        key = step.name, repr((contract.roles, contract.new_values, contract.gradients, others))
        if key in _KNOWN and _KNOWN[key].state:
            known = _KNOWN[key]
            begins = [n for n in known.notes if n.endswith(_FIRST)]
            return _Found(known.state, (*contract.notes, *begins))
        trainer = step.open(model)
        for batch in step.batches:
            trainer.step(batch)
        found = _KNOWN[key] = _Found(trainer.state_dict(), tuple(trainer.notes))
        return found
    except MemplanError as error:
        if error.exit_code in _REFUSALS:
            return _Found(refused=error.message)
        return _Found(wrong=f"exit {error.exit_code}: {error.message[:200]}")
    except Exception as error:  # what nobody expected is what is looked for
        return _Found(wrong=f"{type(error).__name__}: {error}"[:300])


_FIRST = ("start at 0", "start at 1", "start at random numbers")


@cache
def steps() -> tuple[Step, ...]:
    """Steps of ``memplan grad`` with and without first values, one with batch normalization, one
    whose loss is scaled, one by hand with an average, a frozen input and outputs whose names say
    nothing, and both files of a step whose gradients are summed."""
    r = np.random.default_rng(1)
    x, labels = r.normal(size=(4, 6)).astype(np.float32), r.integers(0, 3, 4)
    batches = [{"x": x * k, "labels": labels} for k in range(1, _STEPS + 1)]
    plain = _forward("d = Tanh(b)", values=True)
    bare = _forward("d = Tanh(b)", values=False)
    normed = _forward(_NORMED, values=True)
    made = {
        "adamw": _step(plain, "adamw"),
        "without values": _step(bare, "adamw"),
        "momentum": _step(bare, "momentum"),
        "normalized": _step(normed, "adamw"),
        "scaled": _step(plain, "adamw", loss_scale="dynamic"),
    }

    def trainer(model: onnx.ModelProto) -> Any:
        return memplan.Trainer(model, init="random", threads=1)

    found = [Step(name, model, trainer, batches) for name, model in made.items()]
    text = f'<ir_version: 10, opset_import: ["" : 20]> {_BY_HAND}'
    by_hand = onnx.ModelProto.FromString(  # the parser takes no name with a dot
        onnx.parser.parse_model(text).SerializeToString().replace(b"w_ema", b"w.ema")
    )
    for key, value in _SAID.items():
        by_hand.metadata_props.add(key=f"memplan.{key}", value=json.dumps(value))
    first = {"frozen": np.full(6, 2, np.float32), "w": x[0], "p": x[1]}

    def taught(model: onnx.ModelProto) -> Any:
        return memplan.Trainer(model, first, lr=0.1, threads=1)

    found.append(Step("by hand", by_hand, taught, [{"x": b["x"]} for b in batches]))
    options = memplan.GradOptions("loss", wrt=("w*", "b*"), optimizer="adamw", own_update=True)
    made_apart = memplan.grad(plain, options)
    assert made_apart.update is not None
    one, two = made_apart.model, made_apart.update.model
    pairs = [(b,) for b in batches]
    found.append(Step("sums", one, lambda m: memplan.AccumulatingTrainer(m, two, threads=1), pairs))
    found.append(
        Step("updates", two, lambda m: memplan.AccumulatingTrainer(one, m, threads=1), pairs)
    )
    return tuple(found)


def _forward(middle: str, *, values: bool) -> onnx.ModelProto:
    """A classifier whose weights are initializers, or inputs without a value."""
    names = [name for name in _SHAPES if name in "w1 b1 w2" or middle is _NORMED]
    extra = [f", float[{','.join(map(str, _SHAPES[name]))}] {name}" for name in names]
    text = _LAYERS.format(middle=middle, extra="" if values else "".join(extra))
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}')
    r = np.random.default_rng(2)
    for name in names if values else ():
        array = np.abs(r.normal(size=_SHAPES[name])).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def _step(forward: onnx.ModelProto, optimizer: str, **options: Any) -> onnx.ModelProto:
    trained = ("w1", "b1", "w2")
    return memplan.grad(
        forward, memplan.GradOptions("loss", wrt=trained, optimizer=optimizer, **options)
    ).model


def mutated(model: onnx.ModelProto, r: random.Random) -> onnx.ModelProto:
    """The model with one to three changes of its metadata."""
    said = {i.key.removeprefix("memplan."): json.loads(i.value) for i in model.metadata_props}
    ends = [v.name for v in (*model.graph.input, *model.graph.output)]
    for _ in range(r.choice((1, 1, 1, 2, 2, 3))):
        _change(said, ends, r)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.metadata_props[:]
    texts = [(f"memplan.{key}", json.dumps(value)) for key, value in said.items()]
    if r.random() < 0.08:
        texts = _damaged(texts, r)
    for key, text in texts:
        result.metadata_props.add(key=key, value=text)
    return result


def _change(said: dict[str, Any], ends: Sequence[str], r: random.Random) -> None:
    """One change of what a file says."""
    key = r.choice(_KEYS)
    names = said.get(key)
    kind = r.random()
    if kind < 0.05:
        said[key] = r.choice(([], {}, "w", None, 5, ["w", "w_new"], {"w": ["w"]}))
        return
    if kind < 0.09:
        said.pop(key, None)
        return
    if kind < 0.12:
        other = r.choice(list(_OTHERS))
        said[other] = r.choice(_OTHERS[other])
        return
    if not isinstance(names, dict) or not names:
        said[key] = {r.choice(ends): r.choice(_ROLES if key == "roles" else ends)}
        return
    first, second = r.choice(list(names)), r.choice(list(names))
    if kind < 0.3:
        del names[first]
    elif kind < 0.45:
        names[first], names[second] = names[second], names[first]
    elif kind < 0.5:
        names[r.choice((*_NAMES, f"{first}_new", f"{first}."))] = names.pop(first)
    elif kind < 0.55:
        other = said.get(r.choice(_KEYS))
        if isinstance(other, dict):
            other[first] = names[first]
    elif kind < 0.6:
        names |= {f"n{k}": f"m{k}" for k in range(r.choice((1, 50)))}
    elif key == "roles":
        names[r.choice((first, r.choice(ends)))] = r.choice(_ROLES)
    else:
        names[r.choice((first, r.choice(ends)))] = r.choice((*ends, *ends, *_NAMES))


def _damaged(texts: Sequence[tuple[str, str]], r: random.Random) -> list[tuple[str, str]]:
    """One text cut, given twice, or with a name twice."""
    found = list(texts)
    at = r.randrange(len(found)) if found else 0
    for key, text in found[at : at + 1]:
        kind = r.random()
        if kind < 0.3:
            found[at] = key, text[: r.randrange(len(text))]
        elif kind < 0.6:
            found.insert(r.randrange(len(found)), (key, r.choice(("{}", text, '"w"'))))
        elif text.startswith('{"'):
            name = text[2:].partition('"')[0]
            found[at] = key, f'{text[:-1]}, "{name}": "{r.choice(_ROLES)}"}}'
    return found


if __name__ == "__main__":
    sys.exit("python tools/fuzz --command metadata")
