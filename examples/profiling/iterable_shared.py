"""The stream, shared by the workers: each of them reads every second row."""

from __future__ import annotations

from collections.abc import Iterator

from common import BATCH, ROWS, make_row, train
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class SharedStream(IterableDataset):
    """Rows in order, of which each worker takes its part."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, ROWS, step):
            yield make_row(index)


def make_loader() -> DataLoader:
    return DataLoader(SharedStream(), batch_size=BATCH, pin_memory=True, num_workers=2)


if __name__ == "__main__":
    train(make_loader())
