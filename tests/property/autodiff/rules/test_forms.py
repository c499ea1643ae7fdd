"""Rules against finite differences, of every form of every operator that ONNX tests."""

import re

import onnx
from onnx import helper

from helpers.gradients import Array, check, draw, frozen, model_of, reference
from helpers.node_tests import MODULES, Form, forms
from memplan.errors import MemplanError

NEWEST = 24


def made_of(form: Form) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of the node, and values of the floats that it can be differentiated by: those of the
    test, moved a little, as many lie where there is no derivative."""
    feeds: dict[str, Array] = {}
    for place, array in enumerate(form.fed):
        if array is not None:
            moved = 0.02 * draw(array.shape, place) if place in form.moving else 0
            feeds[f"x{place}"] = array + moved if place in form.moving else array
    node = onnx.NodeProto.FromString(form.node.SerializeToString())
    node.input[:] = ["" if array is None else f"x{k}" for k, array in enumerate(form.fed)]
    node.output[:] = [name and f"y{k}" for k, name in enumerate(node.output)]
    names = [name for name in node.output if name]
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in names],
    )
    opset = [helper.make_opsetid("", NEWEST)]
    values = reference(helper.make_model(graph, opset_imports=opset, ir_version=10), feeds)
    kinds = {name: helper.np_dtype_to_tensor_dtype(values[name].dtype) for name in names}
    still = [n for n, a in feeds.items() if a.dtype.kind == "f" and int(n[1:]) not in form.moving]
    return frozen(model_of([node], feeds, kinds, NEWEST), *still)


LARGEST_POOLED = 3000
"""Elements; of more, two are nearer to one another than the steps of the differences."""
LEFT_OUT = {"acos", "acosh", "asin", "atanh", "pow", "attention"}
"""Beside a bound of what they are defined for; and attention has forms of later versions, and rows
that are masked whole, where there is no number to compare."""
_NO_EVALUATOR = "not implemented|Issues with types|different dtype|is required|Unrecognized"
"""What ONNX's evaluator, or its checker, says of a few."""
REFUSED = 60
"""Forms without a gradient, which are refused in words."""


def is_ours(form: Form) -> bool:
    """Whether ONNX's evaluator computes what the runtime does, away from ties."""
    op, fed = form.node.op_type, form.fed
    if op == "Resize" and fed[2] is not None:
        return b"align_corners" not in form.node.SerializeToString()
    return "Pool" not in op or fed[0] is None or fed[0].size <= LARGEST_POOLED


def test_gradients_of_all_forms() -> None:
    refused, tried = 0, 0
    for module in sorted({*MODULES} - LEFT_OUT):
        for form in filter(is_ours, forms(module)):
            tried += 1
            try:
                check(made_of(form), tolerance=1e-5)
            except MemplanError:
                refused += 1
            except AssertionError as error:
                raise AssertionError(f"{form.node}: {error}") from error
            except Exception as error:
                if not re.search(_NO_EVALUATOR, str(error)):
                    raise
    assert refused <= REFUSED
    assert tried > 500
