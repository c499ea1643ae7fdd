"""Symbolic dimensions, shapes from every source, and shapes that contradict each other."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from helpers import odd_models as odd
from helpers.odd_models import BOOL, FLOAT, INT64, constant, info, model, saved
from memplan.api.analyze import analyze
from memplan.errors import EXIT_MODEL, EXIT_USAGE, ModelError, UsageError
from memplan.shapes.bodies import body_models
from memplan.shapes.checks import check_calls
from memplan.shapes.complete import value_types
from memplan.shapes.dims import bind_dims, evaluate_dim, symbolic_dims
from memplan.shapes.fold import types_by_folding
from memplan.shapes.infer import infer, stated_types
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import open_model

# --- names for dimensions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("N", 6),
        ("2*N", 12),
        ("N*N + 1", 37),
        ("N//4", 1),
        ("N/2", 3),
        ("N % 4", 2),
        ("M - N", 4),
        ("(M + N)*2", 32),
        ("7", 7),
    ],
)
def test_expressions(text: str, value: int) -> None:
    assert evaluate_dim(text, {"N": 6, "M": 10}) == value


@pytest.mark.parametrize(
    "text",
    [
        "K",
        "N.x",
        "N()",
        "N**9",
        "__import__('os')",
        "N if N else M",
        "N//0",
        "N%0",
        "2*",
        "((((",
        "N - 9",
        "True + 'a'",
        "1.5*N",
        "-N",
        "N\0",
        "N*" * 400 + "N",
        "9" * 900,
        "N*" * 9000,
        "9999999999*9999999999*N",
    ],
)
def test_what_is_no_decided_expression_stays_unknown(text: str) -> None:
    assert evaluate_dim(text, {"N": 6, "M": 10}) is None


@given(st.text(max_size=30))
def test_any_text_is_a_number_or_unknown(text: str) -> None:
    value = evaluate_dim(text, {"N": 6})
    assert value is None or 0 <= value < 2**63


def test_a_name_with_any_letters_can_be_bound() -> None:
    assert evaluate_dim("input-0_dim0", {"input-0_dim0": 5}) == 5


def test_binding_leaves_the_model_alone() -> None:
    proto = odd.symbolic()
    before = proto.SerializeToString()
    bound = bind_dims(proto, {"N": 12})
    assert symbolic_dims(proto) == {"N": "x"}
    assert symbolic_dims(bound) == {}
    assert proto.SerializeToString() == before
    assert stated_types(bound.graph)["x"].shape == (12, odd.WIDTH)


def test_an_unbound_dimension_says_how_to_bind_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="dimension 'N' of input 'x'") as caught:
        analyze(saved(odd.symbolic(), tmp_path))
    assert caught.value.exit_code == EXIT_MODEL
    assert "--dim N=" in caught.value.hint


def test_an_unknown_dimension_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dim M") as caught:
        analyze(saved(odd.symbolic(), tmp_path), {"N": 3, "M": 4})
    assert caught.value.exit_code == EXIT_USAGE
    assert caught.value.hint.endswith(": N")


def test_a_dimension_made_of_others_needs_no_value_of_its_own(tmp_path: Path) -> None:
    proto = odd.symbolic()
    proto.graph.input.append(info("pairs", ["2*N", 3]))
    analysis = analyze(saved(proto, tmp_path), {"N": 8})
    pairs = analysis.graph.tensor_named("pairs")
    assert pairs is not None
    assert pairs.shape == (16, 3)


def test_a_size_scales_the_answer(tmp_path: Path) -> None:
    path = saved(odd.symbolic(), tmp_path)
    small, large = (analyze(path, {"N": n}).timeline for n in (8, 16))
    rows = 4 * (odd.WIDTH + 1)  # bytes per row of the two inputs
    assert large.resident_bytes - small.resident_bytes == 8 * rows
    assert large.dynamic_peak_bytes > small.dynamic_peak_bytes


@pytest.mark.parametrize("shape", [[None, 4], [-1, 4], None])
def test_an_input_whose_size_nobody_knows(tmp_path: Path, shape: list[int] | None) -> None:
    proto = odd.training()
    proto.graph.input.append(info("ignored", shape))
    with pytest.raises(ModelError, match="graph input 'ignored'"):
        analyze(saved(proto, tmp_path))


@pytest.mark.parametrize("size", [2**62, 10**15, 2**40])
def test_sizes_that_no_machine_holds(tmp_path: Path, size: int) -> None:
    proto = odd.symbolic()
    with pytest.raises(ModelError, match="elements; the largest is") as caught:
        analyze(saved(proto, tmp_path), {"N": size * 2**10 if size == 2**40 else size})
    assert "dimensions" in caught.value.hint


# --- what the file states against what follows ---------------------------------------------------


def _stated(proto: onnx.ModelProto, name: str, shape: list[int], dtype: int = FLOAT) -> None:
    proto.graph.value_info.append(info(name, shape, dtype))


def test_a_batch_edited_in_the_inputs_alone(tmp_path: Path) -> None:
    # What people do by hand; the runtime warns, and goes on with its own shapes.
    proto = onnx.shape_inference.infer_shapes(odd.training())
    proto.graph.input[0].CopyFrom(info("x", [4 * odd.BATCH, odd.WIDTH]))
    share = next(t for t in proto.graph.initializer if t.name == "share")
    share.CopyFrom(constant("share", np.full((4 * odd.BATCH, 1), 1.0)))
    with pytest.raises(ModelError, match=r"float\[8, 32\] for tensor 'h'.*float\[32, 32\]") as e:
        analyze(saved(proto, tmp_path))
    assert "value_info" in e.value.hint
    del proto.graph.value_info[:]
    assert analyze(saved(proto, tmp_path)).timeline.peak_bytes > 6824


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("h", [8, 31], FLOAT), ("h", [8], FLOAT), ("alive", [8, 32], FLOAT)],
)
def test_a_wrong_statement_in_the_middle(
    tmp_path: Path, name: str, shape: list[int], dtype: int
) -> None:
    proto = odd.training()
    _stated(proto, name, shape, dtype)
    with pytest.raises(ModelError, match=f"for tensor '{name}'"):
        analyze(saved(proto, tmp_path))


def test_right_statements_are_welcome(tmp_path: Path) -> None:
    full = onnx.shape_inference.infer_shapes(odd.training())
    assert len(full.graph.value_info) > 5
    bare = odd.training()
    for number, proto in enumerate((full, bare)):
        path = saved(proto, tmp_path, f"{number}.onnx")
        assert analyze(path).timeline.peak_bytes == 6824


def test_shapes_that_do_not_fit_an_operator(tmp_path: Path) -> None:
    proto = odd.training()
    proto.graph.input[0].CopyFrom(info("x", [odd.BATCH, odd.WIDTH + 1]))
    with pytest.raises(ModelError, match="shapes do not fit") as caught:
        analyze(saved(proto, tmp_path))
    assert "fc1" in caught.value.message
    assert "\n" not in caught.value.message


def _small_images(size: int) -> onnx.ModelProto:
    """A convolution and a slice of its result, as gradients of strided convolutions have it."""
    bounds = [
        constant(name, [value], np.int64) for name, value in (("begin", 0), ("end", 2), ("axis", 2))
    ]
    return model(
        [
            helper.make_node("Conv", ["image", "kernel"], ["c"], name="conv"),
            helper.make_node("Slice", ["c", "begin", "end", "axis"], ["s"], name="cut"),
            helper.make_node("ReduceMean", ["s"], ["loss"], name="mean", keepdims=0),
        ],
        [info("image", [1, 3, "H", size])],
        [info("loss", [])],
        [odd.weights("kernel", 4, 3, 5, 5), *bounds],
    )


def test_a_window_larger_than_its_image(tmp_path: Path) -> None:
    # ONNX's inference ends the process here (an assertion in C++) unless it is kept from it.
    path = saved(_small_images(9), tmp_path)
    assert analyze(path, {"H": 8}).timeline.peak_bytes > 0
    with pytest.raises(ModelError, match="window is larger than its image") as caught:
        analyze(path, {"H": 2})
    assert "'c'" in caught.value.message
    assert "--dim" in caught.value.hint


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "message"),
    [
        ("Conv", ([1, 3, 8, 8], [4]), {}, "'b' has 1 dimensions"),
        ("Conv", ([1, 3, 8, 8], [4, 3, 3]), {}, "different ranks"),
        ("Conv", ([1, 3, 8, 8], [4, 3, 3, 3]), {"group": 0}, "'group' is below 1"),
        ("ConvTranspose", ([1, 3, 8, 8], [4]), {}, "'b' has 1 dimensions"),
        ("LSTM", ([5, 2], [1, 16, 3], [1, 16, 4]), {"hidden_size": 4}, "'a' has 2 dimensions"),
        ("GRU", ([5, 2, 3], [12, 3], [1, 12, 4]), {"hidden_size": 4}, "'b' has 2 dimensions"),
        ("LRN", ([3],), {"size": 3}, "'a' has 1 dimensions"),
        ("Attention", ([4], [4], [4]), {}, "'a' has 1 dimensions"),
    ],
)
def test_ranks_that_inference_lets_through(
    op: str, shapes: tuple[list[int], ...], attributes: dict[str, int], message: str
) -> None:
    node = helper.make_node(op, list("abc")[: len(shapes)], ["y"], name="it", **attributes)
    graph = helper.make_graph([node], "g", [], [])
    types = {name: TensorType(FLOAT, tuple(s)) for name, s in zip("abc", shapes, strict=False)}
    with pytest.raises(ModelError, match=message):
        check_calls(graph, types)
    # An input whose shape nobody knows is not judged.
    check_calls(helper.make_graph([], "g", [], []), types)
    if not attributes.get("group", 1) < 1:
        check_calls(graph, {})


# --- shapes computed in the graph ----------------------------------------------------------------


def _computed_shape() -> onnx.ModelProto:
    """A reshape to a shape that is computed from another shape, as exporters write it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"], name="sizes"),
        helper.make_node("Gather", ["sizes", "zero_i"], ["batch"], name="batch"),
        helper.make_node("Mul", ["batch", "two"], ["more"], name="more"),
        helper.make_node("Concat", ["more", "eight"], ["wanted"], name="wanted", axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["folded"], name="fold"),
        helper.make_node("Range", ["start", "more_s", "step"], ["places"], name="places"),
        helper.make_node("Squeeze", ["more"], ["more_s"], name="more_s"),
        helper.make_node("ReduceMean", ["folded"], ["loss"], name="mean", keepdims=0),
    ]
    nodes[5], nodes[6] = nodes[6], nodes[5]
    given = [
        constant("zero_i", [0], np.int64),
        constant("two", [2], np.int64),
        constant("eight", [8], np.int64),
        constant("start", 0, np.int64),
        constant("step", 1, np.int64),
    ]
    outputs = [info("loss", []), info("places", None, INT64)]
    return model(nodes, [info("x", ["N", 16])], outputs, given)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_computed_shape_is_found(batch: int) -> None:
    types, bounded = value_types(bind_dims(_computed_shape(), {"N": batch}))
    assert types["folded"].shape == (2 * batch, 8)
    assert types["places"].shape == (2 * batch,)
    assert not bounded


