"""``docs/browser.md`` as it stands, in Chromium, with onnxruntime-web; steps of other networks in
the same WebAssembly, under node; and a rewritten step on WebGPU. Skipped where one of them is
missing."""

import json
import runpy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.browser import (
    CHROMIUM,
    IN_NODE,
    ON_WEBGPU,
    SOFTWARE,
    node_package,
    told_by,
    webgpu_options,
    write_steps,
)
from helpers.networks import FAMILIES, batches, training_step
from helpers.pages import DOCS, follow
from helpers.processes import HANG_SECONDS
from memplan import GradOptions, RewriteOptions, Trainer, grad, parse_size, rewrite

PACKAGE = node_package("onnxruntime-web")
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(PACKAGE is None, reason="needs the npm package onnxruntime-web")
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


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which Chromium is served: outside of it lies its profile."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "node_modules").symlink_to(PACKAGE.parent)
    return folder


def losses(text: str) -> list[float]:
    return [float(line.split()[1]) for line in text.splitlines()]


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_the_loss_falls_in_the_browser_as_it_does_in_python(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    onnx.save(step, "made.onnx")
    data = batches(step, 3)
    module = f"{PACKAGE}/dist/ort.node.min.mjs"
    write_steps(Path("made.onnx"), data, IN_NODE, module)
    assert NODE is not None
    done = subprocess.run([NODE, "steps.mjs"], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]
    trainer = Trainer("training.onnx")
    expected = [trainer.step(batch) for batch in data]
    np.testing.assert_allclose(json.loads(done.stdout), expected, rtol=1e-5)


CONVOLVED = """<ir_version: 10, opset_import: ["": 20]>
net (float[4, 1, 16, 16] x) => (float[4, 3] logits) {
    c0 = Conv <pads = [1, 1, 1, 1]> (x, w0)
    a0 = Gelu (c0)
    c1 = Conv <pads = [1, 1, 1, 1]> (a0, w1)
    a1 = Tanh (c1)
    c2 = Conv <pads = [1, 1, 1, 1]> (a1, w2)
    p = MaxPool <kernel_shape = [4, 4], strides = [4, 4]> (c2)
    f = Flatten (p)
    logits = MatMul (f, head)
}"""


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_a_step_that_is_rewritten_for_webgpu_trains_on_it_in_the_browser(site: Path) -> None:
    model, rng = onnx.parser.parse_model(CONVOLVED), np.random.default_rng(0)
    for name, size in {"w0": (4, 1, 3, 3), "w1": (4, 4, 3, 3), "w2": (4, 4, 3, 3)}.items():
        weights = rng.standard_normal(size).astype(np.float32) / 3
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    head = rng.standard_normal((64, 3)).astype(np.float32) / 8
    model.graph.initializer.append(onnx.numpy_helper.from_array(head, "head"))
    asked = GradOptions(loss="cross-entropy", logits="logits", optimizer="sgd", portable=True)
    grad(model, asked, "whole.onnx")
    options = RewriteOptions(parse_size("85%"), provider="webgpu", effort=5)
    made = rewrite("whole.onnx", options, "less.onnx")
    assert made.plan.recomputed
    batches = [
        {
            "x": rng.standard_normal((4, 1, 16, 16)).astype(np.float32),
            "labels": rng.integers(0, 3, 4),
            "lr": np.float32(0.1),
        }
        for _ in range(4)
    ]
    module = "./node_modules/onnxruntime-web/dist/ort.webgpu.min.mjs"
    write_steps(Path("less.onnx"), batches, ON_WEBGPU, module, webgpu_options())
    Path("steps.html").write_text('<script type="module" src="steps.mjs"></script>')
    told = told_by("steps.html", site, switches=SOFTWARE)
    if told == "no adapter":
        pytest.skip("Chromium has no WebGPU adapter")
    assert told.startswith("{"), told
    found = json.loads(told)
    assert found["submitted"] > 4
    trainer = Trainer("less.onnx", provider="cpu")
    expected = [trainer.step(batch) for batch in batches]
    np.testing.assert_allclose(found["losses"], expected, rtol=1e-5)
    assert expected[3] != expected[0]
