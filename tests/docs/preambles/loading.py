"""What docs/loading.md takes for granted."""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, TensorDataset

dataset = [torch.arange(1 + at % 9) for at in range(40)]
lengths = [len(item) for item in dataset]
epochs = 2
loader = DataLoader(TensorDataset(torch.arange(24)), batch_size=6)


def make_loader() -> DataLoader:
    return loader


def read_lines() -> Iterator[int]:
    yield from range(100)


def train() -> None:
    for _ in loader:
        pass


def train_step(batch: list[torch.Tensor]) -> None:
    assert batch[0].is_cuda
