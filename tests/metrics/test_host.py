"""What NumPy does in torch's place on the CPU has the same results."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gapless
import gapless.metrics as metrics
from gapless.metrics.host import argmax, is_readable_on_host

CLASSES = 3
value = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-40, math.inf, -math.inf, math.nan])
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 70).flatmap(
        lambda width: st.lists(st.lists(value, min_size=width, max_size=width), min_size=1, max_size=9)
    ),
    st.sampled_from(FLOATS),
)
def test_the_first_of_the_largest(rows: list[list[float]], dtype: torch.dtype):
    scores = torch.tensor(rows, dtype=dtype)
    assert torch.equal(argmax(scores, 1), scores.argmax(1))


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 31, 64, 1000, 1003])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8])
def test_any_layout(width: int, dtype: torch.dtype):
    random = torch.Generator().manual_seed(width)
    whole = torch.randint(0, 50, (6, width, 4), generator=random).to(dtype)
    layouts = (whole[..., 0], whole[:, :, 0].contiguous(), whole[::2, :, 1], whole, whole.movedim(1, -1)[0])
    for scores in layouts:
        assert torch.equal(argmax(scores, 1), scores.argmax(1))
        assert argmax(scores, 1).dtype == torch.int64
    assert torch.equal(argmax(whole.movedim(1, -1), 2), whole.movedim(1, -1).argmax(2))


def test_nothing_and_no_classes():
    assert argmax(torch.zeros(0, 3), 1).shape == (0,)
    with pytest.raises(IndexError):
        argmax(torch.zeros(3, 0), 1)


def test_subclasses_and_devices_are_left_to_torch():
    class Marked(Tensor):
        pass

    assert is_readable_on_host(torch.zeros(2))
    assert not is_readable_on_host(torch.zeros(2).as_subclass(Marked))
    assert not is_readable_on_host(torch.zeros(2, device="meta"))
    with gapless.emulate():
        assert not is_readable_on_host(torch.zeros(2, device="cuda"))


def batches(kind: str, ignore: int | None, labels: list[int], rows: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(rows)
    target = torch.tensor(labels)[torch.randint(0, len(labels), (rows,), generator=random)]
    if kind == "labels":
        preds = torch.tensor(labels)[torch.randint(0, len(labels), (rows,), generator=random)]
    else:
        preds = torch.randn(rows, CLASSES, generator=random)
    if ignore is not None:
        target = target.masked_fill(torch.rand(rows, generator=random) < 0.3, ignore)
    return preds, target


def outcome(metric: Any, batch: tuple[Tensor, Tensor], device: str) -> tuple[list[float], int]:
    """The result, and how often bad values were told."""
    errors = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            try:
                metric.update(*(labels.to(device) for labels in batch))
                metric.check()
            except RuntimeError:
                errors += 1
        return metric.compute().tolist(), errors


@pytest.mark.parametrize("kind", ["scores", "labels"])
@pytest.mark.parametrize("ignore", [None, 1, -1, 255])
def test_counts_are_those_of_a_device(kind: str, ignore: int | None):
    several = ([0, 1, 2], [0, 1, 2, 3], [-2, 0, 1], [0, 2**62, -(2**62)])
    cases = [batches(kind, ignore, labels, rows) for labels in several for rows in (1, 20, 400)]

    def make() -> metrics.Metric:
        return metrics.MulticlassStatScores(CLASSES, average="none", ignore_index=ignore)

    on_host = [outcome(make(), data, "cpu") for data in cases]
    with gapless.emulate():
        on_device = [outcome(make().to("cuda"), data, "cuda") for data in cases]
    assert on_device == on_host
    assert {errors for _, errors in on_host} == {0, 2}


@pytest.mark.parametrize("top_k", [1, 2])
def test_counts_are_those_of_a_compiled_update(top_k: int):
    data = batches("scores", None, [0, 1, 2], 30)
    compiled, two = (metrics.MulticlassRecall(CLASSES, average="none", top_k=top_k) for _ in range(2))
    torch._dynamo.reset()
    torch.compile(compiled.update, fullgraph=True, backend="eager")(*data)
    two.update(*data)
    assert torch.equal(compiled.compute(), two.compute())
    compiled.update(*data)  # The same storage serves both ways.
    two.update(*data)
    assert torch.equal(compiled.compute(), two.compute())


def test_a_batch_by_itself_and_a_copy_count_apart():
    data = batches("scores", None, [0, 1, 2], 30)
    metric, expected = metrics.MulticlassRecall(CLASSES), metrics.MulticlassRecall(CLASSES)
    metric.update(*data)
    twin = metric.clone()
    twin.update(data[0].flip(0), data[1])
    expected.update(*data)
    assert metric(*data) == expected.compute()
    assert metric.compute() == expected.compute()
    metric.reset()
    metric.update(*data)
    assert metric.compute() == expected.compute() != twin.compute()
