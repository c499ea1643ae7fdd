"""Parts of PyTorch that are not public: those that a table names, and no others; one that is gone
or of another kind is told, or something stands in."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import memplan
from helpers.with_torch import torch
from memplan.errors import RuntimeUnavailableError
from memplan.pytorch import installed_torch, torch_internals
from memplan.pytorch.torch_internals import INTERNALS, internal, replaced

ROOM = Path(memplan.__file__).parent / "pytorch"
NEED = sorted(path for path, told in INTERNALS.items() if not told.instead)
HAVE = sorted(path for path, told in INTERNALS.items() if told.instead)


class Other:
    """What another version of PyTorch could have in the place of a part of it."""


def private(tree: ast.AST) -> Iterator[str]:
    """Every name of PyTorch with an underscore that a module reads; operators are public."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for item in node.names:
                yield from _own(f"{module}.{item.name}".removeprefix("."))
        elif isinstance(node, ast.Attribute):
            yield from _own(ast.unparse(node))


def _own(path: str) -> Iterator[str]:
    parts = path.split(".")
    hidden = [part for part in parts if part.startswith("_") and not part.endswith("__")]
    if parts[0] == "torch" and parts[1:2] != ["ops"] and hidden:
        yield path


def test_nothing_else_is_read() -> None:
    found = {
        file.name: names
        for file in sorted(ROOM.glob("*.py"))
        if (names := sorted(set(private(ast.parse(file.read_text())))))
    }
    assert found == {"torch_internals.py": []} or not found


def test_every_row_is_read() -> None:
    text = "".join(file.read_text() for file in ROOM.glob("*.py") if "internals" not in file.name)
    unread = [path for path in INTERNALS if path.rpartition(".")[2] not in text]
    assert not unread


@pytest.mark.parametrize("path", INTERNALS)
def test_the_installed_pytorch_has_it_or_something_stands_in(path: str) -> None:
    assert internal(path) is not None or INTERNALS[path].instead


def take_away(path: str, monkeypatch: pytest.MonkeyPatch, instead: Any = None) -> None:
    """Let a part be gone, or something else be in its place."""
    owner, _, name = path.rpartition(".")
    try:
        place: Any = import_module(owner)
    except ImportError:
        module, _, kind = owner.rpartition(".")
        place = getattr(import_module(module), kind)
    monkeypatch.setattr(place, name, instead, raising=False)
    if instead is None:
        monkeypatch.delattr(place, name)
        monkeypatch.setitem(import_module("sys").modules, path, None)


@pytest.mark.parametrize("what", ["gone", "other"])
@pytest.mark.parametrize("path", NEED)
def test_a_part_that_is_needed_is_told(
    path: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed_torch, "version", lambda name: "2.16.0")
    take_away(path, monkeypatch, None if what == "gone" else Other())
    with pytest.raises(RuntimeUnavailableError) as told:
        internal(path)
    assert told.value.exit_code == 5
    assert told.value.message.startswith(
        f"memplan's own handle on PyTorch does not fit PyTorch 2.16.0: "
        f"{'there is no ' if what == 'gone' else ''}{path}"
    )
    assert INTERNALS[path].reason in told.value.message
    assert told.value.hint == installed_torch.REMEDY


@pytest.mark.parametrize("path", HAVE)
def test_something_stands_in(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(path, monkeypatch)
    assert internal(path) is None
    with replaced(path, Other()):
        pass


def loss(model: Any, x: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(model, x, use_reentrant=False).square().mean()


def step() -> Any:
    torch.manual_seed(0)
    return memplan.TorchStep(torch.nn.Linear(3, 2), loss, {"x": torch.randn(4, 3)})


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in HAVE if not path.endswith("_impl")])
def test_a_step_is_captured_with_what_stands_in(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch itself goes on to use what memplan does not find."""
    real = torch_internals._resolved

    def resolved(asked: str) -> Any:
        if asked == path:
            raise AttributeError(path)
        return real(asked)

    monkeypatch.setattr(torch_internals, "_resolved", resolved)
    check = memplan.capture(step()).check
    assert check.verdict == "equal"


CALLED = [
    "torch.onnx._internal.exporter._fx_passes.decompose_with_registry",
    "torch.onnx._internal.exporter._core.export",
    "torch.utils.checkpoint.CheckpointFunction",
    "torch.nn.modules.module._global_backward_hooks",
]


@pytest.fixture(scope="module")
def all_imported() -> None:
    memplan.capture(step(), check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("all_imported")
@pytest.mark.parametrize("path", CALLED)
def test_a_step_is_not_captured_without(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are looked up in every capture; others are when a module is imported."""
    take_away(path, monkeypatch)
    with pytest.raises(RuntimeUnavailableError, match=f"there is no {re.escape(path)}"):
        memplan.capture(step())
