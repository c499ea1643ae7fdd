"""The pytest plugin: a test fails when a model's predicted peak is above its limit.

pytest imports this module in every run, so it imports nothing else until a test asks. The check
follows the test's body, which may make the model; it belongs to the test, not to its setup, so
that ``xfail``, reruns and reports treat it as any failed assertion.
"""

from __future__ import annotations

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike
    from pathlib import Path
    from typing import Any

    from memplan.api.check.peak_limit import HeldPeak
    from memplan.errors import MemplanError

_MARK = (
    "memplan(model, max_peak=None, lock=None, dims=None, session=None, provider=None): fail the "
    "test when the model's predicted peak is above max_peak ('4GB'), or above the one in the lock."
)
_OPTIONS = ("max_peak", "lock", "dims", "session", "provider")


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, also to ``--strict-markers``."""
    config.addinivalue_line("markers", _MARK)


# After the test itself, and not at all where that failed. A wrapper would do as well, but would
# be refused by the pluggy of old versions of pytest, in every run of theirs.
@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Hold the models of the test's marks to their limits; all that fail are told at once."""
    marks = list(item.iter_markers("memplan"))
    failures = [text for mark in reversed(marks) if (text := _failure(item, mark))]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


@pytest.fixture
def memplan_peak(request: pytest.FixtureRequest) -> Callable[..., int]:
    """``memplan_peak(model, max_peak="4GB", dims={"N": 32})`` gives the predicted peak in bytes.

    Options are those of the mark ``memplan``; without a limit, nothing fails.
    """

    def peak(model: PathLike[str] | str, **options: Any) -> int:
        __tracebackhide__ = True
        from memplan.errors import MemplanError

        try:
            _refuse_unknown(options)
            held = _held(request.node, model, options)
        except MemplanError as error:
            pytest.fail(_told(error))
        if held.exceeded:
            pytest.fail("\n".join(held.lines))
        return held.peak_bytes

    return peak


def _failure(item: pytest.Item, mark: pytest.Mark) -> str:
    """Why a mark fails its test; empty where it does not."""
    from memplan.errors import MemplanError, UsageError

    try:
        if len(mark.args) != 1:
            raise UsageError(
                f"the mark memplan takes one model, not {len(mark.args)}",
                'write @pytest.mark.memplan("step.onnx", max_peak="4GB")',
            )
        _refuse_unknown(mark.kwargs)
        if mark.kwargs.get("max_peak") is None and mark.kwargs.get("lock") is None:
            raise UsageError(
                f"the mark memplan of {mark.args[0]} has no limit",
                'add max_peak="4GB" or lock="memplan.lock"',
            )
        held = _held(item, mark.args[0], mark.kwargs)
    except MemplanError as error:
        return _told(error)
    return "\n".join(held.lines) if held.exceeded else ""


def _held(item: pytest.Item, model: object, options: Mapping[str, Any]) -> HeldPeak:
    """The model's peak against its limit.

    Raises:
        MemplanError: an option cannot be used, or a file cannot be read.
    """
    from memplan.api.check.peak_limit import PeakLimit, hold, size_in_bytes
    from memplan.errors import UsageError

    max_peak, lock, dims = (options.get(name) for name in ("max_peak", "lock", "dims"))
    if not isinstance(dims, dict | None):
        raise UsageError(f"dims is not a dictionary: {dims!r}", 'write dims={"N": 32}')
    limit = PeakLimit(
        max_peak_bytes=None if max_peak is None else size_in_bytes(max_peak),
        lock=None if lock is None else _found(item, lock),
        dims=dims or {},
        session=options.get("session"),
        provider=options.get("provider"),
    )
    held = hold(_found(item, model), limit)
    if held.lines and not held.exceeded:
        item.warn(pytest.PytestWarning("\n".join(held.lines)))
    return held


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    """A limit that is misspelt must not be no limit.

    Raises:
        UsageError: there is no such option.
    """
    from memplan.errors import UsageError
    from memplan.units import did_you_mean

    for name in sorted(options.keys() - set(_OPTIONS)):
        known = ", ".join(_OPTIONS)
        raise UsageError(
            f"unknown option '{name}' of memplan", f"{did_you_mean(name, _OPTIONS)}it takes {known}"
        )


def _found(item: pytest.Item, name: object) -> Path:
    """A file by its path from the folder of the test, or from pytest's root folder.

    Raises:
        UsageError: it is no path, or in neither folder.
    """
    from memplan.errors import UsageError
    from memplan.proto.paths import as_path

    path = as_path(name)
    places = [folder / path for folder in (item.path.parent, item.config.rootpath)]
    for place in places:
        if place.exists():
            return place
    where = "" if path.is_absolute() else " in the test's folder or pytest's root folder"
    raise UsageError(
        f"{path} does not exist{where}",
        "make it first: fixtures and the test itself run before the mark is looked at",
    )


def _told(error: MemplanError) -> str:
    return f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else "")
