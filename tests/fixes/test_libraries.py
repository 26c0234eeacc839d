"""Waits inside libraries that an argument, or a line more, takes out."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixes.cases import split_cases
from fixes.rewriting import rewrite

WRITTEN = split_cases("""
## torchmetrics
import torchmetrics
class Task:
    def __init__(self):
        self.mean = torchmetrics.MeanMetric().to("cuda")
        self.accuracy = {"a": 1}
task = Task()
accuracy = torchmetrics.MeanMetric(
    nan_strategy="warn",  # the usual
).to("cuda")
for i in range(5):
    loss = train().detach()
    accuracy.update(loss)
print(f"{accuracy.compute().item():.6f}")

## fused
adam = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
for i in range(5):
    scaler.scale(model(x).square().mean()).backward()
    scaler.step(adam)
    scaler.update()
    adam.zero_grad()
print(f"{model(x).sum().item():.3f}")

## accelerate
from accelerate import Accelerator
from torch.utils.data import DataLoader
accelerator = Accelerator()
feed = accelerator.prepare(DataLoader([torch.ones(40000)] * 8, batch_size=2))
for y in feed:
    z = train().detach() + y.sum()
print(f"{z.item():.3f}")
""")
ADDED = {
    "torchmetrics": "unwait(accuracy)\n",
    "fused": "torch.optim.Adam(model.parameters(), lr=0.01, fused=True)",
    "accelerate": "Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_added_waits_less(name: str, tmp_path: Path) -> None:
    if name != "fused":
        pytest.importorskip(name)
    rewriting = rewrite(tmp_path, WRITTEN[name])
    assert ADDED[name] in rewriting.text, rewriting.refusals
    assert rewriting.after.printed == rewriting.before.printed
    assert rewriting.waits[0] - rewriting.waits[1] >= 4


LEFT = split_cases("""
## several places
import torchmetrics
mean = torchmetrics.MeanMetric().to("cuda")
mean = torchmetrics.MeanMetric().to("cuda")
for i in range(5):
    mean.update(train().detach())

## set where the optimizer is made
adam = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
scaler = torch.amp.GradScaler("cuda")
for i in range(5):
    scaler.scale(model(x).square().mean()).backward()
    scaler.step(adam)
    scaler.update()
""")


@pytest.mark.parametrize("name", LEFT)
def test_what_is_said_elsewhere_is_left(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    rewriting = rewrite(tmp_path, LEFT[name])
    reason = "is made in 2 places" if name == "several places" else "say how it computes"
    assert reason in " ".join(rewriting.refusals)
