"""Graph breaks in functions two files away from the script."""

import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from far.model import Net

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = torch.compile(Net().to(device))
for _ in range(3):
    net(torch.randn(4, 8, device=device)).sum().backward()
