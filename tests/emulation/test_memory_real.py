"""What is recorded without a GPU beside what a GPU recorded of the same program."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gapless.emulation.emulator import Emulator
from gapless.emulation.memory.requests import reports_storage_ends
from gapless.emulation.options import EmulatorOptions
from gapless.memory.snapshot import read
from gapless.model.memory import ALLOC, MemoryRun
from gapless.torch_internals import VERSION

SNAPSHOTS = Path(__file__).resolve().parents[3] / "shared" / "snapshots"
pytestmark = pytest.mark.skipif(
    not reports_storage_ends(), reason=f"torch 2.{VERSION[1]} does not tell when storages end"
)

BATCH, WIDTH = 8, 16
LENGTH, SHORT = 4096, 128
INSIDE = (14, 15, 18, 21)
"""Allocations of the GPU's run that kernels make for themselves: buffers of a sum, copies for a product."""


def softmax(x: torch.Tensor) -> torch.Tensor:
    most = x.max(dim=-1, keepdim=True).values
    powers = torch.exp(x - most)
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bqd,bkd->bqk", q, k)
    scores = scores / WIDTH**0.5
    weights = softmax(scores)
    return torch.einsum("bqk,bkd->bqd", weights, v)


def scaled(size: int) -> int:
    """Return the bytes in the short run of an allocation of the long run."""
    scores, vectors, rows = BATCH * LENGTH * LENGTH * 4, BATCH * LENGTH * WIDTH * 4, BATCH * LENGTH * 4
    if size == scores:
        return size * SHORT**2 // LENGTH**2
    return size * SHORT // LENGTH if size in (vectors, rows, 2 * rows) else size


def events(run: MemoryRun, without: tuple[int, ...] = ()) -> list[tuple[int, int]]:
    """Return actions with their sizes."""
    size = {
        ident: n for action, ident, n in zip(run.action, run.ident, run.size, strict=True) if action == ALLOC
    }
    return [
        (action, size[ident])
        for action, ident in zip(run.action, run.ident, strict=True)
        if ident not in without
    ]


def test_attention_by_hand_asks_for_what_it_asks_for_on_a_gpu() -> None:
    path = SNAPSHOTS / "tiny.pickle"
    if not path.exists():
        pytest.skip("no real snapshots here")
    (real,) = read(str(path))
    with Emulator(EmulatorOptions(memory=True)) as emulator:
        parts = [torch.randn(BATCH, SHORT, WIDTH, device="cuda", requires_grad=True) for _ in range(3)]
        out = attention(*parts)
        loss = out.sum()
        loss.backward()
        (run,) = emulator.session().memory
    expected = [(action, scaled(size)) for action, size in events(real, INSIDE)]
    assert events(run) == expected
