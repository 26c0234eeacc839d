"""What an epoch begins with, told apart by a clock that only the loader's parts move."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gapless.loading.measure_begin import measure_begin

SHUFFLE, OPEN, AGAIN, ITEM = 7_000, 5_000, 3_000, 10


class Time:
    def __init__(self) -> None:
        self.now = 0

    def wall(self) -> int:
        return self.now

    def delayed(self) -> int:
        return 0


class Order:
    def __init__(self, time: Time) -> None:
        self.time = time

    def __iter__(self):
        self.time.now += SHUFFLE
        yield from range(40)

    def __len__(self) -> int:
        return 40


class Files(Dataset):
    """Opens its file for the first item."""

    def __init__(self, time: Time) -> None:
        self.time, self.open = time, False

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int) -> torch.Tensor:
        self.time.now += ITEM + (0 if self.open else OPEN)
        self.open = True
        return torch.zeros(1)


class Kept(Files):
    """Keeps its items: what is asked for again is there."""

    def __init__(self, time: Time) -> None:
        super().__init__(time)
        self.open, self.kept = True, set()

    def __getitem__(self, at: int) -> torch.Tensor:
        self.time.now += 0 if at in self.kept else OPEN
        self.kept.add(at)
        return torch.zeros(1)


class Shards(IterableDataset):
    """Opens an index once, and its shards in each pass."""

    def __init__(self, time: Time) -> None:
        self.time, self.open = time, False

    def __iter__(self):
        self.time.now += AGAIN + (0 if self.open else OPEN)
        self.open = True
        for _ in range(40):
            self.time.now += ITEM
            yield torch.zeros(1)


def test_the_order_and_what_is_opened_once():
    time = Time()
    begin = measure_begin(DataLoader(Files(time), batch_size=4, sampler=Order(time)), time)
    assert (begin.shuffle, begin.opened, begin.again) == (SHUFFLE, OPEN, 0)


def test_what_is_kept_of_the_items_is_not_taken_for_opening():
    time = Time()
    assert measure_begin(DataLoader(Kept(time), batch_size=4), time).opened == 0


def test_a_stream_that_begins_anew_in_each_pass():
    time = Time()
    begin = measure_begin(DataLoader(Shards(time), batch_size=4), time)
    assert (begin.shuffle, begin.opened, begin.again) == (0, OPEN, AGAIN)


def test_a_loader_of_one_batch_has_nothing_to_compare_with():
    time = Time()
    assert measure_begin(DataLoader(Files(time), batch_size=40), time).opened == 0
