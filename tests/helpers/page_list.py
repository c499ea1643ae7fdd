"""Pages whose examples are run: what each takes as given, and what is left out, with the reason."""

from helpers.pages import Page

GPT = "memplan rewrite sample_models/gpt_dropout.onnx --budget 60%"
GUIDE_STEP = (
    "python forward.py",
    "memplan grad forward.onnx -o step.onnx --loss cross-entropy --logits logits --optimizer adamw",
)
SOON = ("--effort", "6")
TWO_LAYERS = {"depth=4": "depth=2"}
DEEPER = """from pathlib import Path

text = Path("forward.py").read_text()
Path("forward.py").write_text(text.replace("* 6", "* 7"))
"""
DATA = """import numpy as np

rng = np.random.default_rng(1)
labels = rng.integers(0, 10, 20_480)
x = rng.standard_normal((20_480, 64), np.float32) + 2 * np.eye(10, 64, dtype=np.float32)[labels]
np.savez("train.npz", x=x, labels=labels)
"""
LSTM = """import memplan
import onnx
from onnx import TensorProto, helper, numpy_helper
import numpy as np

rng = np.random.default_rng(0)
weights = {"W": (1, 2048, 512), "R": (1, 2048, 512), "B": (1, 4096)}
inputs = {"x": (200, 16, 512), "target": (200, 1, 16, 512)}
nodes = [
    helper.make_node("LSTM", ["x", "W", "R", "B"], ["y"], "rnn", hidden_size=512),
    helper.make_node("Mul", ["y", "target"], ["product"], "product"),
    helper.make_node("ReduceSum", ["product"], ["loss"], "sum", keepdims=0),
]
graph = helper.make_graph(
    nodes,
    "lstm",
    [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
    [helper.make_tensor_value_info("loss", TensorProto.FLOAT, ())],
    [numpy_helper.from_array(rng.normal(0, 0.04, s).astype("f"), n) for n, s in weights.items()],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
onnx.save(memplan.gradients(model, "loss", list(weights)), "lstm_step.onnx")
"""

PAGES = (
    Page(
        "../README.md",
        quick={"memplan rewrite *": SOON, "memplan validate *": ("--runs", "1")},
        left_out={"python3 -m venv * .venv/bin/pytest *": "runs the tests"},
    ),
    Page(
        "guide.md",
        quick={"memplan rewrite *": SOON, "memplan validate *": ("--runs", "1")},
    ),
    Page(
        "pytorch.md",
        quick={"memplan rewrite *": SOON, "memplan validate *": ("--runs", "1")},
        left_out={
            "memplan capture finetune.py*": "transformers is none of the tests' packages",
            "import torch": "tests/ort/test_stay_in_pytorch.py",
            "import memplan": "tests/ort/test_stay_in_pytorch.py",
        },
    ),
    Page(
        "commands/analyze.md",
        given={"lstm.py": LSTM},
        before={"memplan analyze lstm*": ["python lstm.py"]},
    ),
    Page("commands/capture.md", shorter=TWO_LAYERS),
    Page(
        "commands/check.md",
        others=["guide.md"],
        given={"deeper.py": DEEPER},
        before={
            "*": [*GUIDE_STEP],
            "memplan check": ["python deeper.py", *GUIDE_STEP],
        },
        fails={"memplan check": 1},
        left_out={
            "memplan check --base *": "needs a repository; tests/e2e has one",
            "memplan check --update train.py*": "needs PyTorch; tests/ort/test_python_steps.py",
            '*models."step.onnx"*': "the lock, which other tests read and write",
        },
    ),
    Page(
        "commands/diff.md",
        before={"*": [f"{GPT} --effort 6 -o fits.onnx"]},
    ),
    Page("commands/grad.md", others=["guide.md"], before={"*": ["python forward.py"]}),
    Page(
        "commands/profile.md",
        left_out={"memplan *": "which operators take the most time is of the machine and its load"},
    ),
    Page(
        "commands/rewrite.md",
        given={"lstm.py": LSTM},
        before={"memplan rewrite lstm*": ["python lstm.py"]},
        quick={
            f"{GPT} -o fits.onnx": (),  # packs masks, which six rounds do not find
            "memplan rewrite * --plan *": (),
            "memplan rewrite *": SOON,
        },
    ),
    Page("commands/strategies.md"),
    Page("commands/sweep.md", quick={"memplan sweep *": ("--effort", "4")}),
    Page(
        "commands/validate.md",
        quick={"memplan validate *": ("--runs", "1")},
        before={"*": [f"{GPT} -o fits.onnx"]},
    ),
    Page(
        "commands/plan-as.md",
        others=["pytorch.md"],
        before={"*": ["memplan capture gpt.py:make_step -o step.onnx"]},
        quick={"memplan rewrite *": SOON},
    ),
    Page(
        "commands/run.md",
        others=["guide.md"],
        given={"data.py": DATA},
        before={
            "*": [
                *GUIDE_STEP,
                "memplan rewrite step.onnx --dim N=2048 --budget 60% -o fits.onnx",
                "python data.py",
            ]
        },
        quick={
            "memplan run * --resume": ("--steps", "40"),
            "memplan run *": ("--steps", "20"),
            "memplan rewrite *": SOON,
        },
    ),
)

ALWAYS = (
    "../README.md",
    "commands/capture.md",
    "commands/check.md",
    "commands/grad.md",
    "commands/strategies.md",
)
"""Pages that every run of the tests follows; the rest takes minutes, and ``MEMPLAN_THOROUGH=1``."""

ELSEWHERE = {
    "any-gpu.md": "tests/ort/test_webgpu.py",
    "browser.md": "tests/e2e/test_browser_page.py",
    "ci.md": "tests/unit/docs/test_action.py and tests/ort/test_pages.py",
    "commands/device.md": "what it prints is of the machine",
    "commands/lower.md": "tests/ort/test_pages.py",
    "gradients.md": "tests/ort/test_pages.py",
    "plan-for-absent-gpu.md": "tests/ort/test_pages.py",
    "reference.md": "tests/ort/test_pages.py and tests/unit/cli/test_command_line.py",
    "training.md": "tests/unit/docs/test_training_page.py",
    "../sample_models/README.md": "tests/ort/test_samples.py",
    "../CONTRIBUTING.md": "runs the tests",
    "../tools/README.md": "takes hours, and tests/unit/tools has parts",
}
"""Other pages with commands or code: the test that runs them and names the page, or why none."""