def _fills(op: str) -> onnx.ModelProto:
    """A huge tensor whose shape, but not contents, are wanted."""
    shape = constant("shape", [1 << 15, 1 << 15], np.int64)
    parts = {
        "ConstantOfShape": (["shape"], [shape]),
        "Expand": (["seed", "shape"], [constant("seed", [1], np.int64), shape]),
        "Tile": (["seed", "shape"], [constant("seed", [[1]], np.int64), shape]),
        "Range": (
            ["from", "to", "by"],
            [
                constant("from", 0, np.int64),
                constant("to", 1 << 30, np.int64),
                constant("by", 1, np.int64),
            ],
        ),
    }
    inputs, given = parts[op]
    return model(
        [helper.make_node(op, inputs, ["y"], name="fill")],
        [info("unused", [1])],
        [info("y", None, FLOAT if op == "ConstantOfShape" else INT64)],
        given,
    )


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile", "Range"])
def test_no_large_tensor_is_made_only_to_learn_its_shape(op: str) -> None:
    proto = _fills(op)
    tracemalloc.start()
    try:
        types, _ = value_types(proto)
        types_by_folding(proto, {"y": TensorType(INT64, None)})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**26
    assert types["y"].shape in {(1 << 15, 1 << 15), (1 << 30,)}


