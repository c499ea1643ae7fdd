"""Session options of each session kind. Imports onnxruntime; used in child processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort


def session_options(kind: str = "tuned", dims: Mapping[str, int] | None = None) -> Any:
    """Options for a session of the given kind.

    ``tuned`` runs the file's node order (``PRIORITY_BASED``) without load-time optimization, which
    would merge recomputed nodes, and without buffer reuse and memory patterns, which keep dead
    buffers alive (docs/how/memory-model.md). ``default`` is what anyone gets from a plain
    ``InferenceSession(path)``.

    Args:
        kind: ``tuned`` or ``default``.
        dims: values for symbolic input dimensions; a tuned session then plans with static shapes.

    Raises:
        ValueError: there is no such kind.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if kind == "tuned":
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.enable_mem_reuse = False
        options.enable_mem_pattern = False
    elif kind == "default":
        return options
    else:
        raise ValueError(f"unknown session kind '{kind}'")
    for name, value in (dims or {}).items():
        options.add_free_dimension_override_by_name(name, value)
    return options


def held_options(*, optimized: bool) -> Any:
    """Options of a plain session whose results are held against others: what fails raises, and is
    not printed too; what a run has taken is given back. Without the runtime's optimizations, what
    runs is the file."""
    options = session_options("default")
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def save_instead(options: Any, target: Path) -> None:
    """Let a session be made to be saved at ``target``, in the format of its suffix, and not to be
    run. Weights in other files stay where they are, and are not even read: packing them for the
    kernels would read all (measured: 2.5 GiB of weights in 3 ms and 62 MB, instead of 14 s and
    5 GB). Nor are buffers given to nodes that will not run: among many of unknown shape each is
    held against all (measured: 13,590 nodes behind input fences in 5 CPU s instead of 11)."""
    options.optimized_model_filepath = str(target)
    options.enable_mem_reuse = options.enable_mem_pattern = False
    options.add_session_config_entry("session.disable_prepacking", "1")


def point_to_weights(options: Any, folder: Path | None) -> None:
    """Let a session that is given a model's bytes find its external data."""
    if folder is not None:
        name = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(name, str(folder.resolve()))
