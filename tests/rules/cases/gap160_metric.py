# example: import gapless
import gapless.metrics
import torch

device = "cuda"
logits, y = torch.randn(8, 5, device=device), torch.arange(8, device=device) % 5
accuracy = gapless.metrics.classification.MulticlassAccuracy(5).to(device)
scores = gapless.metrics.MetricCollection([gapless.metrics.classification.MulticlassF1Score(5)]).to(device)

accuracy.update(logits, y)  # no wait
accuracy.compute().item()  # GAP160
float(accuracy(logits, y))  # GAP160
value = accuracy.compute()  # no wait
print(value)  # GAP160
scores.update(logits, y)  # no wait
result = scores.compute()  # no wait
print(f"{result['MulticlassF1Score']:.3f}")  # GAP160
(accuracy.compute() * 100).item()  # GAP101
logits.sum().item()  # GAP101
reading = accuracy.read()  # no wait
