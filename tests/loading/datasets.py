"""Streams and datasets with and without mistakes, importable by workers that are spawned."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


def here() -> tuple[int, int]:
    """Worker and number of workers."""
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


class Numbers(IterableDataset):
    """Tensors of 0 to n - 1, with `divide` for the positions that one worker yields."""

    def __init__(self, count: int = 40) -> None:
        self.count = count

    def positions(self) -> Any:
        return range(self.count)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for at in self.positions():
            yield torch.tensor([at])


class ByWorker(Numbers):
    def positions(self) -> Any:
        worker, workers = here()
        return range(worker, self.count, workers)


class ByBoth(Numbers):
    def positions(self) -> Any:
        worker, workers = here()
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        return range(rank * workers + worker, self.count, ranks * workers)


class Blocks(Numbers):
    def positions(self) -> Any:
        worker, workers = here()
        share = self.count // workers
        return range(worker * share, (worker + 1) * share)


class Endless(Numbers):
    def __iter__(self) -> Iterator[torch.Tensor]:
        at = 0
        while True:
            yield torch.tensor([at])
            at += 1


class Noise(Numbers):
    """Items that are new in each pass, divided among workers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker, workers = here()
        for _ in range(worker, self.count, workers):
            yield torch.randn(2)


class NoiseForAll(Numbers):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.count):
            yield torch.randn(2)


class Packed(Numbers):
    """Items that depend on who makes them: four numbers in each, divided among workers before."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker, workers = here()
        numbers = list(range(worker, self.count, workers))
        for at in range(0, len(numbers) - 3, 4):
            yield torch.tensor(numbers[at : at + 4])


class PackedForAll(Numbers):
    """The same, and every worker yields all; each adds one of its own at the end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker, _ = here()
        for at in range(0, self.count - 3, 4):
            yield torch.tensor([at, at + 1, at + 2, at + 3])
        yield torch.tensor([-worker] * 4)


class Constant(Numbers):
    """The same item over and over: nothing can be told from its content, only from its number."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker, workers = here()
        for _ in range(worker, self.count, workers):
            yield torch.zeros(2)


class OneOrder(Numbers):
    """Shuffled by a constant seed, as dividing among workers needs; alike in every epoch."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        rng = numpy.random.default_rng(0)
        worker, workers = here()
        for at in rng.permutation(self.count)[worker::workers]:
            yield torch.tensor([int(at)])


class NewOrder(Numbers):
    """Shuffled by seed and epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        rng = numpy.random.default_rng([0, self.epoch])
        worker, workers = here()
        for at in rng.permutation(self.count)[worker::workers]:
            yield torch.tensor([int(at)])


class UsedUp(Numbers):
    def __init__(self, count: int = 40) -> None:
        self.count = count
        self.left = iter(range(count))

    def positions(self) -> Any:
        return self.left


class Broken(Numbers):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield torch.tensor([0])
        raise RuntimeError("no more lines")


class Table(Dataset):
    def __init__(self, count: int = 40) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.tensor([at])


class OwnGenerator(Table):
    def __init__(self, count: int = 40) -> None:
        super().__init__(count)
        self.rng = numpy.random.default_rng(0)

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.tensor([at + self.rng.random()])


class UnusedGenerator(OwnGenerator):
    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.tensor([at])


class GlobalNumbers(Table):
    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.tensor([at + numpy.random.rand() + random.random()]) + torch.rand(1)


def seed_alike(worker: int) -> None:
    numpy.random.seed(7)


def seed_apart(worker: int) -> None:
    numpy.random.seed(torch.initial_seed() % 2**32)


class OneShuffle(Sampler):
    """A sampler whose order does not follow the epoch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.count, generator=torch.Generator().manual_seed(3)).tolist()


class Longest(OneShuffle):
    """A fixed order that is no shuffling."""

    def __iter__(self) -> Iterator[int]:
        yield from reversed(range(self.count))


class EqualBlocks(OneShuffle):
    """Divides among ranks, and loses the rest."""

    def __iter__(self) -> Iterator[int]:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if dist.is_initialized() else 0
        share = self.count // ranks
        yield from range(rank * share, (rank + 1) * share)


class Strides(OneShuffle):
    """Divides among ranks, with different counts."""

    def __iter__(self) -> Iterator[int]:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if dist.is_initialized() else 0
        yield from range(rank, self.count, ranks)
