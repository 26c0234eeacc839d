"""A process whose tensors are larger than this machine's memory can be forked."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from gapless.emulation.emulator import current
from tests.emulation.dry.memory import CUDA, unknown

BYTES = 1 << 30


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux refuses to copy what is too large")
def test_memory_without_values_is_not_copied(dry):
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    large = [unknown(BYTES // 4) for _ in range(3 * machine // BYTES)]
    written = torch.arange(1 << 20, device=CUDA)
    child = os.fork()
    if not child:
        empty = all(
            tensor.untyped_storage()[n] == 0 for tensor in large[:4] for n in (0, BYTES // 2, BYTES - 1)
        )
        large.clear()
        os._exit(int(not (empty and int(written[-1]) == (1 << 20) - 1)))
    assert os.waitpid(child, 0)[1] == 0
    assert (large[0] + 1).shape == large[0].shape
    assert large[-1].untyped_storage()[BYTES - 1] == 0


def test_memory_with_values_and_shared_memory_is_copied(dry):
    large = unknown(1 << 23)
    values = current().core.values
    assert [chunk[1] for chunk in values.untouched_memory(1 << 20)] == [4 << 23]
    values.fill(large)
    shared = torch.empty(1 << 23)
    values.mark(shared, values.record_of(large))
    shared.share_memory_()
    assert not list(values.untouched_memory(1 << 20))
