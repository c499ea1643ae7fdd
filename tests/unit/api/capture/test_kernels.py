"""What is captured has no node that ONNX Runtime computes wrongly, and none that nothing runs."""

from typing import Any

import pytest

import memplan
from helpers.graphs import parse
from helpers.reports import text_of
from helpers.torch_steps import captured
from helpers.with_torch import F, nn, torch
from memplan.api.capture.kernel_support import kernel_notes, require_kernels
from memplan.errors import ModelError


class Padded(nn.Module):  # type: ignore[name-defined,misc]
    """Negative numbers, zeros around them, and their maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 4, 3), nn.Linear(36, 3)

    def forward(self, x: Any) -> Any:
        h = F.pad(self.conv(x) - 2, (0, 1, 0, 1))
        return self.last(F.max_pool2d(h, 3, 2).flatten(1))


class Pooled(nn.Module):  # type: ignore[name-defined,misc]
    """Maxima of a rectified convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 4, 3), nn.Linear(36, 3)

    def forward(self, x: Any) -> Any:
        return self.last(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))


def step_of(kind: str) -> memplan.TorchStep:
    torch.manual_seed(0)
    images, labels = torch.randn(2, 1, 8, 8), torch.tensor([0, 2])
    if kind == "padded":
        return memplan.TorchStep(Padded(), F.cross_entropy, (images, labels))
    model: Any = Pooled().to(getattr(torch, kind))
    return memplan.TorchStep(model, F.cross_entropy, (images.to(getattr(torch, kind)), labels))


@pytest.mark.slow
def test_a_float64_convolution_is_captured_and_a_note_says_what_runs_it() -> None:
    from memplan.report.tell.capture import tell_capture

    capture = captured(step_of("float64"))
    (note,) = [text for text in capture.notes if "cannot run" in text]
    assert note.startswith("ONNX Runtime cannot run 2 nodes in double on the CPU (Conv '")
    assert note.endswith(
        "no session opens; sessions on CUDA run them; use float16 or float32 for the CPU"
    )
    text = text_of(tell_capture(capture))
    assert text.startswith(note[:70]), "it is said first"
    assert text.count("no session opens; sessions on CUDA run them; use float16 or float32") == 1


def test_what_no_provider_runs_in_a_narrow_type_is_refused() -> None:
    text = "g (T[2,3] x) => (T[2,3] y) { [n] y = Acosh (x) }"
    header = '<ir_version: 10, opset_import: ["" : 22]> '
    with pytest.raises(ModelError, match=r"no provider .* in bfloat16: Acosh 'n'") as caught:
        require_kernels(parse(header + text.replace("T[", "bfloat16[")))
    assert "autocast" in caught.value.hint
    double = parse(header + text.replace("T[", "double["))
    require_kernels(double)
    assert kernel_notes(double) == (
        "ONNX Runtime cannot run 1 node in double on the CPU (Acosh 'n'): no session opens; "
        "nor can CUDA run all of them; use float16 or float32 for the CPU",
    )
    require_kernels(parse(header + text.replace("T[", "float16[")))


class Mixed(nn.Module):  # type: ignore[name-defined,misc]
    """A convolution, for autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.stem(x).float().mean((2, 3))


def test_a_bfloat16_convolution_is_refused_with_its_module_and_line() -> None:
    batch = torch.randn(2, 1, 8, 8), torch.tensor([0, 1])
    with pytest.raises(ModelError, match=r"bfloat16.* \(module 'stem', .*py:\d+\)") as caught:
        captured(memplan.TorchStep(Mixed(), F.cross_entropy, batch))
    assert caught.value.hint.startswith("use float16 or float32")
