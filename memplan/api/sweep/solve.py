"""One question answered, in whatever process: nothing is raised, a failure is an answer."""

from __future__ import annotations

import errno

from memplan.api.analysis import analyze
from memplan.api.rewrite.rewriting import rewrite
from memplan.api.sweep.point import Answer, Failure, Footprint, Planned, Task
from memplan.errors import EXIT_BUG, EXIT_ENVIRONMENT, MemplanError

_SYSTEM = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENOMEM}


def solve(task: Task) -> Answer:
    """The answer to ``task``; where there is none, a ``Failure`` says why."""
    try:
        return _footprint(task) if task.plan is None else _planned(task)
    except MemplanError as error:
        return Failure(error.message, error.hint, error.exit_code)
    except MemoryError:
        return Failure("out of memory", "run fewer at a time: --jobs 1", EXIT_ENVIRONMENT)
    except OSError as error:
        code = EXIT_ENVIRONMENT if error.errno in _SYSTEM else EXIT_BUG
        return Failure(f"{type(error).__name__}: {error}", "", code)
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return Failure(what, "this is a bug in memplan; 'rewrite -vv' shows where", EXIT_BUG)


def _footprint(task: Task) -> Footprint:
    found = analyze(
        task.path,
        dict(task.dims),
        session=task.session,
        provider=task.provider,
        loss=task.loss,
        state=task.state,
    )
    return Footprint(
        peak_bytes=found.timeline.peak_bytes,
        peak_with_workspace_bytes=found.timeline.peak_with_workspace_bytes,
        floor_bytes=found.floor_bytes,
        floor_with_workspace_bytes=found.floor_with_workspace_bytes,
        exact=not found.inexact,
        assumptions=tuple(found.assumptions),
        state_in_place=found.graph.state is not None,
    )


def _planned(task: Task) -> Planned:
    assert task.plan is not None
    found = rewrite(task.path, task.plan, dims=dict(task.dims), dry_run=True)
    return Planned(
        budget_bytes=found.budget_bytes,
        predicted_peak_bytes=found.timeline.peak_bytes,
        predicted_peak_with_workspace_bytes=found.timeline.peak_with_workspace_bytes,
        extra_cost_fraction=found.extra_cost_fraction,
        bound_fraction=found.plan.bound_fraction,
        bound_kind=found.plan.bound_kind,
        recomputed_nodes=found.plan.clones,
        recomputing_loops=sum(bool(pair.recomputed) for pair in found.pairs),
        assumptions=tuple(found.assumptions),
    )
