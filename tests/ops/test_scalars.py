"""Numbers placed and choices made on the device."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from ops.drawing import gradient, leaf

from gapless import ops

YES, NO = torch.tensor(True), torch.tensor(False)
Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize("value", [0.5, 3, True, 1j, -(2**40)])
def test_a_scalar_is_what_torch_tensor_makes(value: complex) -> None:
    actual, wanted = ops.scalar(value), torch.tensor(value)
    assert torch.equal(actual, wanted)
    assert actual.dtype == wanted.dtype
    assert ops.scalar(2, "meta", torch.float16).dtype == torch.float16
    assert ops.scalar(2, "meta").device.type == "meta"


def test_choose() -> None:
    a, b = leaf(torch.arange(3.0)), leaf(torch.full((3,), torch.nan))
    assert ops.choose(YES, a, b).tolist() == [0, 1, 2]
    assert gradient(ops.choose(YES, a, b), a).tolist() == [1, 2, 3]
    assert gradient(ops.choose(YES, a, b), b).tolist() == [0, 0, 0]
    assert ops.choose(NO, 1.5, 2.5) == 2.5
    assert ops.choose(YES, torch.tensor(1), 0.5).dtype == torch.float32


def test_choose_between_forms() -> None:
    x = torch.ones(2)
    chosen = ops.choose(NO, {"a": x, "b": (x, [1.0])}, {"a": x * 2, "b": (x * 3, [4.0])})
    assert chosen["a"].tolist() == [2, 2]
    assert (chosen["b"][0].tolist(), chosen["b"][1][0].item()) == ([3, 3], 4)
    assert ops.choose(YES, Pair(x, 1), Pair(x, 2)).second == 1
    with pytest.raises(ValueError, match="the same form, but got tuple of 1 and tuple of 2"):
        ops.choose(YES, (x,), (x, x))
    with pytest.raises(ValueError, match="the same form, but got dict of 1 and Tensor"):
        ops.choose(YES, {"a": x}, x)
    with pytest.raises(ValueError, match=r"dtype torch\.bool, but got torch\.float32"):
        ops.choose(x.sum(), x, x)


def test_zero_unless() -> None:
    x = torch.tensor([2.0, 5.0], requires_grad=True)
    assert ops.zero_unless(YES, x.mean()) == 3.5
    empty = ops.zero_unless(NO, x[:0].mean())
    assert empty == 0
    assert gradient(ops.zero_unless(NO, x), x).tolist() == [0, 0]
