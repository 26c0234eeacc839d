"""A part of torch's own operator catalogue under emulation; `benchmarks/op_db.py` runs all of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from gapless.torch_internals import VERSION

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"

SILENT = [
    "add",
    "mul",
    "matmul",
    "where",
    "cat",
    "stack",
    "index_select",
    "gather",
    "scatter_add",
    "masked_fill",
    "repeat",
    "sgn",
    "copysign",
    "nextafter",
    "cumsum",
    "sort",
    "topk",
    "median",
    "std_mean",
    "fft.fft",
    "nn.functional.conv2d",
    "nn.functional.cross_entropy",
    "nn.functional.layer_norm",
    "nn.functional.embedding",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.dropout",
    "zeros_like",
    "full_like",
    "new_zeros",
    "split",
    "unbind",
    "bernoulli",
    "multinomial",
]
"""Operators that never wait."""

# What took special care (gradients of orphans, several outputs, results on the host, sparse, out=), and some
# of the ordinary.
NAMES = [
    *SILENT,
    "masked_select",
    "nonzero",
    "unique",
    "repeat_interleave",
    "normal",
    "cumprod",
    "prod",
    "mode",
    "histc",
    "bincount",
    "to_sparse",
    "linalg.inv",
    "linalg.svd",
    "linalg.eigh",
    "linalg.lstsq",
    "cholesky" if VERSION < (2, 14) else "linalg.matrix_sqrth",  # each in its half of the versions
    "view_as_complex",
    "nn.functional.one_hot",
    "nn.functional.ctc_loss",
    "nn.functional.interpolate",
    "empty_like",
    "randint_like",
    "item",
    "equal",
    "allclose",
    "tensor_split",
    "__getitem__",
    "index_put",
]


@pytest.fixture(scope="module")
def catalogue():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("op_db_benchmark", BENCHMARKS / "op_db.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("name", NAMES)
def test_values_devices_and_gradients_are_right(catalogue, name):
    entries = [op for op in op_db if op.name == name]
    assert entries, f"torch has no entry {name}"
    tally = catalogue.run(entries, samples=2)
    assert not tally.misses, "\n".join(tally.misses.values())
    assert sum(tally.calls.values())
    if name in SILENT:
        assert not tally.waiting
