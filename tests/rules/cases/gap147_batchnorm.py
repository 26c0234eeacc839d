import torch
from torch import nn

x = torch.randn(8, 4, device="cuda")
plain = nn.BatchNorm1d(4, momentum=None, device="cuda")  # GAP121
usual = nn.BatchNorm1d(4, device="cuda")  # GAP121

plain(x)  # GAP147
usual(x)  # no wait
plain.eval()
plain(x)  # no wait
