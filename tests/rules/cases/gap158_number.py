# needs: torchmetrics
# example: import torchmetrics
import torch
import torchmetrics

device = "cuda"
loss = torch.rand((), device=device)
mean = torchmetrics.MeanMetric().to(device)  # GAP127 x5
quiet = torchmetrics.MeanMetric(nan_strategy="disable").to(device)  # GAP127 x5
on_host = torchmetrics.MeanMetric()

mean.update(loss, weight=8)  # GAP158, GAP141 x2
quiet.update(1.5)  # GAP158
quiet.update(torch.full_like(loss, 1.5))  # no wait
on_host.update(1.5, weight=8)  # no wait
