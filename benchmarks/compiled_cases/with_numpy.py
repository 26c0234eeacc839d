"""NumPy in a compiled function: traced where it can be, and left where it cannot."""

import numpy as np
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
np.random.seed(0)
net = nn.Linear(8, 8).to(device)


@torch.compile
def scored(x):
    y = net(x)
    weights = np.linspace(0.0, 1.0, 8)
    y = y * torch.as_tensor(weights, dtype=y.dtype, device=y.device)
    best = np.random.choice(4)
    return y[int(best)].sum()


with torch.no_grad():
    for _ in range(3):
        scored(torch.randn(4, 8, device=device))
