# needs: torchmetrics
# example: import gapless
# example: import torchmetrics
import torch
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassF1Score, MulticlassRecall

device = "cuda"
logits = torch.randn(8, 5, device=device)
target = torch.arange(8, device=device) % 5
recall = MulticlassRecall(5, average="macro", validate_args=False).to(device)  # GAP127 x9
table = MulticlassConfusionMatrix(5, validate_args=False).to(device)  # GAP127 x3
micro = MulticlassF1Score(5, average="micro", validate_args=False).to(device)  # GAP127 x9

recall.update(logits, target)  # GAP157 x2
table.update(logits, target)  # GAP157 x2
micro.update(logits, target)  # no wait
recall.compute()  # no wait
