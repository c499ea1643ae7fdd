"""Where compiled code is kept, and that a cache which cannot be used is no reason to fail."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memplan.solver import cache
from memplan.solver.search import warm_up

SMALL = """
import os
from memplan.solver.jit import seed_random
seed_random(1)
print(os.environ.get("NUMBA_CACHE_DIR", ""), sum(seed_random.stats.cache_hits.values()))
"""


NOBODY = """
import pwd
def nobody(number):
    raise KeyError(number)
pwd.getpwuid = nobody
"""


def kept(environment: dict[str, str], before: str = "") -> tuple[str, int]:
    """Compile one function: the folder that its code is kept in, and how often it was found."""
    found = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(
        [sys.executable, "-B", "-c", before + SMALL],
        env=found,
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    folder, hits = done.stdout.split(" ")
    return folder, int(hits)


def files(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.rglob(f"*{suffix}"))


@pytest.mark.parametrize("value", ["", "relative", "./numba", "~/cache"])
def test_a_cache_in_the_current_folder_is_not_used(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable in ("MEMPLAN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, value)
    assert cache.cache_folder() == tmp_path / "home/.cache/memplan"
    monkeypatch.setenv("HOME", value)
    assert cache.cache_folder() is None


def test_code_in_a_folder_that_others_can_write_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path / "own"))
    assert cache.code_folder("v") == tmp_path / "own/numba/v"
    for open_folder, mode in (("own/numba/v", 0o777), ("own/numba", 0o770), ("own", 0o702)):
        (tmp_path / open_folder).chmod(mode)
        place = cache.code_folder("v")
        assert not place.is_relative_to(tmp_path / "own")
        assert cache.is_private(place)
        (tmp_path / open_folder).chmod(0o755)
    assert cache.code_folder("v") == tmp_path / "own/numba/v"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_code_in_a_folder_of_another_user_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path))
    assert cache.code_folder("v") == tmp_path / "numba/v"
    os.chown(tmp_path / "numba/v", 65534, 65534)
    assert cache.code_folder("v") != tmp_path / "numba/v"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba/v"))
    assert cache.code_folder("v") != tmp_path / "numba/v"


# Each process waits, behind the look into the cache, until the other is there.
TOGETHER = """
import os, time
import memplan.solver.jit  # before numba, which would keep code elsewhere
import numba.core.compiler as compiler
compile_extra, here = compiler.compile_extra, os.environ["MEMPLAN_CACHE_DIR"]
def together(*arguments, **options):
    open(f"{here}/{os.getpid()}.here", "w").close()
    until = time.monotonic() + 100
    while sum(n.endswith(".here") for n in os.listdir(here)) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    return compile_extra(*arguments, **options)
compiler.compile_extra = together
"""


@pytest.mark.nightly
def test_processes_compile_at_once_and_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    environment = {"MEMPLAN_CACHE_DIR": str(tmp_path)}
    with ThreadPoolExecutor(2) as pool:
        hits = [hit for _, hit in pool.map(lambda _: kept(environment, TOGETHER), range(2))]
    assert hits == [0, 0]
    assert kept(environment)[1] == 1
    for suffix, damage in ((".nbi", b""), (".nbc", b"\x80garbage"), (".nbc", b"")):
        (file,) = files(tmp_path, suffix)
        file.write_bytes(damage)
        assert kept(environment)[1] == 0
        assert len(file.read_bytes()) > len(damage), "it was not repaired"
    assert kept(environment)[1] == 1


def test_the_first_compilation_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    for cold in (False, True, True):
        monkeypatch.setattr(warm_up, "is_cold", lambda cold=cold: cold)
        cache.before_compiling[:] = [] if told else [lambda cold=cold: told.append(cold)]
        warm_up.warm_up()
    assert told == [True]


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{"HOME": "/dev/null/home"}, {}])
def test_a_container_without_a_home(environment: dict[str, str]) -> None:
    """As with ``docker run --user``: no home that can be made, and no user of that number."""
    folder, _ = kept(environment, before=NOBODY)
    assert "memplan-run-" in folder
    assert not Path(folder).exists()  # gone with the program


def test_a_cache_that_takes_no_more_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.solver import jit

    saved = []

    def full(*arguments: object) -> None:
        saved.append(arguments)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(jit._CACHING.IndexDataCacheFile, "save", full)

    @jit.compiled
    def one_more(number: int) -> int:
        return number + 1

    assert one_more(1) == 2
    assert saved


def test_nothing_is_kept_where_there_is_no_folder_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> None:
        raise cache.RuntimeUnavailableError("no temporary folder")

    (tmp_path / "file").write_bytes(b"")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(cache, "scratch_folder", nowhere)
    assert cache.code_folder("v") is None
