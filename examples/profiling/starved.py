"""Rows are made in the training process, while the GPU has nothing to do."""

from __future__ import annotations

from common import BATCH, ROWS, make_row, train
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows by their index."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return make_row(index)


def make_loader() -> DataLoader:
    return DataLoader(Rows(), batch_size=BATCH, pin_memory=True)


if __name__ == "__main__":
    train(make_loader())
