"""Each rewrite: what it writes waits less and prints the same; and where it leaves the code alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixes.cases import split_cases
from fixes.rewriting import rewrite

WRITTEN = split_cases("""
## a number is filled in
for i in range(5):
    y = train() * torch.tensor(0.5, device="cuda") + torch.as_tensor(2, device="cuda", dtype=torch.float32)
print(y.tolist())

## a list is copied by the call
for i in range(5):
    y = train() * torch.tensor([0.5, 1.5], dtype=torch.float64, device=x.device).sum()
print(y.tolist(), y.dtype)

## a factory has the device
device = torch.device("cuda")
for i in range(5):
    y = train() * torch.zeros(3, dtype=torch.half).to(device) + (torch.ones(3)).to("cuda")
    y = y + torch.arange(3).cuda()
print(y.tolist(), y.dtype)

## a number in where
for i in range(5):
    y = torch.where(x > 0, torch.tensor(0.0), x); train()
print(y.tolist())

## a number through an index
rows = torch.arange(2, device="cuda")
for i in range(5):
    x[rows] = 1.0; x[0, 1] = -2
    train()
print(x.tolist())

## a name that few steps need
for i in range(6):
    value = train().mean().item()
    train()
    if i % 3 == 0:
        print(value)

## a bound
for i in range(5):
    n = max((x > i).sum().item(), 1)
    y = x / n
    train()
print(y.tolist())

## elements of a loop
order = torch.tensor([2, 0, 1], device="cuda")
for i in range(5):
    for j, k in zip(range(3), order):
        print(j, k.item(), int(k), end=" ")
    print([k.item() for k in order])
    train()

## a size that is given
labels = torch.tensor([0, 2, 1], device="cuda")
for i in range(5):
    y = torch.bincount(labels, minlength=4) + torch.nn.functional.one_hot(labels, 4).sum(0); train()
print(y.tolist())

## a masked sum
mask = x > 0
for i in range(5):
    y = x[mask].sum(); train()
print(f"{y.item():.3f}")

## a masked mean of rows
mask = x[:, 0] > 0
for i in range(5):
    y = (x * i)[mask].mean(); train()
print(f"{y.item():.5f}")

## a masked loss
from torch.nn import functional as F
target = torch.randint(0, 4, (8,), device="cuda"); keep = target != 3
for i in range(5):
    loss = F.cross_entropy(
        x[keep], target[keep], label_smoothing=0.1)
    squares = F.mse_loss(x[keep], (x * 2)[keep], reduction="sum")  # of rows
    train()
print(f"{loss.item():.5f} {squares.item():.4f}")

## a choice
for i in range(5):
    loss = train().detach()
    if torch.isnan(loss) | (loss > 0.2):
        loss = torch.zeros_like(loss)
    if loss < 0.1:
        loss *= 2.0
    else:
        loss = loss + 1
print(f"{loss.item():.5f}")

## several numbers in a statement
for i in range(5):
    loss, other = train(), (x * i).mean()
    print(f"{loss.item():.6f} {i} {other.item()}", float(x.sum()), (x > 0).sum().item())

## several numbers in a row
for i in range(5):
    loss = train()
    a = loss.item() * 2
    b = x.sum().item()
    print(a, b) if a > b else print(b)

## arrays of a type for CUDA
import numpy
Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
for i in range(5):
    y = Tensor(numpy.ones((2, 3)) * i) + train().detach()
print(y.tolist())

## large memory of one's own
y = torch.randn(40000)
for i in range(5):
    z = (y * i).to("cuda") + train().detach()
print(z.sum().item())
""")


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_waits_less(name: str, tmp_path: Path) -> None:
    rewriting = rewrite(tmp_path, WRITTEN[name])
    assert rewriting.after.printed == rewriting.before.printed, rewriting.text
    before, after = rewriting.waits
    assert before - after >= 4, (rewriting.text, rewriting.refusals)
    assert not rewriting.after.session.races


LEFT = split_cases("""
## other numbers than on the CPU
for i in range(5):
    y = torch.full((2,), 0.5).to("cuda", torch.half); train()
print(y.tolist())

## the variable is needed in every step
for i in range(5):
    value = train().item()
    print(value)

## a loop whose elements are tensors
order = torch.tensor([2, 0, 1], device="cuda")
for i in range(5):
    for k in order:
        print(k.item(), x[k].sum().tolist())
    train()

## rows that are used
mask = x > 0
for i in range(5):
    y = x[mask].sort().values; train()
print(y.sum().item() > 0)

