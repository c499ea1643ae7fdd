"""Symbolic dimensions: names, sizes, what is said without one. Versions of files."""

from pathlib import Path

import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import odd_models as odd
from helpers.odd_models import info, saved
from memplan.api.analysis import analyze
from memplan.errors import EXIT_MODEL, EXIT_USAGE, ModelError, UsageError
from memplan.shapes.dims import bind_dims, evaluate_dim, symbolic_dims
from memplan.shapes.infer import stated_types
from memplan.shapes.prepare import prepare


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


@pytest.mark.parametrize(
    ("head", "op", "written", "words"),
    [
        ('ir_version: 14, opset_import: ["": 26]', "Exp", (13, 26), "memplan writes 13"),
        ('ir_version: 13, opset_import: ["": 28]', "Exp", (13, 26), "which memplan writes"),
        ('ir_version: 13, opset_import: ["": 28]', "Celu", (13, 28), "Celu changed since"),
        ('ir_version: 99, opset_import: ["": 26]', "Exp", (99, 26), "IR version 99"),
        ('ir_version: 13, opset_import: ["": 99]', "Exp", (13, 99), "opset 99"),
        ('ir_version: 9, opset_import: ["": 20]', "Exp", (9, 20), ""),
    ],
)
def test_versions_that_the_runtime_does_not_read(
    head: str, op: str, written: tuple[int, int], words: str
) -> None:
    """They are said, and lowered where they add nothing."""
    text = f"<{head}> g (float[3] x) => (float[3] y) {{ y = {op}(x) }}"
    prepared = prepare(onnx.parser.parse_model(text), Path("m.onnx"), {})
    assert (prepared.proto.ir_version, prepared.proto.opset_import[0].version) == written
    assert words in "".join(prepared.assumptions)
    assert bool(prepared.assumptions) == bool(words)
    assert not analyze(onnx.parser.parse_model(text)).inexact
