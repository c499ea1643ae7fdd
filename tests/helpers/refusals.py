"""Commands that must be refused, with two lines and no trace in the folder."""

import hashlib
import stat
import subprocess
from pathlib import Path

from helpers.running import Memplan

Done = subprocess.CompletedProcess[str]


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below ``folder`` and what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = stat.S_IFMT(path.lstat().st_mode)
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = f"{kind:o} {hashlib.sha256(content).hexdigest()}"
    return found


def assert_refused(done: Done, code: int, *words: str) -> None:
    """One error, told in at most two lines, and nothing else."""
    lines = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert 1 <= len(lines) <= 2, done.stderr
    assert lines[0].startswith("error: "), done.stderr
    assert all(line.startswith("hint: ") for line in lines[1:]), done.stderr
    for word in words:
        assert word in done.stderr


def assert_harmless(run: Memplan, folder: Path, code: int, *rest: object) -> Done:
    """Run with the arguments behind the words; refused, and no file changed."""
    words, *arguments = rest
    before = snapshot(folder)
    done = run(*arguments)
    assert_refused(done, code, *words)  # type: ignore[misc]
    assert snapshot(folder) == before
    return done
