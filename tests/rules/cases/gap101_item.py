import math

import torch

device = "cuda"
loss = torch.rand((), device=device, requires_grad=True)
host = torch.rand(())
total = 0.0
running = torch.zeros((), device=device)

total += loss.item()  # GAP101
total += float(loss.detach())  # GAP101
count = int((loss * 10).detach())  # GAP101
root = math.sqrt(loss.detach())  # GAP101
logs = {"a": loss.item(), "b": running.item()}  # GAP101 x2
both = torch.tensor([loss.detach(), running])  # GAP101 x2
torch.Tensor([running])  # GAP101
torch.stack([loss.detach(), running])  # no wait
for _ in range(3):
    total += loss.item()  # GAP101 x3
    running += loss.detach()  # no wait
host.item()  # no wait
float(host)  # no wait
host.sum().item()  # no wait
loss.cpu().item()  # GAP122
running.mul_(0.5)  # no wait
loss.shape, loss.dtype, loss.device, loss.requires_grad  # no wait
