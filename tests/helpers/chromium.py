"""Pages in a headless Chromium, which is spoken to over a pipe: no port, no network, no driver.

The protocol is that of Chrome's DevTools; messages are JSON, each ended by a zero byte.
"""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from helpers.processes import HANG_SECONDS

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
_SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--force-color-profile=srgb", "--font-render-hinting=none"),
    "--remote-debugging-pipe",
)


class Chromium:
    """The browser, with one page at a time."""

    def __enter__(self) -> Self:
        self._folder = tempfile.mkdtemp(prefix="memplan-chromium-")
        (orders, self._out), (self._in, answers) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (orders, answers)]
        command = [PROGRAM, *_SWITCHES, f"--user-data-dir={self._folder}"]
        self._process = subprocess.Popen(
            ["bash", "-c", 'exec "${@:3}" 3<&"$1" 4>&"$2"', "bash", *map(str, ends), *command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._folder},
        )
        for fd in (orders, answers, *ends):
            os.close(fd)
        self._numbers, self._read, self._session = itertools.count(1), b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(
        self,
        page: Path,
        width: int = 1280,
        height: int = 900,
        *,
        dark: bool = False,
        scale: float = 1,
    ) -> None:
        """Shows a file in a window of that size in CSS pixels, of which a picture has ``scale``."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale}
        self.call("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, still])
        self.call("Page.navigate", url=page.resolve().as_uri())
        self._until(lambda told: told.get("method") == "Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; what it promises is waited for."""
        done = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key, down and up."""
        told = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        written = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **told, **written)
        self.call("Input.dispatchKeyEvent", type="keyUp", **told)

    def picture(self, width: int, height: int) -> bytes:
        """The upper left part of the page, as PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        done = self.call("Page.captureScreenshot", format="png", clip=clip)
        return base64.b64decode(done["data"])

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """What the browser answers to an order."""
        number = next(self._numbers)
        order: dict[str, object] = {"id": number, "method": method, "params": params}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        told = self._until(lambda told: told.get("id") == number)
        assert "error" not in told, told
        result: dict[str, Any] = told["result"]
        return result

    def _until(self, wanted: Any) -> dict[str, Any]:
        end = time.monotonic() + HANG_SECONDS
        while True:
            while b"\0" in self._read:
                first, _, self._read = self._read.partition(b"\0")
                told: dict[str, Any] = json.loads(first)
                if wanted(told):
                    return told
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "Chromium ended"
            self._read += part
