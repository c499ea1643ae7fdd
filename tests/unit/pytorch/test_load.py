"""``FILE.py:FUNCTION``: what a user may get wrong, and what is put back when it has run."""

import random
import sys
from pathlib import Path

import pytest

from memplan.errors import UsageError
from memplan.pytorch.load_function import returned_by, split_target, users_code
from memplan.pytorch.torch_step import TorchStep, as_step, parameter_names

SOURCE = """
import sys
from beside import WORD

def given():
    return WORD

def failing():
    raise KeyError("first line\\nsecond line")

value = 3
"""


@pytest.fixture(autouse=True)
def import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WORD = 'yes'")
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return path


def test_a_function_may_import_what_lies_beside_its_file(source: Path) -> None:
    path, name = split_target(f"{source}:given")
    assert returned_by(path, name) == "yes"


@pytest.mark.parametrize("target", ["train.py", "train.py:", ":f", "train.py:f()", "train.py:a b"])
def test_targets_of_another_form(target: str) -> None:
    with pytest.raises(UsageError, match="does not name a file and a function") as raised:
        split_target(target)
    assert "train.py:make_step" in raised.value.hint


def test_a_missing_file() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.py does not exist"):
        split_target("nowhere.py:f")


@pytest.mark.parametrize("name", ["absent", "value"])
def test_a_missing_function_and_those_that_are_there(source: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"no function '{name}'") as raised:
        returned_by(source, name)
    assert raised.value.hint == "it has given, failing"


def test_a_function_that_raises(source: Path) -> None:
    with pytest.raises(UsageError, match=r"failing\(\) in .* raises KeyError") as raised:
        returned_by(source, "failing")
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("text", ["1 / 0", "import nowhere_to_be_found", "def f(:", "exit(3)"])
def test_a_file_that_raises(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"train\.py raises "):
        returned_by(path, "f")


@pytest.mark.parametrize(
    "given",
    [(1, 2, 3), {"model": 1, "loss": 2, "batch": 3}, TorchStep(1, 2, 3)],  # type: ignore[arg-type]
)
def test_a_step_in_every_form(given: object) -> None:
    found = as_step(given)
    assert (found.model, found.loss, found.batch, found.optimizer) == (1, 2, 3, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "int is not a training step"),
        ((1, 2), "tuple of 2"),
        (None, "NoneType"),
        ({"model": 1}, "no 'model' or no 'batch'"),
        ({"model": 1, "batch": 2, "optimiser": 3}, "unknown key 'optimiser'"),
    ],
)
def test_what_is_not_a_step(given: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        as_step(given)


def test_names_of_a_functions_parameters() -> None:
    def loss(model: object, x: object, y: object, *more: object, scale: int = 1) -> None: ...

    assert parameter_names(loss, 1) == ("x", "y")


RUDE = """
import random, sys
import torch
def f():
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.manual_seed(5)
    random.seed(5)
    sys.path.insert(0, "elsewhere")
    sys.argv.append("more")
"""


def test_what_a_function_sets_holds_while_its_step_is_captured_and_no_longer(
    tmp_path: Path,
) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "train.py"
    path.write_text(RUDE)
    before = list(sys.path), list(sys.argv), random.getstate(), torch.get_rng_state()
    with users_code(path):
        returned_by(path, "f")
        made = torch.zeros(1)
        assert (made.dtype, made.device.type) == (torch.float64, "meta")
        assert sys.path[0] == "elsewhere"
        assert sys.path[-1] == str(tmp_path)
    assert before[:3] == (sys.path, sys.argv, random.getstate())
    assert torch.equal(before[3], torch.get_rng_state())
    made = torch.zeros(1)
    assert (made.dtype, made.device.type) == (torch.float32, "cpu")
    assert torch.is_grad_enabled()


class _Mine(KeyboardInterrupt):
    pass


@pytest.mark.parametrize(
    "error", [SystemExit(0), GeneratorExit(), BaseException("x"), _Mine("y"), ValueError("z")]
)
def test_however_the_code_of_a_file_ends_it_is_told_in_one_line(error: BaseException) -> None:
    pytest.importorskip("torch")
    here = Path(__file__)
    told = rf"{here.name}:\d+ raises {type(error).__name__}"
    with pytest.raises(UsageError, match=told), users_code(here):
        raise error


def test_an_interrupt_stays_one_and_errors_of_ours_stay_ours(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(KeyboardInterrupt), users_code(Path(__file__)):
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), users_code(tmp_path / "train.py"):
        _ = 1 / 0


@pytest.mark.parametrize(
    ("text", "said"),
    [("'x' * 10**6", "raises E: x+$"), ("exit(0)", "raises E$")],
    ids=["long", "raises"],
)
def test_an_error_whose_text_is_long_or_raises_is_told_all_the_same(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"class E(Exception):\n    def __str__(self): return {text}\nraise E")
    with pytest.raises(UsageError, match=said) as raised:
        returned_by(path, "f")
    assert len(raised.value.message) < 1000


def test_a_file_beside_it_stands_for_no_module_of_python_later(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("OURS = True")
    (tmp_path / "train.py").write_text("import colorsys\ndef f(): return colorsys.OURS")
    sys.modules.pop("colorsys", None)
    assert returned_by(tmp_path / "train.py", "f") is True
    import colorsys

    assert not hasattr(colorsys, "OURS")


@pytest.mark.parametrize(
    ("mode", "named"),
    [
        ("torch.inference_mode()", "torch.inference_mode"),
        ("torch.autocast('cpu')", "torch.autocast"),
    ],
)
def test_a_mode_that_a_function_leaves_entered_is_named(
    mode: str, named: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "train.py"
    path.write_text(
        f"import torch\nMODES = []\ndef f():\n    MODES.append({mode}); MODES[0].__enter__()\n"
    )
    try:
        with pytest.raises(UsageError, match=f"leaves {named}"):
            returned_by(path, "f")
    finally:
        sys.modules["memplan_captured_train"].MODES[0].__exit__(None, None, None)
