"""``docs/browser.md`` as it stands, in Chromium, with onnxruntime-web; and steps of other networks
in the same WebAssembly, under node. Skipped where one of them is missing."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.browser import CHROMIUM, node_package, told_by
from helpers.networks import FAMILIES, batches, training_step
from helpers.pages import DOCS, files, follow
from helpers.processes import HANG_SECONDS
from memplan import Trainer

PACKAGE = node_package("onnxruntime-web")
NODE = shutil.which("node")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(PACKAGE is None, reason="needs the npm package onnxruntime-web"),
]
# Added to the page: press its button, and tell what it shows.
PRESS = """<script type="module">
const tell = (text) => fetch("/told", { method: "POST", body: text });
addEventListener("error", (event) => tell(`failed: ${event.message}`));
addEventListener("unhandledrejection", (event) => tell(`failed: ${event.reason}`));
const button = document.querySelector("button");
const waiting = setInterval(async () => {
  if (!button.onclick) return;
  clearInterval(waiting);
  await button.onclick();
  tell(document.querySelector("pre").textContent);
}, 20);
</script>"""
# Three steps under node, of a file that split.py has split.
STEPS = """import * as ort from "PACKAGE/dist/ort.node.min.mjs";
import { readFileSync } from "node:fs";
const open = (name) => ort.InferenceSession.create(readFileSync(name));
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
for (const batch of JSON.parse(readFileSync("batches.json"))) {
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
console.log(JSON.stringify(losses));
"""


def losses(text: str) -> list[float]:
    return [float(line.split()[1]) for line in text.splitlines()]


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_the_loss_falls_in_the_browser_as_it_does_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.chdir(site)
    assert PACKAGE is not None
    (site / "node_modules").symlink_to(PACKAGE.parent)
    follow("browser.md", capsys)
    capsys.readouterr()
    runpy.run_path("reference.py", run_name="__main__")
    expected = losses(capsys.readouterr().out)
    page = Path("index.html").read_text(encoding="utf-8")
    Path("pressed.html").write_text(page + PRESS, encoding="utf-8")
    told = told_by("pressed.html", site)
    assert not told.startswith("failed"), told
    found = losses(told)
    assert len(found) == len(expected) == 20
    assert found[-1] < 0.3 * found[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    shown = (DOCS / "browser.md").read_text(encoding="utf-8")
    for number in (1, 5, 10, 15, 20):
        row = next(line for line in shown.splitlines() if line.startswith(f"| {number} |"))
        in_browser, in_python = map(float, row.split("|")[2:4])
        np.testing.assert_allclose([in_browser, in_python], expected[number - 1], rtol=0.05)


@pytest.mark.skipif(NODE is None, reason="needs node")
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_of_other_networks_train_in_webassembly(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = training_step(family)
    onnx.save(step, "training.onnx")
    Path("split.py").write_text(files("browser.md")["split.py"], encoding="utf-8")
    runpy.run_path("split.py")
    data = batches(step, 3)
    kinds = {np.dtype(np.float32): "float32", np.dtype(np.int64): "int64"}
    said = [
        {
            name: {"type": kinds[a.dtype], "dims": a.shape, "data": a.ravel().tolist()}
            for name, a in batch.items()
        }
        for batch in data
    ]
    Path("batches.json").write_text(json.dumps(said), encoding="utf-8")
    Path("steps.mjs").write_text(STEPS.replace("PACKAGE", str(PACKAGE)), encoding="utf-8")
    assert NODE is not None
    done = subprocess.run([NODE, "steps.mjs"], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]
    trainer = Trainer("training.onnx")
    expected = [trainer.step(batch) for batch in data]
    np.testing.assert_allclose(json.loads(done.stdout), expected, rtol=1e-5)
