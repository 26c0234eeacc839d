"""Sums of numbers that are read move to the GPU, or the reason why not is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixes.cases import split_cases
from fixes.rewriting import rewrite

LOOPS = split_cases("""
## a sum
total = 0.0
for i in range(6):
    total += train().item()
print(total)

## a difference
total = 5.0
for i in range(6):
    total -= train().item()
print(total)

## a count
count = 0
for i in range(6):
    train()
    count += (model(x) > 0).sum().item()
print(count, count / 2)

## a count in floats
count = 0.0
for i in range(6):
    train()
    count += (model(x) > 0).sum().item()
print(count)

## truths
count = 0
for i in range(6):
    train()
    count += (model(x) > 0).any().item()
print(count)

## a conversion
total = 0.0
for i in range(6):
    total += float((train() * 2).detach())
print(total)

## a product
total = 0.0
for i in range(6):
    total += train().item() * len(x) / 3
print(total)

## several at once
total, count = 0.0, 0
for i in range(6):
    total += train().item(); count += 1
print(total / count)

## a quotient of two reads, which may be by zero
ratio = 0.0
for i in range(6):
    train()
    ratio += (x > 0).sum().item() / (x > -9).sum().item()
print(ratio)

## a mean of whole numbers
mean = 0
for i in range(6):
    train()
    mean = mean / 2 + (x > 0).sum().item()
print(mean)

## a moving mean
mean = 0.0
for i in range(6):
    mean = 0.9 * mean + 0.1 * train().item()
print(mean)

## shown now and then
total = 0.0
for i in range(6):
    total += train().item()
    if i % 3 == 2:
        print(f'{total / 3:.9f}', f'{total=}')
        total = 0.0
print(total)

## begun anew with a whole number
total = 0
for i in range(6):
    total += train().item()
    if i % 3 == 2:
        print(total)
        total = 0
print(total)

## in a function
def epoch():
    total = 0
    for i in range(6):
        total += train().item()
    return total / 6
print(epoch(), epoch())

## kept behind the loop
total, curve = 0.0, []
for epoch in range(2):
    for i in range(4):
        total += train().item()
    curve.append(total)
print(curve)

## divided in place
count = 0
for i in range(6):
    train()
    count += (model(x) > 0).sum().item()
    # the end
count /= 7
print(count)

## one dimension
total = 0.0
for i in range(6):
    total += train().view(1).item()
print(total)

## half precision
total = 0.0
for i in range(6):
    total += train().bfloat16().item()
print(total)

## left early
def epoch():
    total = 0.0
    for i in range(9):
        total += train().item()
        if i == 6:
            return total
print(epoch())

## through the CPU
total = 0.0
for i in range(6):
    total += train().detach().cpu().item()
print(total)

## a small loop inside
total = 0.0
for i in range(6):
    for part in (train(), train()):
        total += part.item()
print(total)
""")


@pytest.mark.parametrize("name", LOOPS)
def test_a_sum_is_read_once(name: str, tmp_path: Path) -> None:
    rewriting = rewrite(tmp_path, LOOPS[name])
    assert rewriting.refusals == []
    assert rewriting.after.printed == rewriting.before.printed
    assert rewriting.waits[1] <= rewriting.waits[0] / 2, rewriting.text


REFUSED = split_cases("""
## `h` becomes at line 15
h = 7
for i in range(6):
    train()
    h = h * 31 + (x > 0).sum().item()
print(h)

## in every step at line 15
total = 0.0
for i in range(6):
    total += train().item()
    print(total)

## another scope
total = 0.0
def add():
    global total
    total += train().item()
for i in range(6):
    add()

## in another function at line 14
total = 0.0
def show():
    print(total)
for i in range(6):
    total += train().item()
show()

## argument
def f(total):
    for i in range(6):
        total += train().item()
    return total
print(f(0))

## used in a call
total = 0.0
for i in range(6):
    total += round(train().item(), 2)
print(total)

## not only added
total = 0.0
for i in range(6):
    total += sum(v.item() for v in [train()])
print(total)

## not known
import numpy
total = numpy.float64(0)
for i in range(6):
    total += train().item()
print(total)

## converts
count = 0
for i in range(6):
    count += int(train())
print(count)

## changes between its reads
total = 0.0
for i in range(6):
    total += train().item()
    if i % 2:
        print(total)
        total += train().item()

## attribute of a class
class Log:
    total = 0.0
    for i in range(6):
        total += train().item()

## by its name
total = 0.0
for i in range(6):
    total += train().item()
print(eval('total'))
""")


@pytest.mark.parametrize("reason", REFUSED)
def test_a_sum_that_others_use_is_left(reason: str, tmp_path: Path) -> None:
    rewriting = rewrite(tmp_path, REFUSED[reason])
    assert reason in " ".join(rewriting.refusals)
    assert rewriting.after.printed == rewriting.before.printed
    assert rewriting.waits[1] > 4


AFTER_ERRORS = split_cases("""
## in finally
try:
    for i in range(6):
        total += train().item()
finally:
    print(total)

## behind a context of the project
class Quiet:
    def __enter__(self): pass
    def __exit__(self, *error): return True
with Quiet():
    for i in range(6):
        total += train().item()
        1 / (4 - i)
print(total)

## behind a handler
try:
    for i in range(6):
        total += train().item()
        1 / (4 - i)
except ZeroDivisionError:
    pass
print(total)
""")


@pytest.mark.parametrize("name", AFTER_ERRORS)
def test_a_sum_that_is_needed_after_an_error_is_left(name: str, tmp_path: Path) -> None:
    rewriting = rewrite(tmp_path, f"total = 0.0\n{AFTER_ERRORS[name]}")
    assert "may leave the loop before `total` is needed" in " ".join(rewriting.refusals)
    assert rewriting.after.printed == rewriting.before.printed


def test_a_handler_that_raises_again_hinders_no_sum(tmp_path: Path) -> None:
    body = "try:\n    for i in range(6):\n        total += train().item()\nexcept OSError:\n    raise\n"
    rewriting = rewrite(tmp_path, f"total = 0.0\n{body}print(total)\n")
    assert rewriting.refusals == []
    assert rewriting.after.printed == rewriting.before.printed


def test_a_quotient_may_be_rounded(tmp_path: Path) -> None:
    text = "total = 0.0\nfor i in range(6):\n    total += train().item() / 3\nprint(total)\n"
    rewriting = rewrite(tmp_path, text)
    assert [fix.level for fix in rewriting.fixes if fix.edits] == ["rounding"]
