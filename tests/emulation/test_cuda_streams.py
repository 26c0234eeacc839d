"""Streams, events, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from emulation.fake_device import FakeDevice, installed


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with installed(FakeDevice()) as fake:
        yield fake


# -- waits ---------------------------------------------------------------------------------------------------

WAITS: dict[str, tuple[Callable[[], Any], tuple[str, str, str]]] = {
    "synchronize": (
        lambda: torch.cuda.synchronize(),
        ("cudaDeviceSynchronize", "explicit", "torch.cuda.synchronize"),
    ),
    "accelerator": (
        lambda: torch.accelerator.synchronize(),
        ("cudaDeviceSynchronize", "explicit", "torch.accelerator.synchronize"),
    ),
    "current stream": (
        lambda: torch.cuda.current_stream().synchronize(),
        ("cudaStreamSynchronize", "explicit", "torch.cuda.Stream.synchronize"),
    ),
    "generic stream": (
        lambda: torch.Stream(device="cuda").synchronize(),
        ("cudaStreamSynchronize", "explicit", "torch.cuda.Stream.synchronize"),
    ),
    "event": (
        lambda: torch.cuda.current_stream().record_event().synchronize(),
        ("cudaEventSynchronize", "explicit", "torch.cuda.Event.synchronize"),
    ),
    "host register": (
        lambda: torch.cuda.cudart().cudaHostRegister(0, 8, 1),
        ("cudaHostRegister", "explicit", "torch.cuda.cudart().cudaHostRegister"),
    ),
}


@pytest.mark.parametrize("operation", WAITS)
def test_what_waits(device: FakeDevice, operation: str) -> None:
    torch.cuda.init()
    call, wait = WAITS[operation]
    call()
    assert device.waited() == [wait]


def test_what_does_not_wait(device: FakeDevice) -> None:
    torch.cuda.init()
    side, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(side):
        event.record()
        torch.cuda.current_stream().wait_event(event)
    torch.cuda.current_stream().wait_stream(side)
    event.wait()
    assert event.query()
    assert side.query()
    end = side.record_event(torch.cuda.Event(enable_timing=True))
    assert event.elapsed_time(end) == 500.0  # wait_stream recorded an event of its own in between
    torch.cuda.Event().synchronize()  # never recorded: nothing to wait for
    torch.cuda._sleep(1000)
    torch.cuda.ipc_collect()
    torch.cuda.mem_get_info()
    torch.cuda.memory_summary()
    assert device.waited() == []


def test_accelerator_synchronize_does_nothing_before_cuda_is_used(device: FakeDevice) -> None:
    torch.accelerator.synchronize()
    assert device.waited() == []


def test_sync_debug_mode_is_kept(device: FakeDevice) -> None:
    assert torch.cuda.get_sync_debug_mode() == 0
    torch.cuda.set_sync_debug_mode("error")
    assert torch.cuda.get_sync_debug_mode() == 2


# -- streams and events --------------------------------------------------------------------------------------


def test_streams(device: FakeDevice) -> None:
    default = torch.cuda.default_stream()
    assert torch.cuda.current_stream() == default == torch.accelerator.current_stream()
    assert repr(default) == "<torch.cuda.Stream device=cuda:0 cuda_stream=0x0>"
    low, high = torch.cuda.Stream(), torch.cuda.Stream(device=1, priority=-1)
    assert (low.priority, high.priority, torch.cuda.Stream(priority=-99).priority) == (0, -1, -3)
    assert torch.cuda.Stream.priority_range() == (0, -3)
    assert len({low, torch.cuda.Stream(), default}) == 3
    assert isinstance(low, torch.Stream)
    assert low.device == torch.device("cuda:0")
    assert torch.cuda._utils._get_device_index(high.device) == 1
    external = torch.cuda.ExternalStream(0x1230, device=1)
    assert (external.cuda_stream, external.device) == (0x1230, torch.device("cuda:1"))
    assert torch.cuda.get_stream_from_external(0x1230, 1) == external
    assert not low.is_capturing()
    assert not torch.cuda.is_current_stream_capturing()


def test_stream_contexts(device: FakeDevice) -> None:
    here, on_device = torch.cuda.Stream(), torch.cuda.Stream(device="cuda:1")
    with torch.cuda.stream(here):
        assert torch.cuda.current_stream() == here
        with torch.cuda.stream(on_device):
            assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (1, on_device)
        with torch.cuda.stream(None), on_device:
            assert torch.accelerator.current_stream() == on_device
        assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (0, here)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)


def test_the_current_stream_belongs_to_a_thread(device: FakeDevice) -> None:
    observed = []
    with torch.cuda.stream(torch.cuda.Stream()):
        thread = threading.Thread(target=lambda: observed.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert observed == [torch.cuda.default_stream()]


def test_generic_streams_and_events(device: FakeDevice) -> None:
    assert torch.Stream(device="cuda:1").device == torch.device("cuda:1")
    assert torch.Stream().device.type == "cuda"
    assert torch.Event(device="cpu").device == torch.device("cpu")
    start, end = torch.Event(enable_timing=True), torch.Event("cuda", enable_timing=True)
    start.record()
    end.record(torch.accelerator.current_stream())
    assert start.elapsed_time(end) == 250.0
    assert isinstance(start, torch.Event)
    assert isinstance(torch.Event(device="cpu"), torch.Event)
    assert issubclass(torch.cuda.Event, torch.Event)
    assert issubclass(torch.cuda.Stream, torch.Stream)
    assert not isinstance(start, torch.Stream)


def test_events_fail_as_cuda_fails(device: FakeDevice) -> None:
    timed, untimed = torch.cuda.Event(enable_timing=True), torch.cuda.Event()
    assert repr(timed) == "<torch.cuda.Event uninitialized>"
    with pytest.raises(ValueError, match="Both events must be created with argument 'enable_timing=True'"):
        timed.elapsed_time(untimed)
    with pytest.raises(ValueError, match="Both events must be recorded before calculating elapsed time"):
        timed.elapsed_time(torch.cuda.Event(enable_timing=True))
    timed.record()
    assert timed.device == torch.device("cuda:0")
    with pytest.raises(RuntimeError, match="Event device 0 does not match recording stream's device 1"):
        timed.record(torch.cuda.Stream(device=1))
