"""What is replaced is replaced wherever a module has imported it, and put back."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from gapless.emulation.support.patches import Patches


def module(monkeypatch: pytest.MonkeyPatch, name: str, **held: Any) -> Any:
    new_module = ModuleType(name)
    vars(new_module).update(held)
    monkeypatch.setitem(sys.modules, name, new_module)
    return new_module


def test_wherever_it_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    before, other, after = (lambda: None for _ in range(3))
    owner = module(monkeypatch, "paper", call=before, untouched=1)
    inside = module(monkeypatch, "paper.inside", call=before)
    another = module(monkeypatch, "paper.another", call=other)
    outside = module(monkeypatch, "paperback", call=before)
    patches = Patches()
    patches.set_everywhere(owner, "call", after, package="paper")
    assert [each.call for each in (owner, inside, another, outside)] == [after, after, other, before]
    patches.undo()
    assert [each.call for each in (owner, inside, another, outside)] == [before, before, other, before]


def test_modules_that_come_later_or_were_half_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names count from when they are there, be it for what is replaced next."""
    owner = module(monkeypatch, "paper", first=1, second=2, third=3)
    half = module(monkeypatch, "paper.half", first=1)
    patches = Patches()
    patches.set_everywhere(owner, "first", 10, package="paper")
    late = module(monkeypatch, "paper.late", second=2)
    half.second = 2
    patches.set_everywhere(owner, "second", 20, package="paper")
    assert (late.second, half.second) == (20, 20)
    patches.set_everywhere(owner, "fourth", 40, package="paper")
    patches.undo()
    assert (late.second, half.second, hasattr(owner, "fourth")) == (2, 2, False)
