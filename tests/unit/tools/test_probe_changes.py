"""The command that probes a new runtime: it tells every entry that changed, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
TABLES = ROOT / "memplan" / "ops" / "tables"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = ROOT / "tools" / "probe_ort" / "changes.py"
    spec = importlib.util.spec_from_file_location("probe_changes", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["probe_changes"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cpu.json", "cuda.json", "cuda_kernels.json"])
def test_a_table_does_not_differ_from_itself(tool: ModuleType, name: str) -> None:
    table = json.loads((TABLES / name).read_text())
    assert not list(tool.changes(name, table, table))


def test_every_kind_of_change_is_told(tool: ModuleType) -> None:
    table = json.loads((TABLES / "cpu.json").read_text())
    other = json.loads((TABLES / "cpu.json").read_text())
    other["alias"][":Relu"] = [[0, 0]]
    del other["inplace"][":Relu"]
    other["not_inplace"].remove(":Abs")
    row = other["scratch"][3]
    row["scratch_bytes"] += 64
    told = [str(change) for change in tool.changes("cpu.json", table, other)]
    assert len(told) == 4
    assert "cpu.json: alias: :Relu: absent -> [[0, 0]]" in told
    assert "cpu.json: inplace: :Relu: [[0, 0]] -> absent" in told
    assert 'cpu.json: not_inplace: :Abs: "listed" -> absent' in told
    assert any(
        row["op"] in line and f'"scratch_bytes": {row["scratch_bytes"]}' in line for line in told
    )


def test_another_runtime_with_the_same_tables_is_added(tool: ModuleType) -> None:
    table = json.loads((TABLES / "cpu.json").read_text())
    measured = table["runtime"], *table["same_on"]
    added = tool.same_on(table, "onnxruntime 9.9")
    assert (added["runtime"], *added["same_on"]) == (*measured, "onnxruntime 9.9")
    assert not list(tool.changes("cpu.json", table, added))
    assert tool.same_on(added, table["runtime"]) == added
