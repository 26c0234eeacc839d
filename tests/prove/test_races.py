"""An asynchronous rewrite that reads too early is not the same, whatever the numbers were."""

from __future__ import annotations

from typing import Any

import torch

import gapless
from gapless.analyze import report
from gapless.model import Report
from gapless.model.proof import Proof


def read(x: torch.Tensor) -> float:
    return x.sum().item()


def read_too_early(x: torch.Tensor) -> float:
    total = x.sum().to("cpu", non_blocking=True)
    return total.item()


def read_behind(x: torch.Tensor) -> float:
    total = x.sum().to("cpu", non_blocking=True)
    if x.is_cuda:
        torch.cuda.current_stream().synchronize()
    return total.item()


def given_back(x: torch.Tensor) -> torch.Tensor:
    return x.to("cpu", non_blocking=True)


def batches() -> list[tuple[torch.Tensor]]:
    return [(torch.randn(8),)]


def compared(before: Any, after: Any) -> Proof:
    return gapless.compare(before, after, inputs=batches, seconds=0)


def test_a_rewrite_that_reads_too_early_is_not_the_same() -> None:
    proof = compared(read, read_too_early)
    assert not proof
    assert proof.verdict.startswith("Not the same: a race at test_races.py:")
    assert "GAP801 copy-read-too-early" in proof.verdict
    assert any("nothing in between makes the CPU wait" in note for note in proof.notes)
    result: Report = report(proof)
    assert result.verdict.level == "failed"


def test_one_that_waits_is() -> None:
    assert compared(read, read_behind).verdict.startswith("The same")


def test_a_result_that_is_still_on_its_way_is_none() -> None:
    proof = compared(torch.Tensor.cpu, given_back)
    assert not proof
    assert "a race at test_races.py:" in proof.verdict
    assert any(note.startswith("whoever called may read it on the CPU") for note in proof.notes)


class Sender:
    """Sends rows that are on the CPU, through one buffer or one for each."""

    def __init__(self, buffers: int) -> None:
        self.buffers: list[torch.Tensor] = []
        self.number = buffers

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        sent = []
        for at, row in enumerate(rows):
            if not self.number:
                sent.append(row.to("cuda") * 2)
                continue
            if len(self.buffers) < self.number:
                self.buffers.append(torch.empty_like(row, pin_memory=True))
            own = self.buffers[at % self.number]
            own.copy_(row)
            sent.append(own.to("cuda", non_blocking=True) * 2)
        torch.cuda.current_stream().synchronize()
        return torch.stack(sent)


def test_inputs_that_the_code_copies_itself_stay_on_the_cpu() -> None:
    """There a buffer is refilled too early; a copy that waits for the GPU in its place would hide that."""
    rows = torch.arange(12.0).view(3, 4)
    before = Sender(0)
    wrong = gapless.compare(before, Sender(1), inputs=[(rows,)], seconds=0, edge_cases=False)
    assert "GAP802 buffer-refilled-too-early" in wrong.verdict
    right = gapless.compare(before, Sender(3), inputs=[(rows,)], seconds=0, edge_cases=False)
    assert right.verdict.startswith("The same")
    assert right.costs[0].waits == 3 + 1


def test_what_races_before_and_after_is_as_it_was() -> None:
    assert compared(read_too_early, read_too_early).same
