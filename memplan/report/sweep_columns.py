"""Which columns a sweep's table needs: what differs between points. The rest is said once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memplan.api.sweep.sweep_result import Sweep, SweepPoint


@dataclass(frozen=True, slots=True)
class Columns:
    """``texts``: of model, session and provider those that differ; ``dims``: dimensions that do.
    ``fixed``: what does not, in words. ``names`` shortens models' paths."""

    texts: tuple[str, ...]
    dims: tuple[str, ...]
    fixed: tuple[str, ...]
    names: Mapping[Path, str]

    def text(self, point: SweepPoint, name: str) -> str:
        """The cell of one of ``texts``."""
        if name == "model":
            return self.names[point.model]
        return point.session if name == "session" else point.provider


def varying(sweep: Sweep) -> Columns:
    """What differs between the points of a sweep, and what does not."""
    kinds = [(p.session, p.provider) for p in sweep.points]
    kinds += [(f.task.session, f.task.provider) for f in sweep.fits]
    sessions, providers = ({kind[k] for kind in kinds} for k in (0, 1))
    texts = ["model"] if len(sweep.models) > 1 else []
    texts += ["session"] if len(sessions) > 1 else []
    texts += ["provider"] if len(providers) > 1 else []
    dims = sweep.dims
    found = {name for name, sizes in dims.items() if len(sizes) > 1 or len(sweep.points) == 1} | {
        fit.dim for fit in sweep.fits if fit.dim in dims
    }
    fixed = [f"{next(iter(sessions))} session"] if len(sessions) == 1 else []
    fixed += [f"on {next(iter(providers))}"] if len(providers) == 1 else []
    fixed += [f"{name}={sizes[0]}" for name, sizes in dims.items() if name not in found]
    return Columns(
        tuple(texts), tuple(n for n in dims if n in found), tuple(fixed), _names(sweep.models)
    )


def named(model: Path, dims: Mapping[str, int], session: str, provider: str, sweep: Sweep) -> str:
    """What a line is about, with a colon: no more than tells it from others; may be empty."""
    columns = varying(sweep)
    parts = [columns.names[model]] if "model" in columns.texts else []
    parts += [session] if "session" in columns.texts else []
    parts += [provider] if "provider" in columns.texts else []
    parts += [f"{name}={size}" for name, size in dims.items()]
    return f"{', '.join(parts)}: " if parts else ""


def _names(models: tuple[Path, ...]) -> dict[Path, str]:
    """File names where they tell the models apart, else paths."""
    short = {model: model.name for model in models}
    return short if len(set(short.values())) == len(models) else {m: str(m) for m in models}


def assumed(sweep: Sweep) -> list[str]:
    """The assumptions, each once; of those that not all points rest on, how many do."""
    whole, found = len(sweep.points), []
    for note in sweep.assumptions:
        count = sweep.shared_by(note)
        found.append(note if count == whole else f"{note} ({count} of {whole} points)")
    return found
