"""Findings by cause: remedies from where values come from, and what one line causes as one finding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import gapless
from gapless.analyze.session_report import report
from gapless.analyze.verdicts.changes import changes
from gapless.emulation.emulator import Emulator
from gapless.emulation.origins.tags import keeps_attributes
from gapless.model import Finding, Session
from gapless.rules.causes import COPY_WHERE_MADE

pytestmark = pytest.mark.skipif(not keeps_attributes(), reason="this torch keeps no attributes of storages")

GPU = "cuda"


def findings(step: Callable[[int], object]) -> tuple[Finding, ...]:
    """Return the findings on eight steps, worst first, without set-up and first steps."""
    return every_step(session_of(step))


def session_of(step: Callable[[int], object]) -> Session:
    with Emulator() as emulator:
        for number in range(8):
            step(number)
            gapless.step()
        return emulator.session()


def every_step(session: Session) -> tuple[Finding, ...]:
    every = report(session).findings
    assert sum(finding.frequency.total for finding in every) == session.waits
    return tuple(finding for finding in every if finding.frequency.when == "every-step")


def test_what_one_copy_causes_is_one_finding_at_its_line() -> None:
    rows, other = torch.rand(6, 2), torch.rand(6)

    def step(number: int) -> None:
        on_gpu, weights = rows.cuda(non_blocking=True), other.cuda(non_blocking=True)
        order = on_gpu[:, 0].argsort()
        index = order.cpu()
        [on_gpu[each] for each in index.split(1)]
        weights[index]

    (finding,) = findings(step)
    assert finding.code == "GAP122"
    assert finding.line is not None
    assert finding.line.code == "index = order.cpu()"
    assert finding.frequency.waits == 8
    assert sorted(spot.waits for spot in finding.spots) == [1, 1, 6]
    assert finding.change == "keep `order` on the GPU"
    assert "causes 7 of the 8 syncs" in finding.remedy


def test_a_copy_that_nothing_follows_from_stays_as_it_is() -> None:
    def step(number: int) -> None:
        torch.rand(3, device=GPU).cpu()

    (finding,) = findings(step)
    assert (finding.code, finding.spots) == ("GAP122", ())
    assert "causes" not in finding.remedy


def test_what_follows_from_two_copies_is_two_findings() -> None:
    def step(number: int) -> None:
        values = torch.rand(4, 2, device=GPU)
        first = values[:, 0].argsort().cpu()
        second = values[:, 1].argsort().cpu()
        values[first]
        values[second]

    assert [finding.frequency.waits for finding in findings(step)] == [2, 2]


def test_what_one_helper_makes_is_one_finding() -> None:
    def mask() -> torch.Tensor:
        return torch.ones(128, 256)

    def step(number: int) -> None:
        mask().to(GPU)
        torch.zeros(128, 256, device=GPU).add_(mask().cuda())

    (finding,) = findings(step)
    assert finding.line is not None
    assert finding.line.code == "return torch.ones(128, 256)"
    assert "`device=`" in finding.remedy
    assert len(finding.spots) == 2


def test_what_is_made_of_numbers_is_copied_once_where_it_is_made() -> None:
    def step(number: int) -> None:
        table = torch.tensor([number, 1.0, 2.0])
        for _ in range(3):
            table.to(GPU)
        torch.zeros(3, device=GPU) * table.cuda()

    session = session_of(step)
    (finding,) = every_step(session)
    assert finding.change == COPY_WHERE_MADE
    saving = float(finding.frequency.waits)
    (change,) = changes([finding], [(0, saving)], 4.0, unit="syncs")
    assert (change.before, change.after) == (4.0, 3.0), "more is not certain to go"


def test_what_is_made_of_numbers_and_copied_at_one_line_keeps_the_rules_advice() -> None:
    def step(number: int) -> None:
        batch = torch.tensor([[number, 1.0, 2.0]])
        batch.to(GPU)

    (finding,) = every_step(session_of(step))
    assert finding.change != COPY_WHERE_MADE
    assert "where it" not in finding.remedy


def test_what_does_not_change_is_copied_once() -> None:
    table, weights = torch.rand(128, 256), torch.rand(3)

    def step(number: int) -> None:
        table.to(GPU)
        torch.zeros(3, device=GPU) * weights.to(GPU)

    changes = {finding.change for finding in findings(step)}
    assert changes == {f"copy `{name}` to the GPU once, before the loop" for name in ("table", "weights")}


def test_a_buffer_refilled_in_place_is_not_pinned_without_events() -> None:
    buffer = torch.empty(128, 256)

    def step(number: int) -> None:
        buffer.copy_(torch.rand(128, 256))
        buffer.to(GPU)

    (finding,) = findings(step)
    assert finding.code == "GAP120"
    assert "event" in finding.remedy


def test_elements_of_a_loop_are_read_before_it() -> None:
    def step(number: int) -> None:
        boxes = torch.rand(4, device=GPU)
        total = 0.0
        for box in boxes:
            total += box.item()
            if box:
                total += 1

    (finding,) = findings(step)
    assert "`boxes.tolist()`" in finding.remedy
    assert finding.line is not None
    assert finding.line.code == "for box in boxes:"
    assert finding.frequency.waits == 8


def test_a_table_on_the_cpu_is_moved_once() -> None:
    table = torch.linspace(0, 1, 10)

    def step(number: int) -> None:
        t = torch.tensor(3, device=GPU)
        table[t]

    finding = next(finding for finding in findings(step) if finding.code == "GAP105")
    assert finding.change == "move `table` to the GPU once"
    assert "table.index_select(0, t.reshape(1)).squeeze(0)" in finding.remedy


def test_what_a_loop_reads_of_the_same_rows_is_one_finding() -> None:
    def step(number: int) -> None:
        ids = torch.arange(12, device=GPU).view(3, 4)
        mask = ids > number
        for k in range(3):
            kept = ids[k][mask[k]]
            kept.tolist()
        torch.ones(3, device=GPU).sum().item()

    first, other = findings(step)
    assert {first.line.code, *(spot.line.code for spot in first.spots)} == {
        "kept = ids[k][mask[k]]",
        "kept.tolist()",
    }
    assert first.frequency.waits == 6
    assert "`ids.cpu()` and `mask.cpu()`" in first.remedy
    assert other.frequency.waits == 1


def test_elements_of_different_tensors_have_remedies_of_their_own() -> None:
    def step(number: int) -> None:
        first, second = torch.arange(3, device=GPU), torch.arange(3, device=GPU)
        for k in range(3):
            first[k].item()
            second[k].item()

    (finding,) = findings(step)
    remedies = {finding.remedy, *(spot.remedy for spot in finding.spots)}
    for name in ("first", "second"):
        assert any(f"`{name}.tolist()`" in remedy for remedy in remedies)


def test_what_one_caller_of_a_helper_can_leave_out_is_said_of_its_call_alone() -> None:
    def to_cpu(values: torch.Tensor) -> torch.Tensor:
        return values.cpu()

    kept = []

    def step(number: int) -> None:
        values = torch.ones(3, device=GPU)
        product = to_cpu(values) @ torch.ones(3)
        kept.append((to_cpu(values), product))

    remedies = [finding.remedy for finding in findings(step)]
    assert len(remedies) == 2
    assert all("not for the rest: " in remedy for remedy in remedies)
    assert sum("make `torch.ones(3)` on the GPU" in remedy for remedy in remedies) == 1


def test_one_remedy_for_all_callers_names_none() -> None:
    def to_cpu(values: torch.Tensor) -> torch.Tensor:
        return values.cpu()

    def step(number: int) -> None:
        print(to_cpu(torch.ones(3, device=GPU)), end="")
        print(to_cpu(torch.ones(4, device=GPU)), end="")

    assert not any("not for the rest" in finding.remedy for finding in findings(step))
