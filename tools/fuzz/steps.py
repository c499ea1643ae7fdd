"""Random training graphs: what plans and proofs begin with.

Networks of ``steps.txt``, which between them have what plans and rules of the proof are about
(masks that are drawn and packed, pools and their indices, loops, branches, products worth chunks,
state in place), with a loss and an optimizer; and the random graphs of :mod:`drafts`. Of
``«a|b»`` in a text one is drawn, of ``«n=a|b»`` too, and ``«n»`` is the same one again.
"""

import random
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
from drafts import drawn
from ended import ROOT
from onnx import TensorProto, helper, numpy_helper

import memplan
from helpers.gradients import in_float32
from memplan.errors import MemplanError

SAMPLES = ROOT / "sample_models"
_TEXTS = Path(__file__).with_name("steps.txt").read_text(encoding="utf-8").split("\n\n")
NETS = {text.split()[0]: text for text in _TEXTS}
"""Networks by name."""
_HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
_CHOICE = re.compile(r"«(?:(\w+)=)?([^«»]*)»")
_SHARE_OF_DRAFTS = 0.4


def training_graph(r: random.Random) -> tuple[str, onnx.ModelProto]:
    """A name, and a training graph."""
    if r.random() < _SHARE_OF_DRAFTS:
        return "random", _of_draft(r)
    name = r.choice(sorted(NETS))
    return name, training_step(NETS[name], r)


def training_step(text: str, r: random.Random) -> onnx.ModelProto:
    """A network with a loss and an optimizer."""
    model = parsed(_HEAD + chosen(text, r))
    vary_constants(model, r)
    options = memplan.GradOptions(
        loss=r.choice(("cross-entropy", "mse")),
        logits="y",
        optimizer=r.choice(("none", "sgd", "momentum", "adamw")),
    )
    step: onnx.ModelProto = memplan.grad(model, options).model
    return step


def _of_draft(r: random.Random) -> onnx.ModelProto:
    """The sum of all that a random graph ends with as its loss; its forward part alone where that
    has no gradient."""
    case = drawn(r, most=14)
    model = in_float32(case.model)
    del model.graph.value_info[:]
    for value in model.graph.input:
        sizes = zip(value.type.tensor_type.shape.dim, case.feeds[value.name].shape, strict=True)
        for dim, size in sizes:
            dim.dim_value = size
    names, axes = [], {"keepdims": 0}
    for y in case.ys:
        names.append(f"sum of {y}")
        model.graph.node.append(helper.make_node("ReduceSum", [y], names[-1:], names[-1], **axes))
    model.graph.node.append(helper.make_node("Sum", names, ["loss"], "loss"))
    model.graph.output.add(name="loss").type.tensor_type.elem_type = TensorProto.FLOAT
    with suppress(MemplanError):
        return memplan.gradients(model, "loss", list(case.xs), check=False)
    return model


def chosen(text: str, r: random.Random) -> str:
    """The text with what is drawn in the place of every choice."""
    known: dict[str, str] = {}
    while (found := _CHOICE.search(text)) is not None:
        name, options = found.groups()
        drawn = known[options] if options in known else r.choice(options.split("|"))
        if name:
            known[name] = drawn
        text = text[: found.start()] + drawn + text[found.end() :]
    return text


def parsed(text: str) -> onnx.ModelProto:
    """The model; one number for an initializer stands for all of its elements."""
    model = onnx.parser.parse_model(text)
    for tensor in model.graph.initializer:
        content = numpy_helper.to_array(tensor) if not tensor.float_data else tensor.float_data
        full = np.resize(np.asarray(content), tuple(tensor.dims))
        kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        tensor.CopyFrom(numpy_helper.from_array(full.astype(kind), tensor.name))
    return model


def vary_constants(model: onnx.ModelProto, r: random.Random) -> None:
    """Weights that were one number throughout are drawn: else a permutation does not show."""
    numbers = np.random.default_rng(r.randrange(1 << 30))
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.size > 3 and np.ptp(array) == 0:
            drawn = numbers.standard_normal(array.shape) * 0.3
            tensor.CopyFrom(numpy_helper.from_array(drawn.astype(np.float32), tensor.name))
