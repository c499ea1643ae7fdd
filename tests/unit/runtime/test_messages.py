"""What a process and its child say to each other arrives as it was sent."""

from __future__ import annotations

import pytest

from memplan.runtime.messages import (
    CudaMeasurement,
    Failure,
    LoadTask,
    Measurement,
    MeasureTask,
    NodeRun,
    OptimizeTask,
    RunRequest,
    RunTimes,
    Saved,
    Started,
    StartTask,
    Timed,
    TimeTask,
    decode_answer,
    decode_task,
    encode,
)

REQUEST = RunRequest("tuned", "cuda", {"n": 4}, 3, 1, 2, {"device_id": "0"})
NODES = (NodeRun("a", "Gemm", "CPUExecutionProvider", 12),)


@pytest.mark.parametrize(
    "task",
    [
        MeasureTask("m.onnx", REQUEST, "in.npz", "out.npz"),
        TimeTask("m.onnx", REQUEST, "in.npz", "folder", 2),
        OptimizeTask("m.onnx", REQUEST, "o.onnx", None, ("Pad_Fusion",)),
        LoadTask("m.onnx", REQUEST, "o.onnx"),
        StartTask(RunRequest()),
    ],
)
def test_a_task_arrives_as_it_was_sent(task: object) -> None:
    assert decode_task(encode(task)) == task  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        Measurement(("y",), NODES, 4, 8, 9, 16, rss_growth_bytes=100),
        Measurement((), (), 0, 0, 0, 0, seconds_median=0.5, cuda=CudaMeasurement(1, 2, None)),
        Timed((RunTimes(0.5, {"a": 0.25}),)),
        Saved("1.31.1"),
        Started("1.31.1", True, None, 5),
        Failure("no kernel for 'Ä'"),
    ],
)
def test_an_answer_arrives_as_it_was_sent(answer: object) -> None:
    assert decode_answer(encode(answer)) == answer  # type: ignore[arg-type]
