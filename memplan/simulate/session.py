"""The kinds of session that are simulated and measured."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from memplan.errors import UsageError
from memplan.options import SESSIONS
from memplan.providers import PROVIDERS
from memplan.units import did_you_mean

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

    @property
    def patterns(self) -> bool:
        """Whether runs after the first hold the block of a memory pattern."""
        return self.name == "default"


def session_kind(name: str, provider: str = "cpu") -> SessionKind:
    """``tuned`` (tightest, Python only) or ``default`` (a plain ``InferenceSession(path)``).

    Raises:
        UsageError: there is no such kind of session, or memplan knows no such provider.
    """
    _require("session", name, SESSIONS)
    _require("provider", provider, PROVIDERS)
    if name == "tuned":
        return SessionKind("tuned", provider, priority_order=True, reuse=False)
    if PROVIDERS[provider].plugin:
        raise UsageError(
            f"{PROVIDERS[provider].title} changes the graph of a plain session, which is not "
            "simulated",
            f"use --session tuned with --provider {provider}",
        )
    return SessionKind("default", provider, priority_order=False, reuse=True)


def _require(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        near = did_you_mean(name, known)
        raise UsageError(f"unknown {what} {name!r}", f"{near}{what}s: {', '.join(known)}")
