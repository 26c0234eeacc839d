"""What is known beforehand of an operator agrees with its rule for tensors without data."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torch import float16, full, full_like, normal, rand, randint, randn, tensor, zeros
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.emulation.dry.kinds import OperatorKind
from gapless.emulation.dry.shapes import ShapeCache
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions


class Sizes(TorchDispatchMode):
    """Compares how much is made, as it is told from the arguments alone, with what the rule says."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = values
        self.bases: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind, kwargs = OperatorKind(func), kwargs or {}
        if kind.alike or kind.size >= 0:
            self.bases.add(kind.base)
            count = self.values._count_results(kind, args, kwargs)
            new = ShapeCache().of(kind, args, kwargs).numel
            assert count == (args[0].numel() if kind.sets else new), func  # in place, nothing new is made
        return func(*args, **kwargs)


@given(st.lists(st.integers(0, 4), max_size=3))
def test_new_tensors_have_the_stated_size(size: list[int]) -> None:
    with Emulator(EmulatorOptions(dry=True)) as emulator:
        values = emulator.core.values
    with Sizes(values) as sizes:
        drawn = randn(size).random_(5).exponential_()
        rand(size).bernoulli_(0.5).zero_()
        randint(3, size), randint(1, 3, size), normal(0.0, 1.0, size)
        full(size, 2.0).fill_(3).copy_(tensor(1.0))
        zeros(size).new_zeros([2, *size]).uniform_().to(float16)
        full_like(drawn, 1.0).normal_()
    assert {
        "randn",
        "randint",
        "normal",
        "full",
        "zeros",
        "new_zeros",
        "full_like",
        "_to_copy",
    } <= sizes.bases
    assert {"random", "exponential", "bernoulli", "zero", "fill", "copy", "uniform"} <= sizes.bases
