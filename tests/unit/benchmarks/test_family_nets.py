"""The networks of the families are those that were published, and full size is what is measured."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.models import load_benchmark

torch: Any = pytest.importorskip("torch")
nets: Any = load_benchmark("nets.catalogue")
vision, text = load_benchmark("nets.vision"), load_benchmark("nets.text")

PUBLISHED = {
    "vit_b16_bs32_224": 86_567_656,
    "convnext_t_bs32_224": 28_589_128,
    "swin_t_bs32_224": 28_288_354,
    "efficientnet_b0_bs32_224": 5_288_548,
    "densenet121_bs32_224": 7_978_856,
    "resnet50_bs32_224": 25_557_032,
    "gpt2_small_bs8_seq1024": 124_439_808,
    "bert_base_bs16_seq512": 109_514_298,
}
"""Parameters of torchvision's vit_b_16, convnext_tiny, swin_t, efficientnet_b0, densenet121 and
resnet50, of Hugging Face's GPT-2 and of BERT base with its head."""


def parameters(name: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in nets.FULL[name].make().parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters_is_the_published_one(name: str) -> None:
    assert parameters(name) == PUBLISHED[name]


def test_llama_has_the_parameters_of_its_sizes() -> None:
    width, vocabulary, inner, key_width = 768, 32_000, 3072, 4 * 64
    block = 2 * width**2 + 2 * width * key_width + 3 * width * inner + 2 * width
    assert parameters("llama_160m_bs8_seq1024") == 2 * vocabulary * width + 12 * block + width


def test_every_family_has_a_full_and_a_small_network() -> None:
    families = [
        {name.split("_")[0].rstrip("0123456789") for name in of} for of in (nets.FULL, nets.TINY)
    ]
    assert families[0] == families[1]
    assert len(families[0]) == len(nets.FULL)


@pytest.mark.parametrize("name", nets.FULL)
def test_batch_is_that_of_the_name(name: str) -> None:
    with torch.device("meta"):
        inputs = nets.FULL[name].batch()[0]
    count, size = name.split("_bs")[1].split("_")
    assert (len(inputs), inputs.shape[-1]) == (int(count), int(size.removeprefix("seq")))


def test_windows_are_squares_of_the_image() -> None:
    image = torch.arange(2 * 4 * 6 * 3).view(2, 4, 6, 3)
    cut = vision.windows(image, 2)
    assert cut.shape == (2 * 2 * 3, 4, 3)
    assert torch.equal(cut[4], image[0, 2:4, 2:4].reshape(4, 3))


def test_shifted_windows_attend_only_to_real_neighbours() -> None:
    size, window, shift = 6, 3, 1
    rolled = torch.roll(torch.arange(size), -shift)
    across = vision.seams(size, window, shift)
    assert across.shape == (4, 1, 9, 9)
    for number in range(4):
        top, left = window * (number // 2), window * (number % 2)
        pixels = [(int(rolled[top + k // 3]), int(rolled[left + k % 3])) for k in range(9)]
        for a, (row_a, column_a) in enumerate(pixels):
            for b, (row_b, column_b) in enumerate(pixels):
                near = abs(row_a - row_b) < window and abs(column_a - column_b) < window
                assert (across[number, 0, a, b] == 0) == near, (number, pixels[a], pixels[b])


def test_biases_are_shared_by_pairs_at_the_same_distance() -> None:
    window = 3
    rows = vision.distances(window).view(window**2, window**2)
    seen: dict[tuple[int, int], int] = {}
    for a in range(window**2):
        for b in range(window**2):
            apart = (a // window - b // window, a % window - b % window)
            assert seen.setdefault(apart, int(rows[a, b])) == int(rows[a, b])
    assert sorted(seen.values()) == list(range((2 * window - 1) ** 2))


def test_rotation_depends_on_the_distance_alone() -> None:
    angle = torch.arange(5.0)[:, None] * torch.tensor([1.0, 0.1])
    cos, sin = (angle.repeat(1, 2).cos(), angle.repeat(1, 2).sin())
    query, key = torch.randn(4).expand(5, 4), torch.randn(4).expand(5, 4)
    scores = text.rotated(query, cos, sin) @ text.rotated(key, cos, sin).T
    for distance in range(-4, 5):
        found = scores.diagonal(distance)
        torch.testing.assert_close(found, found[:1].expand_as(found))
