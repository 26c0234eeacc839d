"""The same rows, made by processes of their own beside the training."""

from __future__ import annotations

from common import BATCH, train
from starved import Rows
from torch.utils.data import DataLoader


def make_loader(workers: int = 2) -> DataLoader:
    return DataLoader(Rows(), batch_size=BATCH, pin_memory=True, num_workers=workers, persistent_workers=True)


if __name__ == "__main__":
    train(make_loader())
