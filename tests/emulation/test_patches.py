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


def test_what_imports_a_replacement_later_is_restored_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be it a new module, or a package that looks its names up when they are first used."""
    owner = module(monkeypatch, "paper", first=1)
    lazy = module(monkeypatch, "paper.lazy")
    same = module(monkeypatch, "paper.same", first=10)
    patches = Patches()
    patches.set_everywhere(owner, "first", 5, package="paper")
    late = module(monkeypatch, "paper.late", first=owner.first)
    lazy.first = owner.first
    patches.set_everywhere(owner, "first", 7, package="paper")
    later = module(monkeypatch, "paper.later", first=owner.first)
    patches.undo()
    assert [each.first for each in (owner, lazy, late, later, same)] == [1, 1, 1, 1, 10]


def test_what_held_the_replacement_before_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = module(monkeypatch, "paper", first=1)
    other = module(monkeypatch, "paper.other", first=10)
    patches = Patches()
    patches.set_everywhere(owner, "first", 10, package="paper")
    patches.undo()
    assert (owner.first, other.first) == (1, 10)


def test_a_module_replaced_under_its_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = module(monkeypatch, "paper", first=1)
    module(monkeypatch, "paper.newest", first=1)
    earlier = Patches()
    earlier.set_everywhere(owner, "first", 5, package="paper")
    earlier.undo()
    replacement = module(monkeypatch, "paper.newest", first=1)
    patches = Patches()
    patches.set_everywhere(owner, "first", 10, package="paper")
    assert replacement.first == 10
    patches.undo()
    assert replacement.first == 1