## two masks
mask, other = x > 0, x <= 0
for i in range(5):
    y = torch.nn.functional.mse_loss(x[mask][:2], x[other][:2]); train()
print(y.item() > 0)

## a loss of each element
from torch.nn import functional as F
mask = x > 0
for i in range(5):
    y = F.mse_loss(x[mask], x[mask], reduction="none"); train()
print(y.shape)

## a branch that acts
for i in range(5):
    loss = train()
    if loss > 0.1:
        loss = train()
print(f"{loss.item():.5f}")

## an elif
for i in range(5):
    loss = train().detach()
    if i % 2 == 0:
        y = 1
    elif loss > 0.1:
        loss = loss * 2
    print(f"{loss.item():.5f}")

## a loop that may not run
for n in (2, 0):
    for i in range(n):
        value = train().item()
    if n:
        print(value)

## a value that the code does not show
rows = torch.arange(2, device="cuda")
for i in range(5):
    x[rows] = float(i); train()
print(x.tolist())

## an argument called ops
mask = x > 0
def total(ops):
    return x[mask].sum() * ops
for i in range(5):
    y = total(1); train()
print(f"{y.item():.5f}")

## a leaf on the CPU
for i in range(5):
    w = torch.ones(3, requires_grad=True).to("cuda"); (train().detach() + w.sum()).backward()
print(w.is_leaf)

## an element in a function of its own
def value(): return k.item()
order = torch.tensor([2, 0, 1], device="cuda")
for i in range(5):
    for k in order: print(k.item(), value())
    train()

## weights of each selected element
from torch.nn import functional as F
mask, weight = x > -100, torch.rand(32, device="cuda")
for i in range(5):
    y = F.binary_cross_entropy_with_logits(x[mask], (x > 0).float()[mask], weight=weight); train()
print(f"{y.item():.5f}")

## one sample
from torch.nn import functional as F
mask, target = x[0] > 0, x[1].softmax(0)
for i in range(5):
    y = F.cross_entropy(x[0][mask], target[mask]); train()
print(f"{y.item():.5f}")

## a check that is handled
for i in range(5):
    try:
        y = torch.nn.functional.one_hot(torch.arange(3, device="cuda"), 4)
    except RuntimeError:
        y = None
    train()
print(y.tolist())

## a function that may change what is read
w, b = torch.zeros((), device="cuda"), torch.ones((), device="cuda")
def step():
    if i > 100: w.add_(1)
for i in (1, 2, 3, 4):
    train()
    print(step(), w.item(), b.item())

## the body of a class
for i in (1, 2, 3, 4):
    class Values:
        both = (train().item(), x.sum().item())
    print([name for name in vars(Values) if not name.startswith("__")])

## elements that a function changes
w = torch.zeros(3, device="cuda")
def bump():
    if i > 100: w.add_(1)
for i in (1, 2, 3, 4):
    for k in w:
        print(k.item(), end=" ")
        bump()
    train()

## something else called ops
class ops: masked_sum = None
ops = ops()
mask = x > 0
for i in range(5):
    y = x[mask].sum(); train()
print(f"{y.item():.5f}")
""")


@pytest.mark.parametrize("name", LEFT)
def test_what_could_be_wrong_is_left(name: str, tmp_path: Path) -> None:
    rewriting = rewrite(tmp_path, LEFT[name])
    assert rewriting.after.printed == rewriting.before.printed
    assert rewriting.refusals


def test_what_is_shown_less_often_is_only_suggested(tmp_path: Path) -> None:
    text = "for i in range(5):\n    print(f'{train().item():.6f}')\n"
    rewriting = rewrite(tmp_path, text)
    assert rewriting.text.endswith(text)
    (fix,) = (fix for fix in rewriting.fixes if fix.waits)
    assert (fix.level, fix.edits[0].text) == ("suggested", "if i % 50 == 0:\n        ")


def test_random_numbers_stay_those_of_the_cpu(tmp_path: Path) -> None:
    text = "for i in range(5):\n    y = torch.randn(3).to('cuda')\n    train()\nprint(y.tolist())\n"
    rewriting = rewrite(tmp_path, text)
    assert "torch.randn(3).to('cuda', non_blocking=True)" in rewriting.text
    assert rewriting.after.printed == rewriting.before.printed


def test_a_number_that_float32_rounds_may_be_rounded(tmp_path: Path) -> None:
    text = "for i in range(5):\n    y = torch.where(x.double() > 9, torch.tensor(0.1), x); train()\n"
    rewriting = rewrite(tmp_path, text)
    assert [fix.level for fix in rewriting.fixes if fix.edits] == ["rounding"]