@pytest.mark.parametrize(("size", "propagates"), [(100, True), (10**9, False)])
def test_a_flat_buffer_of_parameters_is_no_list_of_values(
    size: int, propagates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ONNX's data propagation takes about 100 bytes per element of a vector: 100 GB for this one.
    nodes = [
        helper.make_node("Mul", ["flat", "decay"], ["kept"], name="decay"),
        helper.make_node("Unknown", ["kept"], ["odd"], name="odd", domain="acme.ops"),
    ]
    proto = model(
        nodes,
        [info("flat", [size])],
        [info("kept", [size]), info("odd", None)],
        [constant("decay", 0.5)],
        domains=["acme.ops"],
    )
    asked: list[bool] = []
    real = onnx.shape_inference.infer_shapes

    def spied(handed: onnx.ModelProto, data_prop: bool = False) -> onnx.ModelProto:
        asked.append(data_prop)
        return real(handed)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spied)
    assert stated_types(infer(proto).graph)["kept"].shape == (size,)
    assert any(asked) == propagates


def test_weights_are_not_handed_to_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, _, given = odd.training_parts()
    given[0] = odd.weights("w1", odd.WIDTH, odd.HIDDEN * 100)
    proto = model(odd.training_nodes()[:1], inputs, [info("h", None)], given[:1])
    seen: list[int] = []
    real = onnx.shape_inference.infer_shapes

    def spied(handed: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        seen.append(handed.ByteSize())
        return real(handed, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spied)
    types, _ = value_types(proto)
    assert types["h"].shape == (odd.BATCH, odd.HIDDEN * 100)
    assert seen
    assert max(seen) < proto.ByteSize() // 10


# --- bodies --------------------------------------------------------------------------------------


def _body_of(proto: onnx.ModelProto, op: str) -> list[tuple[int | None, bool]]:
    types, _ = value_types(proto)
    node = next(node for node in proto.graph.node if node.op_type == op)
    return [(body.trips, body.complete) for body in body_models(proto, node, types)]


def test_iterations_of_bodies() -> None:
    assert _body_of(odd.conditional(), "If") == [(1, True), (1, True)]
    assert _body_of(odd.loop(5), "Loop") == [(5, True)]
    assert _body_of(odd.loop(5, as_node=True), "Loop") == [(5, True)]
    assert _body_of(odd.loop(0), "Loop") == [(0, True)]
    assert _body_of(odd.loop(2**63 - 1, stacked=False), "Loop") == [(None, True)]
    assert _body_of(odd.scan(), "Scan") == [(odd.BATCH, True)]


@pytest.mark.parametrize("axis", [0, -2, 1])
def test_a_scan_takes_slices_along_its_axis(axis: int) -> None:
    rows, columns = (odd.BATCH, odd.HIDDEN) if axis != 1 else (odd.HIDDEN, odd.BATCH)
    body = helper.make_graph(
        [helper.make_node("Neg", ["row"], ["minus"])],
        "body",
        [info("row", None)],
        [info("minus", None)],
    )
    proto = model(
        [
            helper.make_node(
                "Scan",
                ["rows"],
                ["out"],
                name="scan",
                body=body,
                num_scan_inputs=1,
                scan_input_axes=[axis],
            )
        ],
        [info("rows", [rows, columns])],
        [info("out", None)],
    )
    graph = open_model_of(proto)
    assert graph["out"] == (odd.BATCH, odd.HIDDEN)


def open_model_of(proto: onnx.ModelProto) -> dict[str, tuple[int, ...] | None]:
    """Shapes by name."""
    types, _ = value_types(proto)
    return {name: value.shape for name, value in types.items()}


def test_a_body_that_hands_on_a_sequence_keeps_its_type(tmp_path: Path) -> None:
    pair = helper.make_tensor_sequence_value_info("seq", FLOAT, None)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("SequenceInsert", ["seq", "x"], ["longer"]),
        ],
        "body",
        [info("k", [], INT64), info("on", [], BOOL), pair],
        [info("still", [], BOOL), helper.make_tensor_sequence_value_info("longer", FLOAT, None)],
    )
    proto = model(
        [
            helper.make_node("SequenceConstruct", ["x"], ["first"], name="first"),
            helper.make_node("Loop", ["trips", "", "first"], ["all"], name="loop", body=body),
            helper.make_node("ConcatFromSequence", ["all"], ["joined"], name="join", axis=0),
        ],
        [info("x", [2, 3])],
        [info("joined", [8, 3])],
        [constant("trips", 3, np.int64)],
    )
    path = saved(proto, tmp_path)
    opened = open_model(path)
    joined = opened.graph.tensor_named("joined")
    assert joined is not None
    assert joined.shape == (8, 3)
    types, _ = value_types(proto)
    made = body_models(proto, proto.graph.node[1], types)[0].model.graph
    assert made.output[1].type.HasField("sequence_type")
    assert analyze(path).timeline.peak_bytes > 0
