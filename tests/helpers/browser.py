"""Pages with modules and WebAssembly in headless Chromium, served from a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from helpers.models import ROOT
from helpers.processes import HANG_SECONDS

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


def node_package(name: str) -> Path | None:
    """Where npm has installed a package: in ``MEMPLAN_NODE_MODULES``, else in the repository."""
    folder = Path(os.environ.get("MEMPLAN_NODE_MODULES", ROOT / "node_modules")) / name
    return folder if folder.is_dir() else None


class _Handler(SimpleHTTPRequestHandler):
    """Files, and a place where the page leaves what it found."""

    def __init__(self, *arguments: Any, told: Queue[str], **options: Any) -> None:
        self.told = told
        super().__init__(*arguments, **options)

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        self.told.put(self.rfile.read(size).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def told_by(page: str, folder: Path, seconds: float = HANG_SECONDS) -> str:
    """What ``page`` in ``folder`` posts to ``/told`` when Chromium has opened it."""
    told: Queue[str] = Queue()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Handler, told=told, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    profile = folder.parent / f"{folder.name}-profile"
    browser = subprocess.Popen(
        [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *(f"--user-data-dir={profile}", "--remote-debugging-port=0"),
            f"http://127.0.0.1:{server.server_port}/{page}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    try:
        return told.get(timeout=seconds)
    except Empty as error:
        raise AssertionError(f"{page} posted nothing within {seconds} seconds") from error
    finally:
        browser.terminate()
        browser.wait(HANG_SECONDS)
        server.shutdown()
        server.server_close()
