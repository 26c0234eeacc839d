"""Copies to the host that arrive when something waits for them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import gapless
from gapless.errors import UsageError


@pytest.fixture
def late() -> Iterator[None]:
    with gapless.emulate(late_copies=True):
        yield


def pinned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype, pin_memory=True)


def test_a_read_before_the_copy_ends_gets_no_values(late: None) -> None:
    host = torch.ones(3, device="cuda").to("cpu", non_blocking=True)
    assert all(map(math.isnan, host.tolist()))
    torch.cuda.synchronize()
    assert host.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float16, torch.complex64])
def test_of_every_type(late: None, dtype: torch.dtype) -> None:
    ones, host = torch.ones(2, dtype=dtype, device="cuda"), pinned(2, dtype=dtype)
    host.copy_(ones, non_blocking=True)
    assert host.tolist() != [1, 1]
    ones.sum().item()  # the stream that copies is waited for
    assert host.tolist() == [1, 1]


def test_only_the_bytes_of_the_copy(late: None) -> None:
    host = pinned(2, 3)
    host[1].copy_(torch.ones(3, device="cuda"), non_blocking=True)
    assert host[0].tolist() == [0, 0, 0]
    assert math.isnan(host[1, 0])


def test_a_stream_that_comes_behind_sees_it(late: None) -> None:
    host = torch.ones(3, device="cuda").to("cpu", non_blocking=True)
    back = host.to("cuda", non_blocking=True)
    other = torch.zeros(3, device="cuda")
    other.copy_(host, non_blocking=True)
    assert math.isnan(host[0])
    assert back.tolist() == other.tolist() == [1.0, 1.0, 1.0]


def test_a_stream_that_does_not_come_behind_does_not(late: None) -> None:
    host = torch.ones(3, device="cuda").to("cpu", non_blocking=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        back = host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert math.isnan(back[0].item())


def test_the_last_copy_to_a_buffer_counts(late: None) -> None:
    host = pinned(2)
    for value in (1.0, 2.0):
        host.copy_(torch.full((2,), value, device="cuda"), non_blocking=True)
    torch.cuda.synchronize()
    assert host.tolist() == [2.0, 2.0]


def test_what_is_asked_for_is_under_way_the_first_time(late: None) -> None:
    host, copied, side = pinned(2), torch.cuda.Event(), torch.cuda.Stream()
    assert copied.query()  # of nothing
    assert side.query()
    with torch.cuda.stream(side):
        host.copy_(torch.ones(2, device="cuda"), non_blocking=True)
        copied.record()
    assert not copied.query()
    assert not side.query()
    assert math.isnan(host[0])
    assert copied.query()
    assert side.query()
    assert host.tolist() == [1.0, 1.0]
    copied.record(side)
    torch.cuda.synchronize()
    assert copied.query()


def test_everything_has_arrived_when_the_device_is_gone() -> None:
    with gapless.emulate(late_copies=True) as emulation:
        host = torch.ones(3, device="cuda").to("cpu", non_blocking=True)
    assert host.tolist() == [1.0, 1.0, 1.0]
    assert any("--late-copies" in note for note in emulation.session.notes)


def test_a_reading_is_not_changed(late: None) -> None:
    reading = gapless.ops.read_later(loss=torch.full((), 3.0, device="cuda"))
    assert reading.result()["loss"].item() == 3.0


def test_a_run_without_values_has_none_that_could_be_late() -> None:
    with pytest.raises(UsageError, match="no values"), gapless.emulate(dry=True, late_copies=True):
        pass
