"""What goes to stdout and stderr goes out whole, or fails."""

import os
import threading

from memplan_cli.standard_files import whole_stream

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
