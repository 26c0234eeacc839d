"""Numbers that a list keeps are read at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixes.cases import split_cases
from fixes.rewriting import Rewriting, rewrite

LISTS = split_cases("""
## behind the loop
losses = []
for i in range(6):
    losses.append(train().item())
print(losses, len(losses))

## for each epoch
for epoch in range(2):
    losses = []
    for i in range(4):
        losses.append(train().item())
    print(sum(losses) / len(losses))

## changed in place
losses = []
for i in range(6):
    loss = train().detach()
    losses.append(loss.item())
    loss *= 0
print(losses)

## whole numbers
hits = []
for i in range(6):
    train()
    hits.append((model(x) > 0).sum().item())
print(hits)

## an empty loop
losses = []
for i in range(6):
    losses.append(train().item())
print(losses)
losses = []
print(losses)
""")


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_read_once(name: str, tmp_path: Path) -> None:
    _check_read_once(rewrite(tmp_path, LISTS[name]))


def _check_read_once(rewriting: Rewriting) -> None:
    assert rewriting.refusals == []
    assert rewriting.after.printed == rewriting.before.printed
    assert rewriting.waits[1] <= 3


REFUSED = split_cases("""
## shown in each step
losses = []
for i in range(6):
    losses.append(train().item())
    print(losses[-1])

## in a tuple
losses = []
for i in range(6):
    losses.append((i, train().item()))
print(losses)

## begun with a number
losses = [0.0]
for i in range(6):
    losses.append(train().item())
print(losses)

## filled twice
losses = []
for i in range(6):
    losses.append(train().item())
    losses.append(0.5)
print(losses)

## read for each epoch and filled on
losses = []
for e in range(2):
    for i in range(4):
        losses.append(train().item())
    print(losses)

## read now and then and filled on
losses = []
for i in range(6):
    losses.append(train().item())
    if i % 2:
        print(losses)

## handed on before the loop
losses = []
last = lambda values=losses: values[-1]
for i in range(6):
    losses.append(train().item())
    print(last())

## another name
losses = history = []
for i in range(6):
    losses.append(train().item())
    if len(history) > 100:
        print(history[-1])
print(losses)

## an error that leaves the loop
import contextlib
losses = []
with contextlib.suppress(ArithmeticError):
    for i in range(6):
        losses.append(train().item())
        1 / (4 - i)
print(losses)

## no list
import collections
losses = collections.deque()
for i in range(6):
    losses.append(train().item())
print(losses)
""")


@pytest.mark.parametrize("name", REFUSED)
def test_a_list_of_something_else_is_left(name: str, tmp_path: Path) -> None:
    rewriting = rewrite(tmp_path, REFUSED[name])
    assert rewriting.refusals
    assert "stack" not in rewriting.text


def test_a_list_that_begins_anew_is_read_now_and_then(tmp_path: Path) -> None:
    text = REFUSED["read now and then and filled on"]
    _check_read_once(rewrite(tmp_path, text + "        losses = []\n"))
