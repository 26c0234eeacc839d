"""Damaged profiles never contradict the whole ones unless it is said that evidence is missing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
SMALL, OTHER = "worker2_step_12.1694128201554-0038", "worker0_step_12.1694128201545-b35a"


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@cache
def _loaded() -> tuple[Any, Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return _module("_damage"), _module("damaged")
    finally:
        sys.path.remove(str(BENCHMARKS))


@cache
def _whole() -> tuple[Any, dict[str, float]]:
    damage, damaged = _loaded()
    paths = [next(TRACES.glob(f"*{name}*")) for name in (SMALL, OTHER)]
    whole = damage.Whole(*(damaged._bytes(path) for path in paths))
    return whole, damaged.shares(damaged.profile_file(str(paths[0])))


def _kinds() -> Iterator[str]:
    if BENCHMARKS.is_dir():
        yield from sorted(_loaded()[0].KINDS)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the folder of public traces is absent")
@pytest.mark.parametrize("kind", list(_kinds()))
def test_no_contradiction_without_a_word(kind: str) -> None:
    damage, damaged = _loaded()
    whole, of_whole = _whole()
    said, points, error = damaged.examine(damage.damage_profile(whole, kind, 1), of_whole)
    assert error == ""
    assert said or points <= damaged.MAX_DIFFERENCE
