"""What ONNX Runtime's optimizers make of a graph, held against its own nodes: a find is a result
that is wrong and that memplan does not warn of (:mod:`memplan.ops.sharp_edges`).

A graph is one that the optimizers look for, at the edges of shapes and ranks, or a random one of
:mod:`drafts`. ``fusions.txt`` has the former, a row each: what is read, and the nodes that make
``y``. Of ``{a|b}`` one is drawn. ``x[2,3]`` is an input, ``X[2,3]`` a constant, perhaps with its
numbers behind ``=`` (whole ones behind ``=i``); ``$x`` is any order of its axes, ``#1`` the name of
the second.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from drafts import Array, drawn
from ended import Ended
from evaluators import Evaluator, NotEvaluatedError, in_kind, narrowed, opened, reference_operators
from onnx import TensorProto, numpy_helper

from memplan.ops.sharp_edges import sharp_edges

LEVELS = ("BASIC", "EXTENDED", "ALL")
ROWS = Path(__file__).with_name("fusions.txt").read_text(encoding="utf-8").splitlines()
_CHOICE = re.compile(r"\{([^{}]*)\}")
_READ = re.compile(r"(\w+)\[([\d,]*)\](?:=(i?)([-.\d,]+))?")
_SHARE_OF_ROWS = 0.7
_TOLERANCE = 2e-3


def examined(seed: int, number: int) -> Ended:
    """A graph at every level of optimization."""
    r = random.Random(f"{seed}/fusions/{number}")
    if r.random() < _SHARE_OF_ROWS:
        model, feeds = of_row(r.choice(ROWS), r)
    else:
        case = drawn(r, reference_operators())
        model = opened(in_kind(case.model, TensorProto.FLOAT), case.feeds)
        feeds = narrowed(case.feeds, model)
    try:
        wanted = _session(model, "DISABLE_ALL").run(None, feeds)
    except Exception:  # the graph itself
        return Ended({"does not run": 1})
    wrong = []
    for level in LEVELS:
        try:
            found = _session(model, f"ENABLE_{level}").run(None, feeds)
        except Exception:  # it says so
            return Ended({"no session": 1})
        if not all(map(_near, found, wanted)):
            wrong.append(level)
    if not wrong or not _is_exact(model, feeds, wanted):
        return Ended({"right": 1})
    if sharp_edges(model):
        return Ended({"wrong, as memplan says": 1})
    ops = sorted({node.op_type for node in model.graph.node} - {"Constant"})
    files = {"graph.onnx": model.SerializeToString()}
    place = f"{', '.join(wrong)}: {', '.join(ops)}"
    return Ended({"WRONG": 1}, place, onnx.printer.to_text(model), files)


def of_row(row: str, r: random.Random) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A graph of a row of ``fusions.txt``, and what it is fed."""
    while (choice := _CHOICE.search(row)) is not None:
        row = row[: choice.start()] + r.choice(choice[1].split("|")) + row[choice.end() :]
    head, _, body = row.partition(" | ")
    numbers = np.random.default_rng(r.randrange(1 << 30))
    values: dict[str, Array] = {}
    for name, sizes, whole, content in _READ.findall(head):
        shape = tuple(map(int, filter(None, sizes.split(","))))
        if content:
            kind = np.int64 if whole else np.float32
            numbers_ = [int(n) if whole else float(n) for n in content.split(",")]
            values[name] = np.resize(np.array(numbers_, kind), shape)
        else:
            values[name] = numbers.standard_normal(shape).astype(np.float32)
        order = r.sample(range(len(shape)), len(shape))
        body = body.replace(f"${name}", str(order))
    for k, name in enumerate(values):
        body = body.replace(f"#{k}", name)
    used = {name: value for name, value in values.items() if re.search(rf"\b{name}\b", body)}
    feeds = {name: value for name, value in used.items() if name.islower()}
    given = ", ".join(f"float[{','.join(map(str, v.shape))}] {k}" for k, v in feeds.items())
    given = given.replace("[]", "")
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g ({given}) => (float y) {{ {body} }}'
    )
    model.graph.output[0].ClearField("type")
    constants = (numpy_helper.from_array(v, k) for k, v in used.items() if k not in feeds)
    model.graph.initializer.extend(constants)
    return model, feeds


def _session(model: onnx.ModelProto, level: str) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    data = model.SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _near(one: Array, other: Array) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or one.dtype.kind != "f":
        return one.shape == other.shape and np.array_equal(one, other)
    slack = _TOLERANCE * float(np.abs(other[np.isfinite(other)]).max(initial=1.0))
    return np.allclose(one, other, rtol=_TOLERANCE, atol=slack, equal_nan=True)


def _is_exact(model: onnx.ModelProto, feeds: Mapping[str, Array], wanted: list[Array]) -> bool:
    """Whether the graph's own nodes give in float32 what they give in float64; where they do not,
    rounding decides."""
    wide = in_kind(model, TensorProto.DOUBLE, TensorProto.FLOAT)
    try:
        found = Evaluator(wide, {name: v.astype(np.float64) for name, v in feeds.items()}).first
    except (NotEvaluatedError, Exception):
        return True
    return all(map(_near, wanted, found.values()))
