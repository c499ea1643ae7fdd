"""Sessions of ONNX Runtime on the CPU, as tests open them; not imported without it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from memplan.runtime.session_options import session_options

RAW, ALL = "ORT_DISABLE_ALL", "ORT_ENABLE_ALL"


def session(model: onnx.ModelProto, kind: str = ALL, threads: int = 1) -> Any:
    """A session of a kind of memplan's, or one with a level of optimization. What fails raises, and
    is not printed too."""
    if kind in ("tuned", "default"):
        options = session_options(kind)
    else:
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, kind)
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def outputs(
    model: onnx.ModelProto, feeds: Mapping[str, Any], kind: str = ALL, threads: int = 1
) -> dict[str, np.ndarray[Any, Any]]:
    """All outputs, by name."""
    opened = session(model, kind, threads)
    names = [value.name for value in opened.get_outputs()]
    return dict(zip(names, opened.run(names, dict(feeds)), strict=True))
