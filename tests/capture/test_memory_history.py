"""`memory_snapshot` on a GPU that is not there: what it asks of torch, and what it writes when."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

import gapless
from gapless.capture import memory_history
from gapless.errors import UsageError
from gapless.memory.snapshot import read
from gapless.model.memory import MODULE

BASE, MIB = 0x7F0000000000, 1 << 20


class Device:
    """Keeps a history as torch's allocator does, with the metadata that is set."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.metadata = ""
        self.entries: list[dict[str, Any]] = []
        self.observers: list[Any] = []

    def note(self, text: str) -> None:
        self.metadata = text

    def record(self, enabled: Any, **options: Any) -> None:
        self.calls.append((enabled, options))

    def ask(self, fails: bool = False) -> None:
        """A request for memory; one that fails raises, behind the observers."""
        at = BASE + 2 * MIB * len(self.entries)
        entry = {"action": "oom" if fails else "alloc", "addr": at, "size": MIB, "stream": 0, "frames": []}
        self.entries.append({**entry, "user_metadata": self.metadata, "device_free": 0})
        if fails:
            for observer in self.observers:
                observer(0, MIB, 1 << 30, 0)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def snapshot(self) -> dict[str, Any]:
        size = 2 * MIB * max(len(self.entries), 1)
        blocks = [{"size": size, "state": "active_allocated", "frames": []}]
        segment = {"device": 0, "address": BASE, "total_size": size, "stream": 0, "blocks": blocks}
        return {"segments": [segment], "device_traces": [list(self.entries)]}


@pytest.fixture
def device(monkeypatch):
    fake_device = Device()
    memory = torch.cuda.memory
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(memory, "_record_memory_history", fake_device.record)
    monkeypatch.setattr(memory, "_snapshot", fake_device.snapshot)
    monkeypatch.setattr(memory, "_get_memory_metadata", lambda: fake_device.metadata, raising=False)
    monkeypatch.setattr(memory, "_set_memory_metadata", fake_device.note, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_attach_out_of_memory_observer", fake_device.observers.append, raising=False
    )
    monkeypatch.setattr(memory_history, "_watching", [])
    monkeypatch.setattr(memory_history, "_attached", [])
    return fake_device


def written(path) -> list[str]:
    return [entry["action"] for entry in pickle.loads(path.read_bytes())["device_traces"][0]]


def test_the_history_is_written_at_the_end(device, tmp_path):
    with gapless.memory_snapshot(tmp_path / "new" / "m.pickle", entries=9, stacks="python") as snapshot:
        device.ask()
    assert device.calls == [("all", {"stacks": "python", "max_entries": 9}), (None, {})]
    assert written(snapshot.path) == ["alloc"]
    assert (snapshot.saved, snapshot.out_of_memory, memory_history._watching) == (True, False, [])
    snapshot.stop()  # twice does nothing
    assert len(device.calls) == 2


def test_when_memory_runs_out_the_file_is_of_then(device, tmp_path):
    path = tmp_path / "m.pickle"
    snapshot = gapless.memory_snapshot(path)

    def train() -> None:
        with snapshot:
            device.ask()
            try:
                device.ask(fails=True)
            finally:
                device.entries.append({**device.entries[0], "action": "later"})  # what unwinding gives back

    with pytest.raises(torch.cuda.OutOfMemoryError):
        train()
    assert written(path) == ["alloc", "oom"]
    assert snapshot.out_of_memory


def test_a_script_that_goes_on_after_that_is_recorded_to_its_end(device, tmp_path):
    path = tmp_path / "m.pickle"
    with gapless.memory_snapshot(path):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            device.ask(fails=True)
        device.ask()
    assert written(path) == ["oom", "alloc"]


def test_torch_gets_one_observer_however_many_blocks(device, tmp_path):
    for _ in range(3):
        with gapless.memory_snapshot(tmp_path / "m.pickle"):
            pass
    assert len(device.observers) == 1
    with pytest.raises(torch.cuda.OutOfMemoryError):
        device.ask(fails=True)  # of which nobody wants to know any more
    assert written(tmp_path / "m.pickle") == []


def test_each_request_names_its_module(device, tmp_path):
    class Part(torch.nn.Module):
        def __init__(self, fails: bool = False) -> None:
            super().__init__()
            self.inner, self.fails = torch.nn.Identity(), fails

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            device.ask()
            if self.fails:
                raise ValueError("no")
            return self.inner(x)

    net = torch.nn.ModuleDict({"parts": torch.nn.ModuleList([Part(), Part(fails=True)])})
    net.forward = lambda x: [part(x) for part in net["parts"]]
    with gapless.memory_snapshot(tmp_path / "m.pickle"):
        device.metadata = "mine"
        with pytest.raises(ValueError, match="no"):
            net(torch.ones(1))
        device.ask()
    labels = [entry["user_metadata"] for entry in device.entries]
    assert labels == [MODULE + "parts[0]", MODULE + "parts[1]", "mine"]
    assert device.metadata == ""
    before = len(device.entries)
    net["parts"][0](torch.ones(1))
    assert device.entries[before]["user_metadata"] == ""


def test_the_file_is_one_that_gapless_reads(device, tmp_path):
    with gapless.memory_snapshot(tmp_path / "m.pickle"):
        pass
    (run,) = read(str(tmp_path / "m.pickle"))
    assert len(run) == 0


def test_a_full_disk_stops_nothing(device, tmp_path):
    (tmp_path / "file").write_text("")
    snapshot = gapless.memory_snapshot(tmp_path / "file" / "m")
    with pytest.warns(UserWarning, match="could not be saved"), snapshot:
        device.ask()


def test_processes_have_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    assert gapless.memory_snapshot(tmp_path / "m.pickle").path.name == "m.rank2.pickle"
    assert gapless.memory_snapshot(tmp_path / "m.pickle", ranked=False).path.name == "m.pickle"


def test_without_a_gpu_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="gapless check --memory"), gapless.memory_snapshot(tmp_path / "m"):
        pass
