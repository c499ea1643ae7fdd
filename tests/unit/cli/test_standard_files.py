"""What goes to stdout and stderr goes out whole, or fails."""

import io
import os
import sys
import threading

import pytest

from memplan_cli.standard_files import whole_stream, write_standard_files_whole

LARGE = "\n".join(f"line {k}" for k in range(60_000))


def test_a_pipe_that_does_not_block_gets_all_of_it() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    found: list[bytes] = []

    def read() -> None:
        while data := os.read(reader, 1 << 16):
            found.append(data)

    thread = threading.Thread(target=read)
    stream = whole_stream(writer)
    thread.start()
    stream.write(LARGE)
    stream.close()  # which leaves the file open
    os.write(writer, b"!")
    os.close(writer)
    thread.join()
    os.close(reader)
    assert b"".join(found).decode() == LARGE + "!"


def test_both_do_in_their_own_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"stdout": "latin-1", "stderr": "utf-8"}
    for name, encoding in wanted.items():
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding))
    write_standard_files_whole()
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}
    assert {name: stream.encoding for name, stream in streams.items()} == wanted
    assert [stream.fileno() for stream in streams.values()] == [1, 2]
    monkeypatch.setattr(sys, "stderr", None)
    write_standard_files_whole()
    assert sys.stderr is None
