"""Measuring: with a clock of the test's own where times are asserted, for real where processes are."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gapless.loading import diagnose, timed
from gapless.loading.forked import LoaderError, available, measured, positions_kept
from gapless.loading.measure import unpicklable
from gapless.loading.measure_items import hot_lines, measure_items
from gapless.loading.measure_workers import Memory, _Sums, measure_transfer, memory_of, use
from gapless.model.loading import Fetch, Seen, Setting, Transfer
from gapless.model.source import SourceLine

pytestmark = pytest.mark.skipif(not available(), reason="processes cannot be copied here")
MS = 1_000_000


class FakeClock:
    """Time that passes when a test says so: on the wall, of the processor, waiting for a core."""

    def __init__(self) -> None:
        self.now = self.computed = self.waited = 0

    def pass_by(self, *, cpu: float = 0, wait: float = 0, delay: float = 0) -> None:
        self.now += int((cpu + wait + delay) * MS)
        self.computed += int(cpu * MS)
        self.waited += int(delay * MS)

    def wall(self) -> int:
        return self.now

    def cpu(self) -> int:
        return self.computed

    thread = cpu

    def delayed(self) -> int:
        return self.waited


class Items(Dataset):
    """`size` items, each of which `made` is called for."""

    def __init__(self, size: int, made=lambda index: None) -> None:
        self.size, self.made = size, made

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        found = self.made(index)
        return torch.full((3,), float(index)) if found is None else found


class Stream(IterableDataset):
    def __init__(self, size: int | None) -> None:
        self.size = size

    def __iter__(self):
        number = 0
        while self.size is None or number < self.size:
            yield torch.tensor(number)
            number += 1


def nothing(part: float) -> None:
    """Progress that nobody follows."""


def children() -> set[int]:
    """Processes that this one has started and that are still there."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def _no_worker_left():
    before = children()
    yield
    assert children() <= before


@pytest.fixture(scope="module")
def quick():
    """One real measurement for several tests."""
    loader = DataLoader(Items(4000), batch_size=4, num_workers=1)
    return diagnose(loader, 1.2, 0.005, busy=0.2, verify=True)


def test_computing_is_told_from_waiting_and_from_being_kept_waiting():
    clock = FakeClock()
    made = Items(40, lambda index: clock.pass_by(cpu=5, wait=2, delay=3))
    fetch = measure_items(DataLoader(made, batch_size=4), 100, nothing, clock=clock)
    assert (fetch.items, len(fetch.batches)) == (40, 9)  # the first of ten warms up
    assert (fetch.item, fetch.item_cpu, fetch.item_wait) == (10 * MS, 5 * MS, 2 * MS)
    assert set(fetch.batches) == {(20 * MS, 8 * MS)}
    assert (fetch.cpu, fetch.wait) == (20 * MS, 8 * MS)
    assert (fetch.batch_bytes, fetch.tensors, fetch.item_bytes) == (48, 1, 12)


def test_collating_is_told_from_items():
    clock = FakeClock()

    def collate(items):
        clock.pass_by(cpu=7)
        return torch.stack(items)

    loader = DataLoader(Items(8, lambda index: clock.pass_by(cpu=1)), batch_size=4, collate_fn=collate)
    fetch = measure_items(loader, 100, nothing, clock=clock)
    assert (fetch.item_cpu, fetch.collate, fetch.collate_cpu) == (MS, 7 * MS, 7 * MS)
    assert fetch.cpu == 11 * MS


def test_it_stops_when_its_time_is_over():
    clock = FakeClock()
    made = Items(10_000, lambda index: clock.pass_by(wait=100))
    fetch = measure_items(DataLoader(made, batch_size=5), 1.0, nothing, clock=clock)
    assert fetch.items == 10  # two batches of half a second


def test_a_batch_that_takes_longer_than_all_the_time_is_scaled_up():
    clock = FakeClock()
    made = Items(10_000, lambda index: clock.pass_by(wait=100))
    fetch = measure_items(DataLoader(made, batch_size=1000), 1.0, nothing, clock=clock)
    assert fetch.items == 11
    assert fetch.batch_size == 1000
    assert fetch.wait == pytest.approx(100_000 * MS)


def test_progress_goes_from_nothing_to_all():
    parts: list[float] = []
    measure_items(DataLoader(Items(400), batch_size=1), 100, parts.append)
    assert parts == sorted(parts)
    assert parts[-1] == 1.0


