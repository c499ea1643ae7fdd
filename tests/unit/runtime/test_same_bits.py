"""Bits alone do not make outputs equal."""

import numpy as np

from memplan.runtime.compare_outputs import same_bits


def test_the_same_bits_of_another_type_or_shape_are_not_the_same() -> None:
    x = np.asarray([1.0, -0.0], np.float32)
    assert same_bits(x, x.copy())
    assert not same_bits(x, x.view(np.int32))
    assert not same_bits(x, x.reshape(2, 1))
    assert not same_bits(x, np.abs(x))
