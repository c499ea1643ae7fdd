"""The ``memplan`` command: what does a person type, and what comes back?

Takes command lines. Gives text, JSON or files, and an exit code.
One module per command, imported when it is called; :mod:`.options` and :mod:`.command`
are what commands share.
"""

import sys

if sys.platform == "win32":
    sys.stderr.write("error: memplan runs on Linux and macOS\nhint: WSL runs it on Windows\n")
    raise SystemExit(5)
