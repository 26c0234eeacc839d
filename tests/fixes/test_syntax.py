"""Forms of code around what is edited: all else stays, and what is edited still does the same."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from fixes.cases import split_cases
from fixes.rewriting import HEAD, rewrite

FORMS = split_cases('''
## a chain over several lines
total = 0.0
for i in range(5):
    total += (train()
              .detach()
              .item()  # behind a chain
              )
print(total)

## several statements on a line
a, b = 0.0, 0.0
for i in range(5):
    ß = "äöü"; a += train().item(); b += train().item() * len(x)
print(f"{a=:.4f} {b=:.4f}")

## one line of a loop
total = 0.0
for i in range(5): total += train().item()
print(total)

## text around
total = 0.0
for i in range(5):
    """A text: total += train().item()"""
    total += train().item()  # total += train().item()
    # the end of the loop
print("""
total = float(total)""", total)

## a walrus
total = 0.0
while (i := int(total * 0) + len(str(total)) * 0) < 1 and torch.initial_seed() == 0:
    total += train().item()
    if total:
        break
print(total)

## no line end
total = 0.0
def epoch():
    total = 0.0
    for i in range(5):
        total += train().item()
    return total
print(epoch())

## decorated
import functools
@functools.cache
def epoch(n):
    total = 0.0
    for i in range(n):
        total += train().item()
    return total
print(epoch(3), epoch(3))

## a generator
def epoch():
    total = 0.0
    for i in range(6):
        total += train().item()
        if i % 3 == 2:
            yield total
print(*epoch())

## a lambda
scale = lambda loss: loss.item() * 2
total = 0.0
for i in range(5):
    total += train().item()
    twice = scale(train())
print(total, twice)

## stars and braces
total = 0.0
for i, (j, *rest) in enumerate([(1, 2, 3)] * 5):
    total += train().item()
    if i % 2 == 0:
        print(*[total, j], **{"sep": " "}, end=f"{total!r:>30}\\n")
print(total)
''')


@pytest.mark.parametrize(
    ("ending", "head"), [("\n", ""), ("\r\n", "# -*- coding: latin-1 -*-\n"), ("\r\n", "\ufeff")]
)
@pytest.mark.parametrize("name", FORMS)
def test_form(name: str, head: str, ending: str, tmp_path: Path) -> None:
    encoding = "latin-1" if "latin" in head else "utf-8"
    lines = head + HEAD.replace("    ", "\t") + FORMS[name].replace("    ", "\t").rstrip()
    text = lines.replace("\n", ending)
    rewriting = rewrite(tmp_path, text, head="", encoding=encoding)
    assert rewriting.after.printed == rewriting.before.printed
    assert rewriting.waits[1] <= rewriting.waits[0]
    written = (tmp_path / "script.py").read_bytes()
    assert written.startswith(codecs.BOM_UTF8) == (head == "\ufeff")
    assert written.count(b"\n") == written.count(ending.encode())
    after = iter(rewriting.text.split(ending))
    assert all(line in after for line in text.split(ending) if ".item()" not in line), rewriting.text
    assert "double()" in rewriting.text or name == "a walrus"
