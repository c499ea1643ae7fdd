"""Pages with WebAssembly and WebGPU in headless Chromium, served from a folder; training steps with
onnxruntime-web there and under node."""

import json
import os
import re
import runpy
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import numpy as np

from helpers.models import ROOT
from helpers.pages import blocks, files
from helpers.processes import HANG_SECONDS

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

SOFTWARE = (
    *("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"),
    "--enable-features=Vulkan",
)
"""Switches for WebGPU without a GPU: Chromium has SwiftShader with it."""
# Steps of a file that split.py has split, on the batches in batches.json.
_STEPS = """import * as ort from "ORT";
const open = async (name) => ort.InferenceSession.create(await read(name), OPTIONS);
const arrays = { float: ["float32", Float32Array], int64: ["int64", BigInt64Array] };
ort.env.wasm.numThreads = 1;
const [start, step] = [await open("start.onnx"), await open("step.onnx")];
const state = { ...(await start.run({})) };
for (const { name, shape } of step.inputMetadata) {
  if (!(name in state) && step.outputNames.includes(`${name}_new`)) {
    const size = shape.reduce((product, length) => product * length, 1);
    state[name] = new ort.Tensor("float32", new Float32Array(size), shape);
  }
}
const losses = [];
for (const batch of JSON.parse(new TextDecoder().decode(await read("batches.json")))) {
  const feeds = { ...state };
  for (const [name, { type, dims, data }] of Object.entries(batch)) {
    const values = type === "int64" ? data.map(BigInt) : data;
    feeds[name] = new ort.Tensor(type, values, dims);
  }
  const results = await step.run(feeds);
  for (const name of step.outputNames) {
    if (name.endsWith("_new")) state[name.slice(0, -4)] = results[name];
  }
  losses.push(results.loss.data[0]);
}
"""
IN_NODE = (
    """import { readFileSync } from "node:fs";
const read = (name) => readFileSync(name);
""",
    "console.log(JSON.stringify(losses));",
)
ON_WEBGPU = (
    """const tell = (text) => fetch("/told", { method: "POST", body: text });
addEventListener("error", (event) => tell(`failed: ${event.message}`));
addEventListener("unhandledrejection", (event) => tell(`failed: ${event.reason}`));
const read = async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer());
const adapter = await navigator.gpu?.requestAdapter();
if (!adapter) await tell("no adapter");
let submitted = 0;
const submit = GPUQueue.prototype.submit;
GPUQueue.prototype.submit = function (buffers) {
  submitted += 1;
  return submit.call(this, buffers);
};
""",
    "tell(JSON.stringify({ losses, submitted, architecture: adapter.info.architecture }));",
)
"""How a script reads files, and how it tells the losses: under node, and in a page."""


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


def webgpu_options() -> str:
    """Of a session on WebGPU, as ``docs/browser.md`` has them."""
    (block,) = (each.text for each in blocks("browser.md") if '"webgpu"' in each.text)
    found = re.search(r"InferenceSession\.create\(name, (\{.*?\})\);", block, re.DOTALL)
    return found[1]


def write_steps(
    step: Path,
    batches: Sequence[Mapping[str, Any]],
    where: tuple[str, str],
    module: str,
    options: str = "{}",
) -> None:
    """Put ``steps.mjs`` into the current folder, which trains a step, and all that it reads.

    Args:
        step: the training graph.
        batches: arrays by input, and hyperparameters.
        where: :data:`IN_NODE` or :data:`ON_WEBGPU`.
        module: onnxruntime-web's.
        options: of the session, in JavaScript.
    """
    shutil.copyfile(step, "training.onnx")
    Path("split.py").write_text(files("browser.md")["split.py"], encoding="utf-8")
    runpy.run_path("split.py")
    kinds = {"f": "float32", "i": "int64"}
    said = []
    for batch in batches:
        arrays = {name: np.asarray(value) for name, value in batch.items()}
        said.append(
            {
                name: {"type": kinds[a.dtype.kind], "dims": a.shape, "data": a.ravel().tolist()}
                for name, a in arrays.items()
            }
        )
    Path("batches.json").write_text(json.dumps(said), encoding="utf-8")
    script = _STEPS.replace("ORT", module, 1).replace("OPTIONS", options)
    loaded, _, rest = script.partition("\n")
    Path("steps.mjs").write_text(f"{loaded}\n{where[0]}{rest}{where[1]}\n", encoding="utf-8")


def told_by(
    page: str, folder: Path, seconds: float = HANG_SECONDS, *, switches: Sequence[str] = ()
) -> str:
    """What ``page`` in ``folder`` posts to ``/told`` when Chromium has opened it. ``switches``: of
    Chromium, instead of ``--disable-gpu``."""
    told: Queue[str] = Queue()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Handler, told=told, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    profile = folder.parent / f"{folder.name}-profile"
    browser = subprocess.Popen(
        [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--no-first-run"),
            *(switches or ("--disable-gpu",)),
            *(f"--user-data-dir={profile}", "--remote-debugging-port=0"),
            f"http://127.0.0.1:{server.server_port}/{page}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Chromium has a Vulkan of its own.
        env={**os.environ, "HOME": str(profile), "LD_LIBRARY_PATH": ""},
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
