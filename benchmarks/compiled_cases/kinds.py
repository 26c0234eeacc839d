"""Arguments of many kinds: named tuples, sizes, dtypes, devices, enumerations, numpy arrays, strings."""

import enum
from typing import NamedTuple

import numpy as np
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Mode(enum.Enum):
    MEAN = 1
    SUM = 2


class Batch(NamedTuple):
    x: torch.Tensor
    length: int


@torch.compile
def reduced(batch, mode, dtype, weights=None):
    x = batch.x[: batch.length].to(dtype)
    if weights is not None:
        x = x * torch.as_tensor(weights, device=x.device, dtype=dtype)
    return x.mean() if mode is Mode.MEAN else x.sum()


x = torch.randn(8, 4, device=device)
reduced(Batch(x, 8), Mode.MEAN, torch.float32)
reduced(Batch(x, 8), Mode.SUM, torch.float32)
reduced(Batch(x, 5), Mode.SUM, torch.float64)
reduced(Batch(x, 4), Mode.MEAN, torch.float32, np.ones(4, dtype=np.float32))
reduced(Batch(x, 3), Mode.MEAN, torch.float32, [1.0, 2.0, 3.0, 4.0])
