"""Where a thread waits for the GPU, the others go first; a thread that is alone does not hold still."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

import gapless
from gapless.capture import signals
from gapless.emulation.races import thread_order


def waits() -> None:
    """One place at which the CPU waits, with something on its way."""
    torch.ones(8, device="cuda").to("cpu", non_blocking=True)
    torch.cuda.synchronize()


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How long it was held still, each time; threads that were there before, pytest's own, do not count."""
    durations: list[float] = []
    real, before = threading.enumerate, {*threading.enumerate()} - {threading.current_thread()}
    monkeypatch.setattr(threading, "enumerate", lambda: [thread for thread in real() if thread not in before])
    wait = thread_order.ThreadHolder._wait

    def timed(self: thread_order.ThreadHolder, end: float) -> None:
        began = time.monotonic()
        wait(self, end)
        durations.append(time.monotonic() - began)

    monkeypatch.setattr(thread_order.ThreadHolder, "_wait", timed)
    with gapless.emulate():
        torch.cuda.Stream()
        yield durations


@pytest.fixture
def another() -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


def test_a_thread_alone_never_holds_still(moments: list[float]) -> None:
    for _ in range(3):
        waits()
    assert moments == []


def test_the_thread_of_a_check_does_nothing_on_the_gpu(moments: list[float]) -> None:
    with signals.terminable(lambda: None):
        assert threading.active_count() > 1
        waits()
    assert moments == []


def test_threads_of_the_loader_do_nothing_on_the_gpu(moments: list[float]) -> None:
    data = torch.utils.data.TensorDataset(torch.ones(8, 2))
    for (batch,) in torch.utils.data.DataLoader(data, 2, num_workers=1, pin_memory=True):
        batch.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
    assert moments == []


def test_twice_at_each_place(moments: list[float], another: None) -> None:
    for _ in range(5):
        waits()
    assert len(moments) == 2
    waits()
    assert len(moments) == 3


def test_no_longer_than_the_others_go_on(
    moments: list[float], another: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_order, "MAX_HOLD_SECONDS", 60.0)
    waits()
    assert 0 < moments[0] < 30


def test_no_more_than_a_second_in_all(moments: list[float], another: None) -> None:
    places = [compile("\n" * line + "waits()", "script.py", "exec") for line in range(400)]
    for place in places:
        exec(place, {"waits": waits})
    assert 1 < len(moments) < 400
    assert sum(moments[:-1]) <= thread_order._MAX_TOTAL_HOLD


def test_what_another_thread_launches_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same stream, too: the wait is for what was in it."""
    launched, go = threading.Event(), threading.Event()

    def lets_go(self: thread_order.ThreadHolder, end: float) -> None:
        go.set()
        launched.wait()

    monkeypatch.setattr(thread_order.ThreadHolder, "_wait", lets_go)
    with gapless.emulate() as emulation:
        host = torch.zeros(4).pin_memory()

        def copies() -> None:
            go.wait()
            host.copy_(torch.ones(4, device="cuda"), non_blocking=True)
            launched.set()

        thread = threading.Thread(target=copies)
        thread.start()
        torch.cuda.Stream()
        torch.ones(4, device="cuda")
        torch.cuda.synchronize()
        thread.join()
        host.sum()
    assert [race.kind for race in emulation.races] == ["in-flight-read"]
