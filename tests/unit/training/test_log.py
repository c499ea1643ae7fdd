"""The log of a run: what a resumed run goes on with, and what it refuses to touch."""

from pathlib import Path

import pytest

from memplan.errors import UsageError
from memplan.training.log import TrainingLog
from memplan.training.telling import StepReport

HEAD = "step,loss,lr,seconds\n"


def rows(*steps: int) -> str:
    return "".join(f"{step},1.5,0.1,0.25\n" for step in steps)


def resumed(path: Path, step: int, *metrics: str, force: bool = False) -> TrainingLog:
    log = TrainingLog(path, step, force=force, metrics=metrics)
    log.begin()
    log.close()
    return log


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("notes.csv", "name,amount\nalice,5\n"),
        ("numbers.csv", "1,2,3,4\n2,3,4,5\n"),
        ("later.csv", HEAD + rows(1) + "# a larger rate from here\n" + rows(2)),
        ("metrics.csv", HEAD.replace("seconds", "seconds,accuracy") + "1,1.5,0.1,0.2,0.9\n"),
        ("package.jsonl", '{"name": "x", "version": 1}\n'),
        ("pretty.jsonl", '{\n  "step": 1\n}\n'),
        ("fewer.jsonl", '{"step": 1, "loss": 2.0}\n'),
        ("more.jsonl", '{"step": 1, "loss": 2.0, "lr": 1, "seconds": 1, "accuracy": 1}\n'),
        ("bytes.csv", "\udcff\udcfe"),
    ],
)
def test_a_file_that_is_not_the_log_of_this_step_is_refused_and_left_alone(
    name: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text, errors="surrogateescape")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is not a log of this step"):
        TrainingLog(path, 5)
    assert path.read_bytes() == before
    resumed(path, 5, force=True)


def test_json_lines_are_not_json(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.json: the name ends in neither \.csv nor \.jsonl"):
        TrainingLog(tmp_path / "run.json")


def test_a_link_to_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a\x12mine")
    (tmp_path / "run.csv").symlink_to(tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="is not a log of this step"):
        TrainingLog(tmp_path / "run.csv", 5)


@pytest.mark.parametrize("name", ["run.csv", "run.jsonl"])
def test_rows_without_their_checkpoint_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    first = TrainingLog(path)
    first.write(StepReport(1, 0.5, 0.1, None))
    first.close()
    before = path.read_bytes()
    with pytest.raises(UsageError, match="there is no checkpoint to resume from"):
        TrainingLog(path, 0)
    assert path.read_bytes() == before
    resumed(path, 0, force=True)
    assert len(path.read_text().splitlines()) == (name == "run.csv")


def test_an_empty_file_and_one_without_rows_are_gone_on_with(tmp_path: Path) -> None:
    for text in ("", HEAD):
        (tmp_path / "run.csv").write_text(text)
        assert not resumed(tmp_path / "run.csv", 0).notes
        assert (tmp_path / "run.csv").read_text() == HEAD


def test_a_row_that_was_cut_off_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(HEAD + rows(1, 2) + "3,1.2")
    resumed(path, 2)
    assert path.read_text() == HEAD + rows(1, 2)
    path.with_suffix(".jsonl").write_text('{"step": 1, "lo')
    resumed(path.with_suffix(".jsonl"), 0)
    assert not path.with_suffix(".jsonl").read_text()


def test_a_log_ahead_of_its_checkpoint_or_behind_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(HEAD + rows(1, 2, 3, 4))
    (note,) = resumed(path, 2).notes
    assert "2 rows of steps after 2 removed" in note
    assert path.read_text() == HEAD + rows(1, 2)
    (note,) = resumed(path, 7).notes
    assert "no rows of steps 3 to 7" in note
    assert path.read_text() == HEAD + rows(1, 2)


def test_a_log_that_an_editor_saved_is_still_one(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_bytes((HEAD + rows(1, 2)).replace("\n", "\r\n").encode())
    resumed(path, 2)
    assert path.read_text() == HEAD + rows(1, 2)


def test_columns_of_metrics_are_part_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(HEAD.replace("\n", ",accuracy\n") + "1,1.5,0.1,0.2,0.9\n")
    before = path.read_text()
    resumed(path, 1, "accuracy")
    assert path.read_text() == before
    with pytest.raises(UsageError, match="line 1 is none of its rows"):
        TrainingLog(path, 1, metrics=["recall"])
    assert path.read_text() == before


def test_a_log_is_as_it_was_until_its_run_begins(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(HEAD + rows(1, 2, 3))
    for log in (TrainingLog(path, 1), TrainingLog(path, force=True)):
        log.close()
        assert path.read_text() == HEAD + rows(1, 2, 3)
