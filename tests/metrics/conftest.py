"""What the tests of this room share."""

from __future__ import annotations

import pytest
import torch

from gapless.metrics import reading, statistic


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors are slower on several threads, and results may differ in the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _nothing_owed():
    """What one test's metrics met and nobody asked about is told by no call of another test."""
    yield
    reading.PENDING.clear()
    statistic.GONE.clear()
