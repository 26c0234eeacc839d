"""The rows as a stream, read by two workers: each of them reads all of it, so every row comes twice."""

from __future__ import annotations

from collections.abc import Iterator

from common import BATCH, ROWS, make_row, train
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """Rows in order."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for index in range(ROWS):
            yield make_row(index)


def make_loader() -> DataLoader:
    return DataLoader(Stream(), batch_size=BATCH, pin_memory=True, num_workers=2)


if __name__ == "__main__":
    train(make_loader())
