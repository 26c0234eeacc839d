"""`no_waits`: raises where the host would wait, and names the line."""

from __future__ import annotations

import threading

import pytest
import torch

import gapless
from gapless.errors import UsageError, WaitError


@pytest.fixture(autouse=True)
def device():
    with gapless.emulate() as emulator:
        yield emulator


def test_work_on_the_device_passes():
    x = torch.ones(3, device="cuda")
    with gapless.no_waits():
        y = torch.where(x > 0, x * 2, x).sum()
    assert y.item() == 6


def test_a_read_raises_and_names_its_line():
    x = torch.ones(3, device="cuda")
    with (
        pytest.raises(WaitError, match=r"test_guard\.py:\d+: x\.sum\(\)\.item\(\)") as caught,
        gapless.no_waits(),
    ):
        x.sum().item()
    assert "Tensor.item" in str(caught.value)


def test_as_a_decorator_each_call_is_guarded():
    @gapless.no_waits()
    def anything(x):
        return bool(x.any())

    x = torch.ones(3, device="cuda")
    for _ in range(2):
        with pytest.raises(WaitError):
            anything(x)
    assert anything(torch.ones(3))  # a host tensor has nothing to wait for


def test_a_wait_in_backward_names_the_forward_line():
    x = torch.ones(3, device="cuda", requires_grad=True)
    mask = x > 0
    loss = x[mask].sum()
    with pytest.raises(WaitError, match=r"loss = x\[mask\]\.sum\(\)"), gapless.no_waits():
        loss.backward()


def test_the_guard_ends_with_its_block():
    x = torch.ones(3, device="cuda")
    with gapless.no_waits():
        pass
    assert x.sum().item() == 3


def test_guards_nest():
    x = torch.ones(3, device="cuda")
    with gapless.no_waits():
        with gapless.no_waits():
            pass
        with pytest.raises(WaitError):
            x.tolist()


def test_other_threads_may_wait():
    x = torch.ones(3, device="cuda")
    values = []
    with gapless.no_waits():
        thread = threading.Thread(target=lambda: values.append(x.sum().item()))
        thread.start()
        thread.join()
    assert values == [3.0]


def test_an_error_of_the_block_is_its_own():
    with pytest.raises(KeyError), gapless.no_waits():
        {}["nothing"]


def test_without_any_device_it_says_what_to_do(device):
    from gapless.emulation.emulator import current

    current().stop()
    with pytest.raises(UsageError, match=r"gapless\.emulate\(\)"), gapless.no_waits():
        pass


def test_through_torchs_own_debug_mode(monkeypatch):
    """What a real GPU's debug mode raises becomes a `WaitError` that names the line."""
    from gapless.capture import guard

    monkeypatch.setattr(guard, "current", lambda: None)  # the emulated device plays the real one
    x = torch.ones(3, device="cuda")
    with pytest.raises(WaitError, match=r"test_guard\.py:\d+: x\.sum\(\)\.item\(\)"), gapless.no_waits():
        x.sum().item()
    with pytest.raises(WaitError, match=r"torch\.cuda\.synchronize"), gapless.no_waits():
        torch.cuda.synchronize()
    assert torch.cuda.get_sync_debug_mode() == 0
    torch.cuda.synchronize()
