"""No operation makes the host wait, forward or backward; the line it replaces does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.samples import SAMPLES, Inputs, Sample, gradients


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_nothing_waits_and_the_original_does(sample: Sample, emulation: Any) -> None:
    inputs = Inputs(0, "cuda")
    before = emulation.waits
    gradients(inputs, sample.ours(inputs))
    assert emulation.waits == before, emulation.session.sites
    gradients(inputs, sample.theirs(inputs))
    waited = emulation.waits - before
    assert waited == sample.waits or (sample.waits < 0 < waited), waited


READS = {
    f"aten::{name}"
    for name in (
        "_local_scalar_dense", "_unique2", "bincount", "equal", "histc", "is_nonzero", "item",
        "masked_select", "nonzero", "unique_consecutive",
    )
}  # fmt: skip
"""Operators that read a value or a size; some paths of PyTorch run them only where nobody looks on."""


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_nothing_is_read_without_emulation_either(sample: Sample) -> None:
    inputs = Inputs(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = sample.ours(inputs)
        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, torch.Tensor) and part.requires_grad:
                part.sum().backward()
    assert not READS & {event.key for event in profile.key_averages()}