class AtOnce(Items):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.parametrize(
    ("loader", "items", "size"),
    [
        (DataLoader(Items(20), batch_size=4), 20, 4),
        (DataLoader(Items(5), batch_size=None), 5, 1),
        (DataLoader(AtOnce(20), batch_size=4), 20, 4),
        (DataLoader(Stream(20), batch_size=4), 20, 4),
        (DataLoader(Stream(10), batch_size=4), 10, 10 / 3),
        (DataLoader(Stream(None), batch_size=4), 256, 4),
        (DataLoader(Stream(6), batch_size=None), 6, 1),
        (DataLoader(Items(20), batch_sampler=[[0, 1, 2], [3], [4, 5]]), 6, 2),
    ],
    ids=["map", "map alone", "at once", "stream", "stream's end", "endless", "stream alone", "batch sampler"],
)
def test_every_kind_of_loader(loader, items, size):
    fetch = measure_items(loader, 100, nothing, clock=FakeClock())
    assert (fetch.items, fetch.batch_size) == (items, pytest.approx(size))


def ragged(index):
    return torch.zeros(2 + index % 2)


class Nothing(Items):
    def __getitem__(self, index):
        return None if index == 2 else torch.zeros(1)


def failing(index):
    if index == 5:
        raise ValueError("item 5 is broken\nand more")


def cuda(index):
    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA ...")


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Items(8, failing), r"making a batch fails at .*test_measure.py:\d+: ValueError: item 5 is broken$"),
        (Items(8, ragged), r"differ in shape \(\[2\] and \[3\]\).*give the loader a collate_fn that pads"),
        (
            Nothing(8),
            r"1 of 4 items of a batch are None, made by Nothing.__getitem__ \(.*\.py:\d+\)",
        ),
        (Items(8, cuda), r"it uses CUDA, which no forked worker can"),
        (Items(0), r"the loader yields no batch"),
        (Stream(0), r"the loader yields no batch"),
    ],
    ids=["raises", "ragged", "None", "CUDA", "empty", "empty stream"],
)
def test_what_fails_is_said_in_a_sentence(dataset, said):
    loader = DataLoader(dataset, batch_size=4)
    with pytest.raises(LoaderError, match=said):
        measured(lambda tell: measure_items(loader, 5, tell), Fetch, 5, nothing)


def test_a_crash_is_said_in_a_sentence():
    loader = DataLoader(Items(8, lambda index: os.kill(os.getpid(), signal.SIGKILL)), batch_size=4)
    with pytest.raises(LoaderError, match="ends the process"):
        measured(lambda tell: measure_items(loader, 5, tell), Fetch, 5, nothing)


def test_what_never_ends_is_ended():
    with pytest.raises(LoaderError, match="no batch within"):
        measured(lambda tell: threading.Event().wait(), Seen, -4.9, nothing)


def test_nothing_measured_changes_what_is_yielded(tmp_path):
    """The same items in the same order, and the same random numbers, as without the measurement."""
    source = tmp_path / "numbers"
    source.write_bytes(bytes(range(256)) * 200)

    class Drawn(Dataset):
        def __init__(self) -> None:
            self.file = source.open("rb", buffering=0)
            self.count = 0

        def __len__(self) -> int:
            return 400

        def __getitem__(self, index):
            self.count += 1
            drawn = torch.rand(1).item(), random.random(), np.random.rand()
            return (index, self.count, self.file.read(1)[0], *drawn)

    def epoch(look: bool) -> list[object]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        generator = torch.Generator().manual_seed(7)
        loader = DataLoader(Drawn(), batch_size=4, shuffle=True, generator=generator)
        batches = iter(loader)
        seen = [next(batches) for _ in range(3)]
        if look:
            found = diagnose(loader, 0.6)
            assert "holds an open file (self.file)" in " ".join(found.notes)
        seen += [next(batches) for _ in range(3)]
        loader.dataset.file.close()
        return [[part.tolist() for part in batch] for batch in seen]

    assert epoch(look=True) == epoch(look=False)


