# needs: torchmetrics
# example: import torchmetrics
import torch
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy
from torchmetrics.regression import MeanSquaredError

device = "cuda"
logits = torch.randn(8, 5, device=device)
target = torch.arange(8, device=device) % 5
ignoring = MulticlassAccuracy(5, average="micro", ignore_index=0, validate_args=False).to(device)  # GAP127 x9
area = BinaryAUROC(validate_args=False).to(device)  # GAP127 x1
error = MeanSquaredError().to(device)  # GAP127 x5

ignoring.update(logits, target)  # GAP159 x2
area.update(torch.rand(8, device=device), target % 2)  # no wait
area.compute()  # GAP159 x3
error.update(logits, logits)  # no wait
error.compute()  # no wait
