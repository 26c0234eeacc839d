"""Results without values look like those with values: shapes, strides, types, aliasing, gradients, bytes.

A slice of torch's own catalogue of operators; ``benchmarks/dry.py`` compares all of it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from gapless.emulation.dry import values
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
NAMES = (
    "__getitem__", "add", "addmm", "cat", "clamp", "cumsum", "einsum", "fft.fft", "gather", "index_add",
    "index_put", "index_select", "linalg.inv", "linalg.qr", "linalg.vector_norm", "masked_fill",
    "matmul", "max", "mean", "nn.functional.batch_norm", "nn.functional.conv2d",
    "nn.functional.cross_entropy", "nn.functional.embedding", "nn.functional.interpolate",
    "nn.functional.layer_norm", "nn.functional.max_pool2d",
    "nn.functional.scaled_dot_product_attention", "repeat", "reshape", "scatter", "softmax", "sort",
    "split", "squeeze", "std", "sum", "t", "topk", "unbind", "var_mean", "where", "zero_",
)  # fmt: skip


@pytest.fixture(scope="module")
def catalogue():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("dry_benchmark", BENCHMARKS / "dry.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_metadata_of_operators_is_what_it_is_with_values(catalogue):
    wanted = [op for op in op_db if op.name in NAMES]
    assert {op.name for op in wanted} == set(NAMES)
    tally = catalogue.compare_metadata(wanted, samples=1)
    assert tally["different"] == {}
    assert len(tally["equal"]) >= len(NAMES)


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("whose", ["neither", "image", "weight", "both"])
def test_images_with_channels_last_keep_them_so_through_a_convolution(side, whose):
    def strides(dry: bool) -> list[tuple[int, ...]]:
        with Emulator(EmulatorOptions(dry=dry)):
            image, weight = torch.randn(4, 64, 8, 8).cuda(), torch.randn(64, 64, side, side).cuda()
            if whose in ("image", "both"):
                image = image.to(memory_format=torch.channels_last)
            if whose in ("weight", "both"):
                weight = weight.to(memory_format=torch.channels_last)
            output = torch.conv2d(image.requires_grad_(), weight.requires_grad_(), padding=side // 2)
            results = [output, *torch.autograd.grad(output.sum(), [image, weight])]
        # Dimensions of one element lie anywhere.
        return [
            tuple(by for size, by in zip(result.shape, result.stride(), strict=True) if size > 1)
            for result in results
        ]

    assert strides(dry=True) == strides(dry=False)


def test_a_difference_is_seen(catalogue, monkeypatch):
    real = values.filling.untouched_tensor
    turned = lambda size, stride, dtype: real(size, stride, torch.float64)  # noqa: E731
    monkeypatch.setattr(values.filling, "untouched_tensor", turned)
    tally = catalogue.compare_metadata([op for op in op_db if op.name == "matmul"], samples=1)
    assert list(tally["different"]) == ["matmul"]