def test_positions_of_files_are_put_back(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with path.open("rb", buffering=0) as file, (tmp_path / "log").open("wb", buffering=0) as log:
        file.read(3)
        with positions_kept():
            file.read(4)
            log.write(b"kept")
        assert file.read(1) == b"3"
        assert log.tell() == 4


def test_a_worker_is_measured():
    loader = DataLoader(Items(4000), batch_size=4, num_workers=2)
    fetch = Fetch(batches=((1, 1),))
    found = measured(lambda tell: measure_transfer(loader, fetch, 2, tell, skip=0), Transfer, 5, nothing)
    assert found.batches > 3
    assert found.receive > 0
    assert found.first > found.start > 0
    assert found.pin == -1 or torch.cuda.is_available()


@pytest.mark.parametrize(
    ("values", "growth"),
    [
        ([100 + 7 * n for n in range(40)], 7),  # a cache, or pages copied
        ([100 * (1 - 0.5**n) for n in range(40)], 0),  # an allocator that has what it needs
        ([100 if n < 30 else 500 for n in range(40)], 0),  # one leap
        ([500 - n for n in range(40)], 0),
        ([100 + 7 * n for n in range(10)], 0),  # too few to say
    ],
)
def test_growth_is_what_goes_on(values, growth):
    sums = _Sums()
    sums.worker = [(number + 3, 0) for number in range(len(values))]
    sums.memory = [Memory(int(value), 1000) for value in values]
    assert sums._growth([int(value) for value in values]) == pytest.approx(growth, abs=0.01)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell")
def test_memory_of_a_process_is_told():
    told = memory_of(os.getpid())
    assert told.own > 0
    assert told.anonymous > 0
    assert memory_of(2**22 + 1) == Memory(-1, -1)  # nobody has this number


def test_a_loop_is_run():
    loader = DataLoader(Items(4000), batch_size=4)
    for workers in (0, 1):
        setting = Setting(workers=workers, prefetch=2 * workers)
        seen = measured(
            lambda tell, setting=setting: use(loader, setting, 1 * MS, 0.5, 0.2, tell), Seen, 5, nothing
        )
        assert seen.batches > 0
        assert seen.step >= 1 * MS
        assert seen.wait < seen.step
        assert (seen.ready == -1) is (workers == 0)


def test_the_lines_that_take_the_time():
    clock_end = time.thread_time

    def slow(index):
        end = clock_end() + 0.004
        while clock_end() < end:
            pass

    loader = DataLoader(Items(4000, slow), batch_size=4)
    found = measured(lambda tell: hot_lines(loader, 0.3, tell), list, 5, nothing)
    assert found[0]["line"]["code"] == "while clock_end() < end:"
    assert found[0]["share"] > 0.5
    assert "diagnose" not in str(found)


def test_a_diagnosis_has_everything(quick):
    assert quick.dataset == "Items"
    assert isinstance(quick.fetched, SourceLine)
    assert (quick.fetched.function, quick.fetched.code[:15]) == ("Items.__getitem__", "def __getitem__")
    assert (quick.length, quick.iterable) == (1000, False)
    assert quick.fetch.batch_size == 4
    assert quick.machine.allowed >= 1
    assert quick.machine.cores > 0
    assert {one.setting.workers for one in quick.predictions} >= {0, 1, 2, 3, 4}
    assert set(quick.recommended) == {"num_workers", "prefetch_factor", "persistent_workers", "pin_memory"}
    assert DataLoader(Items(4), **quick.recommended) is not None
    assert quick.seen is not None
    assert quick.seen.predicted > 0
    assert quick.verified is not None
    assert "your step takes 5 ms" in quick.sentence


def test_a_stream_without_end_is_measured():
    found = diagnose(DataLoader(Stream(None), batch_size=4), 0.5)
    assert (found.length, found.iterable) == (-1, True)
    assert found.demand.step == 0
    assert "batches a second" in found.sentence


def test_what_cannot_be_pickled_is_said_where_it_matters():
    local = Items(8, lambda index: None)
    spawned = DataLoader(local, num_workers=1, multiprocessing_context=multiprocessing.get_context("spawn"))
    assert "workers cannot start (spawn): the dataset cannot be pickled" in unpicklable(spawned)
    assert unpicklable(DataLoader(local, num_workers=1, multiprocessing_context="fork")) == ""
    found = diagnose(spawned, 0.4, 0.001)
    assert found.recommended["num_workers"] == 0
    assert found.seen is None
    assert "cannot be pickled" in found.notes[0]


def test_what_only_fails_in_a_worker_is_said():
    def fails(worker: int) -> None:
        raise OSError("no such mount")

    found = diagnose(DataLoader(Items(8), batch_size=4, worker_init_fn=fails), 0.5)
    assert found.recommended["num_workers"] == 0
    assert re.match(
        r"in a worker making a batch fails at \S+\.py:\d+: OSError: no such mount", found.notes[0]
    )


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"step": -1.0}, {"busy": 2.0}])
def test_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match="budget must be positive"):
        diagnose(DataLoader(Items(4)), **wrong)


def test_a_loop_is_timed_as_it_runs():
    clock = FakeClock()
    loader = DataLoader(Items(24, lambda index: clock.pass_by(cpu=1, wait=2)), batch_size=4)
    loop = type(timed(loader))(loader, clock.wall, clock.cpu)
    seen = []
    for batch in loop:
        seen.append(batch)
        clock.pass_by(cpu=6, wait=14)
    assert [batch.tolist() for batch in seen] == [batch.tolist() for batch in loader]
    assert len(loop) == 6
    assert loop.seen.batches == 4  # the first two warm up
    assert (loop.seen.step, loop.seen.wait) == (32 * MS, 12 * MS)
    assert loop.seen.share == pytest.approx(12 / 32)
    assert (loop.demand.step, loop.demand.busy) == (20 * MS, pytest.approx(0.3))
    assert loop.seen.first == 12 * MS


def test_a_loop_that_is_left_early_is_timed_until_then():
    loop = timed(DataLoader(Items(24), batch_size=4))
    for number, _ in enumerate(loop):
        if number == 4:
            break
    assert loop.seen.batches == 2
    assert loop.dataset.size == 24
