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

from gapless.loading import diagnose, measure_loop, timed, trust
from gapless.loading import measure as room
from gapless.loading.fetch_counters import BatchCosts, FetchCounters
from gapless.loading.forked import LoaderError, Stopped, can_fork, positions_kept, run_in_copy
from gapless.loading.hot_lines import find_hot_lines
from gapless.loading.measure import explain_unpicklable
from gapless.loading.measure_items import measure_items
from gapless.loading.measure_loop import run_setting
from gapless.loading.measure_workers import ProcessMemory, _WorkerSamples, measure_transfer, memory_of
from gapless.model.loading import Doubt, Fetch, Machine, Seen, Setting, Transfer
from gapless.model.source import SourceLine

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes cannot be copied here")
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

    def __init__(self, size: int, make=lambda index: None) -> None:
        self.size, self.made = size, make

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        item = self.made(index)
        return torch.full((3,), float(index)) if item is None else item


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
    distinct = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            distinct.add(int(folder.name))
    return distinct


@pytest.fixture(autouse=True)
def _no_worker_left():
    before = children()
    yield
    assert children() <= before


@pytest.fixture(scope="module", autouse=True)
def _nobody_else():
    """As if this machine were always idle: who else uses it while tests run is no matter of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trust, "find_doubt", lambda of: Doubt(kind="interrupted") if of.interrupted else None)
        yield


@pytest.fixture(scope="module")
def quick(_nobody_else):
    """One real measurement for several tests."""
    loader = DataLoader(Items(4000), batch_size=4, num_workers=1)
    return diagnose(loader, 1.2, 0.005, busy=0.2, check_advice=True)


def test_computing_is_separated_from_waiting_and_blocking():
    clock = FakeClock()
    dataset = Items(40, lambda index: clock.pass_by(cpu=5, wait=2, delay=3))
    fetch = measure_items(DataLoader(dataset, batch_size=4), 100, nothing, clock=clock)
    assert (fetch.items, len(fetch.batches)) == (40, 9)  # the first of ten warms up
    assert (fetch.item, fetch.item_cpu, fetch.item_wait) == (10 * MS, 5 * MS, 2 * MS)
    assert set(fetch.batches) == {(20 * MS, 8 * MS)}
    assert (fetch.cpu, fetch.wait) == (20 * MS, 8 * MS)
    assert (fetch.batch_bytes, fetch.tensors, fetch.item_bytes) == (48, 1, 12)


def test_collating_is_timed_apart_from_items():
    clock = FakeClock()

    def collate(items):
        clock.pass_by(cpu=7)
        return torch.stack(items)

    loader = DataLoader(Items(8, lambda index: clock.pass_by(cpu=1)), batch_size=4, collate_fn=collate)
    fetch = measure_items(loader, 100, nothing, clock=clock)
    assert (fetch.item_cpu, fetch.collate, fetch.collate_cpu) == (MS, 7 * MS, 7 * MS)
    assert fetch.cpu == 11 * MS


def test_a_measurement_stops_when_its_time_is_over():
    clock = FakeClock()
    dataset = Items(10_000, lambda index: clock.pass_by(wait=100))
    fetch = measure_items(DataLoader(dataset, batch_size=5), 1.0, nothing, clock=clock)
    assert fetch.items == 10  # two batches of half a second


def test_a_batch_that_takes_longer_than_all_the_time_is_scaled_up():
    clock = FakeClock()
    dataset = Items(10_000, lambda index: clock.pass_by(wait=100))
    fetch = measure_items(DataLoader(dataset, batch_size=1000), 1.0, nothing, clock=clock)
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
        (
            Items(8, ragged),
            r"have different shapes \(\[2\] and \[3\]\).*give the loader a collate_fn that pads",
        ),
        (
            Nothing(8),
            r"1 of 4 items in a batch are None, made by Nothing.__getitem__ \(.*\.py:\d+\)",
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
        run_in_copy(lambda tell: measure_items(loader, 5, tell), Fetch, 5, nothing)


def test_a_crash_is_said_in_a_sentence():
    loader = DataLoader(Items(8, lambda index: os.kill(os.getpid(), signal.SIGKILL)), batch_size=4)
    with pytest.raises(LoaderError, match="kills the process"):
        run_in_copy(lambda tell: measure_items(loader, 5, tell), Fetch, 5, nothing)


def test_what_never_ends_is_ended():
    with pytest.raises(LoaderError, match="no batch within"):
        run_in_copy(lambda tell: threading.Event().wait(), Seen, -4.9, nothing)


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
        epochs = [next(batches) for _ in range(3)]
        if look:
            diagnosis = diagnose(loader, 0.6)
            assert "holds an open file (self.file)" in " ".join(diagnosis.notes)
        epochs += [next(batches) for _ in range(3)]
        loader.dataset.file.close()
        return [[part.tolist() for part in batch] for batch in epochs]

    assert epoch(look=True) == epoch(look=False)


class Given:
    """In place of `measured`: what each part gives, in turn, without a process and without time."""

    def __init__(self, monkeypatch, **parts) -> None:
        self.parts, self.asked = parts, list[str]()
        monkeypatch.setattr(room._LoaderMeasurement, "measure_part", self.measure_part)
        monkeypatch.setattr(
            room, "measure_machine", lambda start, seconds: self._part_result("cores", Machine(allowed=2))
        )

    def _part_result(self, part, other):
        self.asked.append(part)
        result = self.parts.get(part, other)
        if isinstance(result, BaseException):
            raise result
        return result

    def measure_part(self, part, kind, work, look=None, patience=0.0, trial_seconds=0.0):
        if part in ("begin", "remedies"):  # they lead to nothing that is run
            return kind()
        return self._part_result(part, [] if part == "lines" else Seen())


FETCH = Fetch(items=80, item=5 * MS, item_cpu=5 * MS, batch_size=8, batches=((40 * MS, 0),) * 9)
MOVED = Transfer(batches=9, receive=MS)


def ran(step: float, workers: int) -> Seen:
    return Seen(setting=Setting(workers=workers), batches=40, step=step * MS, wait=(step - 20) * MS)


def test_the_setting_advised_is_run_within_the_budget(monkeypatch):
    fixed_times = Given(monkeypatch, items=FETCH, workers=MOVED, loop=ran(60, 0), advice=ran(33, 2))
    diagnosis = diagnose(DataLoader(Items(800), batch_size=8), 20, 0.02)
    assert fixed_times.asked == ["cores", "items", "lines", "workers", "loop", "advice"]
    assert diagnosis.seen_advised.predicted == diagnosis.advised.step
    assert (diagnosis.step_now, diagnosis.step_advised) == (60 * MS, 33 * MS)
    fixed_times = Given(monkeypatch, items=FETCH, workers=MOVED, loop=ran(60, 0))
    diagnosis = diagnose(DataLoader(Items(800), batch_size=8), 20, 0.02, check_advice=False)
    assert "advice" not in fixed_times.asked
    assert diagnosis.sentence.endswith("(predicted, not run)")


def test_a_run_that_refutes_the_prediction_is_made_again(monkeypatch):
    fixed_times = Given(monkeypatch, items=FETCH, workers=MOVED, loop=ran(60, 0), advice=ran(45, 2))
    diagnosis = diagnose(DataLoader(Items(800), batch_size=8), 20, 0.02)
    assert fixed_times.asked[-2:] == ["advice", "advice"]
    assert diagnosis.seen_advised.again == 45 * MS


def test_a_loader_that_has_what_is_advised_is_run_once(monkeypatch):
    fixed_times = Given(
        monkeypatch, items=Fetch(items=80, batch_size=8, batches=((MS // 9, 0),)), loop=ran(20, 0)
    )
    diagnosis = diagnose(DataLoader(Items(800), batch_size=8), 20, 0.02)
    assert fixed_times.asked[-1] == "loop"
    assert diagnosis.seen_advised == diagnosis.seen


def test_an_item_slower_than_the_budget_has_an_answer(monkeypatch):
    slow = Fetch(items=1, item=6e9, item_wait=6e9, batch_size=8, batches=((0, 48_000 * MS),))
    fixed_times = Given(monkeypatch, items=slow)
    diagnosis = diagnose(DataLoader(Items(800), batch_size=8), 2, 0.02)
    assert fixed_times.asked == ["cores", "items"]
    assert (diagnosis.transfer.assumed, diagnosis.seen, diagnosis.seen_advised) == (True, None, None)
    assert diagnosis.recommended["num_workers"] == 32
    assert diagnosis.sentence.endswith("(predicted, not run)")
    assert diagnosis.notes[0] == "no worker was tried: a batch takes 48 s, but --budget is 2 s"
    assert diagnosis.notes[1].startswith("num_workers=0 was not run: a few of its steps take 432 s")


CTRL_C = KeyboardInterrupt()


@pytest.mark.parametrize(
    ("parts", "at", "begins"),
    [
        ({"items": Stopped(CTRL_C, FETCH)}, "items", "interrupted while making batches: a batch takes"),
        ({"lines": Stopped(CTRL_C)}, "lines", "interrupted while finding where the time goes: a batch"),
        ({"workers": Stopped(CTRL_C)}, "workers", "interrupted while trying a worker: a batch takes"),
        ({"loop": CTRL_C}, "loop", "interrupted while running the loader as it is: a batch takes"),
        ({"advice": Stopped(CTRL_C)}, "advice", "interrupted while running the recommended setting: a batch"),
    ],
    ids=["items", "lines", "workers", "loop", "advice"],
)
def test_results_until_ctrl_c_are_reported(monkeypatch, parts, at, begins):
    # The real one sets the part and keeps what an interrupted measurement tells.
    fixed_times = Given(monkeypatch, **{"items": FETCH, "workers": MOVED, "loop": ran(60, 0), **parts})

    def measure(self, part, kind, work, look=None, patience=0.0, trial_seconds=0.0):
        self.part = part
        return fixed_times.measure_part(part, kind, work)

    monkeypatch.setattr(room._LoaderMeasurement, "measure_part", measure)
    diagnosis = diagnose(DataLoader(Items(800), batch_size=8), 20, 0.02)
    assert diagnosis.interrupted == at
    assert diagnosis.sentence.startswith(begins)
    assert diagnosis.fetch.items == 80
    assert diagnosis.recommended == {}


def test_ctrl_c_before_the_first_item_and_other_requests_are_raised(monkeypatch):
    class Terminated(BaseException):
        pass

    loader = DataLoader(Items(800), batch_size=8)
    for parts, kind in (
        ({"cores": KeyboardInterrupt()}, KeyboardInterrupt),
        ({"items": Stopped(CTRL_C)}, KeyboardInterrupt),
        ({"items": FETCH, "workers": Stopped(Terminated())}, Terminated),
    ):
        Given(monkeypatch, **parts)
        with pytest.raises(kind):
            diagnose(loader, 20, 0.02)


@pytest.mark.parametrize("keep", [True, False])
def test_a_measurement_that_is_interrupted_tells_what_it_has(keep):
    """Really: the process that measures is asked, and answers from the midst of its work."""

    def interrupt(part: float) -> None:
        raise KeyboardInterrupt

    def work(tell):
        batches = 0
        while not tell(0.5):
            batches += 1
        return Fetch(items=batches or 1)

    with pytest.raises(Stopped if keep else KeyboardInterrupt) as caught:
        run_in_copy(work, Fetch, 60, interrupt, keep=keep)
    if keep:
        assert isinstance(caught.value.request, KeyboardInterrupt)
        assert caught.value.result is None or caught.value.result.items >= 1  # None where it had no core


def test_items_are_cut_short_when_the_end_is_asked_for():
    clock = FakeClock()
    dataset = Items(10_000, lambda index: clock.pass_by(wait=100))
    fetch = measure_items(
        DataLoader(dataset, batch_size=1000), 1e9, lambda part: clock.now >= 500 * MS, clock=clock
    )
    assert (fetch.items, fetch.batch_size) == (5, 1000)
    assert fetch.wait == pytest.approx(100_000 * MS)


def test_a_short_loader_is_run_again_and_again():
    """Passes of three steps each: all of them count together."""
    passes = [measure_loop._LoopPass(DataLoader(Items(3)), Setting(), FetchCounters(0)) for _ in range(3)]
    for one_pass in passes:
        one_pass.marks, one_pass.waits, one_pass.counts = [0, 10, 20, 30, 40, 50], [4] * 6, [0] * 6
        one_pass.made, one_pass.ran, one_pass.first = (
            BatchCosts(batches=4, wall=100, cpu=60, delay=20),
            (90, 10),
            7,
        )
    combined = measure_loop._summarize_passes(Setting(), passes)
    assert (combined.batches, combined.step, combined.wait, combined.first) == (9, 10, 4, 7)
    assert (combined.made, combined.made_cpu, combined.made_wait, combined.had) == (12, 15, 5, 0.9)


def test_batches_are_counted_where_they_are_made():
    loader = DataLoader(Items(12), batch_size=4)
    inside = FetchCounters(0)
    with inside.counting():
        assert len(list(loader)) == 3
    assert len(list(loader)) == 3
    costs = inside.made
    assert costs.batches == 3
    assert costs.wall >= costs.wait >= 0
    assert costs.since(costs) == BatchCosts()


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
    result = run_in_copy(lambda tell: measure_transfer(loader, fetch, 2, tell, skip=0), Transfer, 5, nothing)
    assert result.batches > 3
    assert result.receive > 0
    assert result.first > result.start > 0
    assert result.pin == -1 or torch.cuda.is_available()


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
    sums = _WorkerSamples()
    sums.worker = [(number + 3, 0) for number in range(len(values))]
    sums.memory = [ProcessMemory(int(value), 1000) for value in values]
    assert sums._steady_growth([int(value) for value in values]) == pytest.approx(growth, abs=0.01)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell")
def test_memory_of_a_process_is_reported():
    process_memory = memory_of(os.getpid())
    assert process_memory.own > 0
    assert process_memory.anonymous > 0
    assert memory_of(2**22 + 1) == ProcessMemory(-1, -1)  # nobody has this number


def test_a_loop_is_run():
    loader = DataLoader(Items(4000), batch_size=4)
    for workers in (0, 1):
        setting = Setting(workers=workers, prefetch=2 * workers)
        result = run_in_copy(
            lambda tell, setting=setting: run_setting(loader, setting, 1 * MS, 0.5, 0.2, tell),
            Seen,
            5,
            nothing,
        )
        assert result.batches > 0
        assert result.step >= 1 * MS
        assert result.wait < result.step
        assert (result.ready == -1) is (workers == 0)


def test_the_lines_that_take_the_time():
    clock_end = time.thread_time

    def slow(index):
        end = clock_end() + 0.004
        while clock_end() < end:
            pass

    loader = DataLoader(Items(4000, slow), batch_size=4)
    result = run_in_copy(lambda tell: find_hot_lines(loader, 0.3, tell), list, 5, nothing)
    assert result[0]["line"]["code"] == "while clock_end() < end:"
    assert result[0]["share"] > 0.5
    assert "diagnose" not in str(result)


def test_a_diagnosis_has_everything(quick):
    assert quick.dataset == "Items"
    assert isinstance(quick.fetched, SourceLine)
    assert (quick.fetched.function, quick.fetched.code[:15]) == ("Items.__getitem__", "def __getitem__")
    assert (quick.length, quick.iterable) == (1000, False)
    assert quick.fetch.batch_size == 4
    assert quick.machine.allowed >= 1
    assert quick.machine.cores > 0
    assert {prediction.setting.workers for prediction in quick.predictions} >= {0, 1, 2, 3, 4}
    assert set(quick.recommended) == {"num_workers", "prefetch_factor", "persistent_workers", "pin_memory"}
    assert DataLoader(Items(4), **quick.recommended) is not None
    assert quick.seen is not None
    assert quick.seen.predicted > 0
    assert quick.seen_advised is not None
    assert "your step takes 5 ms" in quick.sentence


def test_a_stream_without_end_is_measured():
    diagnosis = diagnose(DataLoader(Stream(None), batch_size=4), 0.5)
    assert (diagnosis.length, diagnosis.iterable) == (-1, True)
    assert diagnosis.demand.step == 0
    assert "batches per second" in diagnosis.sentence


def test_what_cannot_be_pickled_is_said_where_it_matters():
    local = Items(8, lambda index: None)
    spawned = DataLoader(local, num_workers=1, multiprocessing_context=multiprocessing.get_context("spawn"))
    assert "workers cannot start (spawn): the dataset cannot be pickled" in explain_unpicklable(spawned)
    assert explain_unpicklable(DataLoader(local, num_workers=1, multiprocessing_context="fork")) == ""
    diagnosis = diagnose(spawned, 0.4, 0.001)
    assert diagnosis.recommended["num_workers"] == 0
    assert diagnosis.seen is None
    assert "cannot be pickled" in diagnosis.notes[0]


def test_what_only_fails_in_a_worker_is_said():
    def fails(worker: int) -> None:
        raise OSError("no such mount")

    diagnosis = diagnose(DataLoader(Items(8), batch_size=4, worker_init_fn=fails), 0.5)
    assert diagnosis.recommended["num_workers"] == 0
    assert re.match(
        r"in a worker making a batch fails at \S+\.py:\d+: OSError: no such mount", diagnosis.notes[0]
    )


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"step": -1.0}, {"busy": 2.0}])
def test_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match="budget must be positive"):
        diagnose(DataLoader(Items(4)), **wrong)


def test_a_loop_is_timed_as_it_runs():
    clock = FakeClock()
    loader = DataLoader(Items(24, lambda index: clock.pass_by(cpu=1, wait=2)), batch_size=4)
    loop = type(timed(loader))(loader, clock.wall, clock.cpu)
    batches = []
    for batch in loop:
        batches.append(batch)
        clock.pass_by(cpu=6, wait=14)
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in loader]
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
