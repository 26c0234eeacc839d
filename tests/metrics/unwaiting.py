"""Every case of the benchmark of waits, for tests of `unwait`, and how two results are compared."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from gapless.metrics.torchmetrics import unwait

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

QUIET = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
"""Marks for modules of tests whose metrics warn of what the tests give them."""


def load_cases() -> ModuleType:
    """The benchmark's module of cases; `benchmarks` is no package."""
    spec = importlib.util.spec_from_file_location(
        "_torchmetrics_cases", BENCHMARKS / "_torchmetrics_cases.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


WAITS = load_cases()
CASES = {case.name: case for case in WAITS.cases()}
SLOW = ("Hausdorff", "AdjustedMutual", "Fidelity", "VisualInf")
"""Names of what takes longest; the benchmark runs these too."""


def assert_same(a: Any, b: Any) -> None:
    """Two results hold the same values."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, Tensor):
        torch.testing.assert_close(b, a, equal_nan=True, check_dtype=False)
    else:
        assert a == b


def assert_same_unwaited(make: Callable[[], Any], *batches: tuple[Any, ...]) -> None:
    """Results are the same with `unwait`; where TorchMetrics fails, so may they."""
    plain, metric = make(), make()
    unwait(metric)
    for inputs in batches:
        plain.update(*inputs)
        metric.update(*inputs)
    try:
        expected = plain.compute()
    except IndexError:  # of a label whose targets are all ignored
        return
    assert_same(expected, metric.compute())


def counted(case: Any, emulation: Any, change: Callable[[Any], Any]) -> tuple[list[int], int, Any]:
    """Waits of three updates and of the result, and the result."""
    torch.manual_seed(0)
    metric = case.build().to("cuda")
    change(metric)
    updates = []
    for step in range(3):
        batch = case.batch(WAITS.Make(step, "cuda"))
        before = emulation.waits
        WAITS.update(metric, batch, step)
        updates.append(emulation.waits - before)
    before = emulation.waits
    value = metric.compute()
    waits = emulation.waits - before
    return updates, waits, WAITS.to_host(value)
