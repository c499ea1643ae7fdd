"""What every command's output is held against."""

import subprocess


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """Stdout of a run that must have worked without a word on stderr."""
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
