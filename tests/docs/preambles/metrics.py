"""What docs/metrics.md takes for granted."""

import os  # noqa: F401
from typing import Any  # noqa: F401

import torch
from torch import Tensor

from gapless.metrics import Throughput, merge_states  # noqa: F401

device = "cuda"
loader = [(torch.ones(4, 8, device=device), torch.arange(4, device=device)) for _ in range(2)]
model = torch.nn.Linear(8, 1000).to(device)
criterion = torch.nn.CrossEntropyLoss()
states: list[dict[str, Tensor]] = []
rank, processes = 0, 1
