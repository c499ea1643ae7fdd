"""The collector of garbage in cycles rests where it would find nothing, and works again after."""

import gc

import pytest

from memplan.processes.garbage import collector_paused


def test_it_rests_and_goes_on() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():  # inside another one
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="x"), collector_paused():
        raise ValueError("x")
    assert gc.isenabled()


def test_who_has_paused_it_finds_it_paused() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
