# needs: torchmetrics
# example: import gapless
# example: import torchmetrics
import torch
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy

device = "cuda"
logits = torch.randn(8, 5, device=device)
target = torch.arange(8, device=device) % 5
score = torch.rand(8, device=device)
binary = BinaryAccuracy().to(device)  # GAP127 x9
unchecked = BinaryAccuracy(validate_args=False).to(device)  # GAP127 x9
micro = MulticlassAccuracy(5, average="micro", validate_args=False).to(device)  # GAP127 x9

binary.update(score, target % 2)  # GAP156 x2
unchecked.update(score, target % 2)  # no wait
micro.update(logits, target)  # no wait
binary.compute()  # no wait
