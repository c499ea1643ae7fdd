"""Damaged models: an answer that adds up, or one clear error. Never a crash, never a hang.

The same examples every time: a crash inside ONNX's C++ code would end the whole test run.
``tools/fuzz`` tries others, in processes of their own.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from helpers import odd_models as odd
from helpers.effort import tries
from helpers.models import DIMS, sample_models
from helpers.mutate import change_field, scrambled
from memplan.api.analysis import Analysis, analyze
from memplan.errors import EXIT_MODEL, EXIT_USAGE, MemplanError

PATIENCE_SECONDS = 20
SAMPLES = {path.stem: path.read_bytes() for path in sample_models()}
ODD = {name: make().SerializeToString() for name, make in odd.WORKING.items()}
Damage = Callable[[bytes, random.Random], bytes]


def fields(data: bytes, r: random.Random) -> bytes:
    """One to three fields changed, often without the shapes that the file states."""
    model = onnx.ModelProto.FromString(data)
    if r.random() < 0.5:
        del model.graph.value_info[:]
    for _ in range(r.randint(1, 3)):
        try:
            change_field(model, r)
        except (ValueError, IndexError, TypeError):  # of something that the model has not
            continue
    return model.SerializeToString()


def answer(path: Path, dims: dict[str, int], session: str) -> Analysis | MemplanError:
    """What the user gets; any other exception is a failure."""
    try:
        return analyze(path, dims, session=session)
    except MemplanError as error:
        return error


def check(path: Path, data: bytes, dims: dict[str, int], session: str) -> Analysis | MemplanError:
    """Analyze ``data``: an answer that adds up, or an error for the user."""
    path.write_bytes(data)
    started = time.process_time()
    found = answer(path, dims, session)
    assert time.process_time() - started < PATIENCE_SECONDS
    assert path.read_bytes() == data
    if isinstance(found, MemplanError):
        assert found.exit_code in (EXIT_USAGE, EXIT_MODEL), found
        assert found.message
        return found
    timeline = found.timeline
    assert 0 <= timeline.resident_bytes <= timeline.peak_bytes
    assert sum(found.by_class.values()) == timeline.peak_bytes
    assert (timeline.dynamic >= 0).all()
    assert found.floor_bytes <= timeline.peak_bytes
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "damage", "count"),
    [
        (SAMPLES, fields, tries(150)),
        (SAMPLES, scrambled, tries(100)),
        (ODD, fields, tries(400)),
        (ODD, scrambled, tries(200)),
    ],
    ids=["fields", "bytes", "fields of odd models", "bytes of odd models"],
)
def test_an_answer_or_one_error(
    models: dict[str, bytes], damage: Damage, count: int, tmp_path: Path
) -> None:
    names, answers = sorted(models), 0
    for number in range(count):
        r = random.Random(number)
        name, session = r.choice(names), r.choice(("tuned", "default"))
        data = damage(models[name], r)
        found = check(tmp_path / "model.onnx", data, DIMS.get(name, {}), session)
        answers += not isinstance(found, MemplanError)
    # Examples that all fail at the door would test nothing behind it.
    assert damage is scrambled or count // 10 < answers < count * 9 // 10
