"""No result is rounded as a GPU rounds products of matrices, where a user allows it TF32 or bfloat16.

cuDNN's convolutions are allowed TF32 by default, matrix products by ``set_float32_matmul_precision``. It
keeps three digits, which differences of squares lose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from metrics.samples import SAMPLES, Sample
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "matmul")
EXACT = ("PanopticQuality", "MeanAveragePrecision")
"""They multiply masks: zeros and ones, which every format holds, summed in float32."""


class RoundedProducts(TorchDispatchMode):
    """Collects the operators that a GPU may compute in TF32."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "convolution":
            image, groups = args[0], args[8]
            # One image channel per group: PyTorch's own kernel, which knows no TF32.
            rounded = image.dtype == torch.float32 and not 1 < groups == image.shape[1]
        else:
            rounded = name in PRODUCTS and args[0].dtype == torch.float32
        if rounded:
            self.names.add(name)
        return func(*args, **(kwargs or {}))


def distinct_samples() -> Iterator[Sample]:
    """Yield the samples with the fewest and the most options of each metric."""
    by_name: dict[str, list[Sample]] = {}
    for sample in SAMPLES:
        by_name.setdefault(sample.name, []).append(sample)
    for samples in by_name.values():
        yield from {
            id(sample): sample for sample in (min(samples, key=size), max(samples, key=size))
        }.values()


def size(sample: Sample) -> int:
    return len(sample.options)


def test_metrics_multiply_no_float32_matrices():
    rounded = {}
    for sample in distinct_samples():
        with RoundedProducts() as products:
            metric = sample.make()
            metric.update(*sample.data(0))
            metric.compute()
        if products.names and sample.name not in EXACT:
            rounded[sample.label] = products.names
    assert not rounded


@pytest.mark.parametrize("shape", [(1, 1, 16, 16), (1, 1, 12, 12, 12), (2, 3, 16, 16)])
def test_the_windows_of_images_are_no_rounded_products(shape: tuple[int, ...]):
    from gapless.metrics import functional

    with RoundedProducts() as products:
        functional.structural_similarity_index_measure(torch.rand(shape), torch.rand(shape), sigma=0.5)
    assert not products.names


def test_images_are_convolved_in_parts_that_32_bits_index(monkeypatch: pytest.MonkeyPatch):
    from gapless.metrics import functional
    from gapless.metrics.image import similarity

    images = torch.rand(3, 2, 16, 16), torch.rand(3, 2, 16, 16)
    expected = functional.structural_similarity_index_measure(*images, sigma=0.5)
    sizes: list[int] = []

    def convolve(image: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        sizes.append(image.numel())
        return torch.conv2d(image, *args, **options)

    monkeypatch.setattr(similarity, "_MAX_ELEMENTS", 2000)
    monkeypatch.setattr(similarity.F, "conv2d", convolve)
    with RoundedProducts() as products:
        parts = functional.structural_similarity_index_measure(*images, sigma=0.5)
    assert torch.equal(parts, expected)
    assert not products.names
    assert len(sizes) > 2
    assert max(sizes) <= 2000
