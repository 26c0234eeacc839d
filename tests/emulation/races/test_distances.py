"""A wait for an event of an earlier step orders accesses to pinned memory; one of this step is a sync."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import gapless
from gapless.rules import match_rule


def steps(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step of training on what it is called with, in `count` optimizer steps."""
    model = torch.nn.Linear(4, 2, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach()

    return train


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize("optimizers", [1, 2])
def test_staging_buffers_with_events_neither_wait_nor_race(buffers: int, optimizers: int) -> None:
    with gapless.emulate() as emulation:
        train = steps(optimizers)
        staging = [torch.empty(8, 4, pin_memory=True) for _ in range(buffers)]
        copied = [torch.cuda.Event() for _ in range(buffers)]
        with gapless.no_waits():
            for step in range(6):
                slot = step % buffers
                copied[slot].synchronize()
                staging[slot].copy_(torch.ones(8, 4))
                batch = staging[slot].to("cuda", non_blocking=True)
                copied[slot].record()
                train(batch)
    assert not emulation.session.races


def waits(read: Callable[..., object], *, behind: bool) -> list[tuple[str, str, str]]:
    """Code, detail and remedy of each wait in a loop that reads losses; `behind`: those of earlier steps."""
    with gapless.emulate() as emulation:
        train = steps(1)
        x = torch.ones(8, 4, device="cuda")
        results = [torch.empty((), pin_memory=True) for _ in range(2)]
        copied = [torch.cuda.Event() for _ in range(2)]
        for step in range(4):
            loss = train(x)
            slot = step % 2
            if behind and step >= 2:
                copied[slot].synchronize()
                read(results[slot])
            results[slot].copy_(loss, non_blocking=True)
            copied[slot].record()
            if not behind:
                copied[slot].synchronize()
                read(results[slot])
    assert not emulation.session.races
    sites = [emulation.session.sites[event.site] for event in emulation.session.events]
    return [
        (match_rule(site).code, site.detail, match_rule(site).remedy(site))
        for site in sites
        if site.mechanism == "explicit"
    ]


def test_a_copy_of_an_earlier_step_is_read_without_a_wait() -> None:
    assert waits(float, behind=True) == []


def test_a_copy_of_this_step_is_waited_for_and_the_wait_is_kept() -> None:
    races = waits(float, behind=False)
    assert len(races) == 4
    assert {(code, detail) for code, detail, _ in races} == {("GAP131", "copy")}
    assert all("keep a wait" in remedy and "query" not in remedy for *_, remedy in races)


def test_the_end_of_a_step_is_no_earlier_step() -> None:
    """The optimizer's step alone lies between an event and its wait: the GPU has next to nothing to do."""
    with gapless.emulate() as emulation:
        model = torch.nn.Linear(4, 2, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        end = torch.cuda.Event(enable_timing=True)
        for _ in range(5):
            model(torch.ones(8, 4, device="cuda")).square().mean().backward()
            end.record()
            optimizer.step()
            optimizer.zero_grad()
            end.synchronize()
    explicit = [
        e for e in emulation.session.events if emulation.session.sites[e.site].mechanism == "explicit"
    ]
    assert len(explicit) >= 4
    assert {emulation.session.sites[event.site].detail for event in explicit} == {""}
