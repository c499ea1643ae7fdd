"""The kinds of session that are simulated and measured."""

from __future__ import annotations

from dataclasses import dataclass

SESSIONS = ("tuned", "default")

# Workspace of convolutions grows with the number of threads, up to 16 in ONNX Runtime 1.31.1.
# Counting all 16 bounds every machine, and a plan does not depend on the one it was made on.
WORKSPACE_THREADS = 16


@dataclass(frozen=True, slots=True)
class SessionKind:
    """How a model is loaded.

    ``priority_order``: ``ExecutionOrder.PRIORITY_BASED`` (the file's order); else ONNX Runtime's
    default order. ``reuse``: ``enable_mem_reuse``, on by default, which hands a dead buffer to a
    later tensor of the same dimensions and so keeps it alive in between. ``threads``: intra-op
    threads that kernel workspace is counted for. ``as_listed``: the nodes stand in the order in
    which they run, whatever that rests on.
    """

    name: str
    provider: str
    priority_order: bool
    reuse: bool
    threads: int = WORKSPACE_THREADS
    as_listed: bool = False


def session_kind(name: str, provider: str = "cpu") -> SessionKind:
    """``tuned`` (tightest, Python only) or ``default`` (a plain ``InferenceSession(path)``)."""
    if name == "tuned":
        return SessionKind("tuned", provider, priority_order=True, reuse=False)
    if name == "default":
        return SessionKind("default", provider, priority_order=False, reuse=True)
    raise ValueError(f"no session kind '{name}'")
