"""Functions of PyTorch at their ties and kinks, all in one step."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from helpers.with_torch import F, Tensor, nn, torch

KINKED = [[-4.0, -3.0, -1.0, -0.5, -0.0], [0.0, 0.5, 1.0, 3.0, 4.0], [6.0, -6.0, 2.0, 5.0, 7.0]]
TIED = [[1.0, 3.0, 3.0, 1.0, 2.0], [2.0, 2.0, 2.0, 2.0, 2.0], [-0.0, 0.0, 5.0, -5.0, 5.0]]
LEFT, RIGHT = (
    [[1.0, 2.0, 3.0, -0.0], [4.0, 4.0, -5.0, 0.0]],
    [[1.0, 1.0, 3.0, 0.0], [4.0, 5.0, -5.0, -0.0]],
)
IMAGE = [[[[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [2.0, 2.0, 3.0, 3.0], [2.0, 2.0, 3.0, 2.0]]]]
APART = [[0.0, 1.0, 0.0], [2.0, 1.0, 2.0]]
ZEROS = [[0.0, -0.0, 0.0], [0.0, 3.0, -4.0]]
SATURATED = [[-1000.0, -88.0, -40.0], [40.0, 88.0, 1000.0]]
ROWS = [[1000.0, -1000.0, 0.0], [0.0, 0.0, 0.0], [-1e4, -1e4, 1e4], [88.0, 89.0, 88.0]]
MASKED = [[0.0, -math.inf, 0.0], [-math.inf, 0.0, -math.inf]]
LOW, HIGH = [-1.0] * 5, [1.0] * 5


def _toward_zero(loss: Callable[..., Tensor], **settings: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: loss(x, torch.zeros(3, 5), reduction="none", **settings)


CASES: dict[str, tuple[Callable[..., Tensor], list[Any]]] = {
    "clamp": (lambda x: x.clamp(-1.0, 1.0), [KINKED]),
    "clamp_min": (lambda x: x.clamp(min=0.0), [KINKED]),
    "clamp_max": (lambda x: x.clamp(max=1.0), [KINKED]),
    "clamp_one_point": (lambda x: x.clamp(1.0, 1.0), [KINKED]),
    "clamp_crossed": (lambda x: x.clamp(1.0, -1.0), [KINKED]),
    "clamp_by_constants": (
        lambda x: torch.clamp(x, torch.full((5,), -1.0), torch.ones(5)),
        [KINKED],
    ),
    "clamp_by_tensors": (torch.clamp, [KINKED, LOW, HIGH]),
    "clamp_by_tensors_that_cross": (torch.clamp, [KINKED, HIGH, LOW]),
    "clamp_by_a_lower_tensor": (lambda x, low: torch.clamp(x, min=low), [KINKED, LOW]),
    "clamp_by_an_upper_tensor": (lambda x, high: torch.clamp(x, max=high), [KINKED, HIGH]),
    "relu": (torch.relu, [KINKED]),
    "relu6": (F.relu6, [KINKED]),
    "hardtanh": (lambda x: F.hardtanh(x, -3.0, 3.0), [KINKED]),
    "hardswish": (F.hardswish, [KINKED]),
    "hardsigmoid": (F.hardsigmoid, [KINKED]),
    "leaky_relu": (F.leaky_relu, [KINKED]),
    "elu": (lambda x: F.elu(x, 2.0), [KINKED]),
    "selu": (F.selu, [KINKED]),
    "celu": (lambda x: F.celu(x, 2.0), [KINKED]),
    "abs": (torch.abs, [KINKED]),
    "sign": (lambda x: torch.sign(x) * x, [KINKED]),
    "prelu": (F.prelu, [KINKED, [0.25]]),
    "threshold": (lambda x: F.threshold(x, 0.5, 2.0), [KINKED]),
    "softshrink": (lambda x: F.softshrink(x, 0.5), [KINKED]),
    "hardshrink": (lambda x: F.hardshrink(x, 0.5), [KINKED]),
    "where": (lambda x: torch.where(x > 0, x * 2, x * 3), [KINKED]),
    "remainder": (lambda x: torch.remainder(x, 2.0), [KINKED]),
    "floor_division": (lambda x: torch.div(x, 2.0, rounding_mode="floor") * x, [KINKED]),
    "round": (lambda x: torch.round(x) * x, [KINKED]),
    "maximum": (torch.maximum, [LEFT, RIGHT]),
    "minimum": (torch.minimum, [LEFT, RIGHT]),
    "maximum_with_a_constant": (lambda x: torch.maximum(x, torch.zeros(())), [KINKED]),
    "max_of_two": (torch.max, [LEFT, RIGHT]),
    "fmax": (torch.fmax, [LEFT, RIGHT]),
    "fmin": (torch.fmin, [LEFT, RIGHT]),
    "max_of_all": (torch.max, [TIED]),
    "min_of_all": (torch.min, [TIED]),
    "amax": (lambda x: x.amax(1), [TIED]),
    "amin": (lambda x: x.amin((0, 1)), [TIED]),
    "max_along": (lambda x: x.max(1).values, [TIED]),
    "min_along": (lambda x: x.min(0, keepdim=True)[0], [TIED]),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), [TIED]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2, 1), [IMAGE]),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), [IMAGE]),
    "adaptive_max_pool1d_of_windows_that_overlap": (
        lambda x: F.adaptive_max_pool1d(x, 3),
        [TIED],
    ),
    "adaptive_max_pool2d_to_one": (lambda x: F.adaptive_max_pool2d(x, 1), [IMAGE]),
    "sort": (lambda x: x.sort(1).values, [TIED]),
    "stable_sort": (lambda x: x.sort(dim=1, stable=True, descending=True).values, [TIED]),
    "norm": (lambda x: x.norm(dim=1), [ZEROS]),
    "norm_of_order_1": (lambda x: x.norm(1, dim=1), [ZEROS]),
    "norm_of_order_3": (lambda x: torch.linalg.vector_norm(x, 3, 1), [ZEROS]),
    "largest_entry": (lambda x: torch.linalg.vector_norm(x, float("inf"), 1), [TIED]),
    "distances_of_both_by_the_largest": (
        lambda a, b: torch.cdist(a, b, p=math.inf),
        [TIED, KINKED],
    ),
    "normalize": (lambda x: F.normalize(x, dim=1), [ZEROS]),
    "distance": (F.pairwise_distance, [ZEROS, ZEROS]),
    "huber_loss": (_toward_zero(F.huber_loss), [KINKED]),
    "smooth_l1_loss": (_toward_zero(F.smooth_l1_loss, beta=3.0), [KINKED]),
    "l1_loss": (_toward_zero(F.l1_loss), [KINKED]),
    "margin_ranking_loss": (
        lambda a, b: F.margin_ranking_loss(a, b, torch.ones(2, 4), reduction="none"),
        [LEFT, RIGHT],
    ),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, torch.tensor([1, 0])), [APART]),
    "multilabel_margin_loss": (
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[1, -1, 0], [0, 2, -1]])),
        [APART],
    ),
    "cosine_embedding_loss": (
        lambda a, b: F.cosine_embedding_loss(a, b, torch.tensor([1.0, -1.0])),
        [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]],
    ),
    "atan2": (torch.atan2, [[1.0, -2.0, 0.0, 3.0, -3.0], [0.0, 0.0, 2.0, -1.0, -4.0]]),
    "sinc": (torch.sinc, [[0.0, 1.0, 0.5]]),
    "xlogy": (torch.xlogy, [[0.0, 0.0, 1.0], [1.0, 0.5, 2.0]]),
    "power": (torch.pow, [[0.0, 2.0], [2.0, 2.0]]),
    # What saturates, and what has nothing to be divided by.
    "sigmoid": (torch.sigmoid, [SATURATED]),
    "tanh": (torch.tanh, [SATURATED]),
    "softplus": (F.softplus, [SATURATED]),
    "gelu": (F.gelu, [SATURATED]),
    "mish": (F.mish, [SATURATED]),
    "softsign": (F.softsign, [SATURATED]),
    "softmax": (lambda x: x.softmax(1), [ROWS]),
    "log_softmax": (lambda x: x.log_softmax(1), [ROWS]),
    "softmax_of_masked_rows": (lambda x: (x + torch.tensor(MASKED)).softmax(1), [APART]),
    "logsumexp": (lambda x: x.logsumexp(1), [SATURATED]),
    "layer_norm_of_equals": (lambda x: F.layer_norm(x, (5,), eps=1e-2), [TIED]),
    "cross_entropy_of_ignored_labels": (
        lambda x: F.cross_entropy(x, torch.tensor([2, -100, 0, 1]), torch.tensor([0.5, 1.0, 2.0])),
        [ROWS],
    ),
}
"""Of every function what it is, and inputs: at kinks, equal to one another, or zeros."""


class AtTies(nn.Module):
    """A weighted sum of what all the functions give, each of parameters of its own."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = list(names)
        held = {
            f"{name}_{k}": nn.Parameter(torch.tensor(values))
            for name in self.names
            for k, values in enumerate(CASES[name][1])
        }
        self.given = nn.ParameterDict(held)

    def forward(self, one: Tensor) -> Tensor:
        """The sum; ``one`` is 1, so that no input is a parameter itself."""
        total = one * 0
        for name in self.names:
            function, values = CASES[name]
            y = function(*(self.given[f"{name}_{k}"] * one for k in range(len(values))))
            weights = torch.arange(1, 1 + y.numel(), dtype=y.dtype).reshape(y.shape) / 4
            total = total + (y * weights).sum()
        return total
