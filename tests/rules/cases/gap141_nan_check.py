# needs: torchmetrics
# example: import gapless
# example: import torchmetrics
import torch
import torchmetrics

device = "cuda"
loss = torch.rand((), device=device)
checked = torchmetrics.MeanMetric().to(device)  # GAP127 x5
total = torchmetrics.SumMetric().to(device)  # GAP127 x3
unchecked = torchmetrics.MeanMetric(nan_strategy="disable").to(device)  # GAP127 x5
on_host = torchmetrics.MeanMetric()

for _ in range(2):
    checked.update(loss)  # GAP141 x4
    total.update(loss)  # GAP141 x4
    unchecked.update(loss)  # no wait
    on_host.update(0.5)  # no wait
checked.compute()  # no wait
checked.reset()  # no wait


class Own(torchmetrics.Metric):
    def __init__(self):
        super().__init__()
        self.add_state("seen", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, value):
        if torch.isnan(value):  # GAP102
            return
        self.seen += value  # no wait

    def compute(self):
        return self.seen


own = Own().to(device)  # GAP127 x3
own.update(loss)
