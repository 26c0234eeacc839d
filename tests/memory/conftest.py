"""Fixtures for the caching allocator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gapless.memory.allocator import Allocator
from gapless.memory.driver import UNLIMITED, Driver
from gapless.memory.settings import parse

SNAPSHOTS = Path(__file__).resolve().parents[3] / "shared" / "snapshots"


@pytest.fixture
def make_allocator() -> Callable[..., Allocator]:
    """``make_allocator("max_split_size_mb:128", capacity=…, total=…)`` returns an empty allocator."""

    def make(settings: str = "", capacity: int = UNLIMITED, total: int = -1) -> Allocator:
        return Allocator(parse(settings), Driver(capacity), total)

    return make


@pytest.fixture
def snapshot() -> Callable[[str], Path]:
    """``snapshot("tiny.pickle")``: a real snapshot, where there are some."""

    def find(name: str) -> Path:
        path = SNAPSHOTS / name
        if not path.exists():
            pytest.skip("no real snapshots here")
        return path

    return find
