"""``diff``: two files → what makes one need more memory than the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memplan.api.analysis import Analysis, analyze_session
from memplan.api.diff.diff_result import Diff
from memplan.api.diff.graph_changes import graph_changes
from memplan.api.diff.peak_changes import peak_changes
from memplan.api.open_step import open_step
from memplan.api.python_step import as_sizes
from memplan.api.source import Model, shown_path
from memplan.api.state_modes import runs_in_place
from memplan.errors import UsageError
from memplan.ir.counterparts import find_counterparts
from memplan.proto.metadata import APART, get_metadata
from memplan.proto.read import read_model
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import prepare
from memplan.simulate.session import session_kind


def diff(
    old: Model,
    new: Model,
    dims: Mapping[str, int] | None = None,
    *,
    new_dims: Mapping[str, int] | None = None,
    session: str = "tuned",
    provider: str = "cpu",
    state: str | Sequence[str] = (),
) -> Diff:
    """Compare the memory of two training steps.

    Args:
        old: an ONNX training graph: a path or a ``ModelProto``.
        new: another.
        dims: values for symbolic dimensions; a model that has no such dimension does without.
        new_dims: those of the new model that are others, to compare batch sizes.
        session: ``tuned`` or ``default``.
        provider: ``cpu`` or ``cuda``.
        state: where new weights and moments lie, as for ``analyze``; where nothing is said and one
            model's state could lie in place and does not, the other's does not either.

    Raises:
        ModelError: a model cannot be read or a shape stays unknown.
        UsageError: neither model has a dimension that is named, or an unknown session or provider
            was named.
    """
    asked = (state,) if isinstance(state, str) else tuple(state)
    both = {**(dims or {})}
    left = set(both) | set(new_dims or {})
    sides = ((old, both), (new, {**both, **(new_dims or {})}))
    found, unsaid = [], []
    for model, bound in sides:
        analysis, known, by_default = _analyzed(model, bound, session, provider, asked)
        left -= known
        found.append(analysis)
        unsaid.append(by_default and not asked)
    for k, (model, bound) in enumerate(sides):
        if unsaid[k] and _apart(found[1 - k]):
            found[k], *_ = _analyzed(model, bound, session, provider, (APART,))
    if left:
        raise UsageError(
            f"--dim {min(left)}: neither model has a dimension of that name",
            "'memplan analyze' names the dimensions of a model",
        )
    return compare_analyses(found[0], found[1])


def compare_analyses(old: Analysis, new: Analysis) -> Diff:
    """What lies between two analyses, of sessions of one kind."""
    found = find_counterparts(old.graph, new.graph)
    return Diff(
        old=old,
        new=new,
        counterparts=found,
        graph=graph_changes(old, new, found),
        changes=peak_changes(old, new, found),
    )


def _apart(analysis: Analysis) -> bool:
    """Whether state that could lie in place does not."""
    pairs = analysis.contract.new_values if analysis.contract else {}
    return bool(pairs) and analysis.graph.state is None


def _analyzed(
    model: Model, dims: Mapping[str, int], session: str, provider: str, state: tuple[str, ...]
) -> tuple[Analysis, set[str], bool]:
    """One side, the names of its symbolic dimensions, and whether its state lies in place where
    nothing is said."""
    kind = session_kind(session, provider)
    with as_sizes(model) as file:
        read = read_model(file)
        known, by_default = set(symbolic_dims(read)), runs_in_place(get_metadata(read))
        bound = {name: size for name, size in dims.items() if name in known}
        prepared = prepare(read, file, bound, partly=True)
        analysis = analyze_session(open_step(prepared, kind, state=state), kind)
    return replace(analysis, path=shown_path(model)), known, by_default
