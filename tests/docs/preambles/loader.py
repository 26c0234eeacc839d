"""What the page takes for granted."""

import torch
from torch.utils.data import DataLoader, TensorDataset  # noqa: F401

dataset = TensorDataset(torch.ones(8, 2))
