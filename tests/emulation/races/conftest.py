"""Races are looked for where torch tells when memory ends."""

from __future__ import annotations

import pytest

from gapless.emulation.memory.requests import reports_storage_ends
from gapless.torch_internals import VERSION


@pytest.fixture(autouse=True)
def ends_are_told() -> None:
    if not reports_storage_ends():
        pytest.skip(f"torch 2.{VERSION[1]} does not tell when storages end")
