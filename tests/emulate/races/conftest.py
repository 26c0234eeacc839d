"""Races are looked for where torch tells when memory ends."""

from __future__ import annotations

import pytest

from gapless.emulation.memory.requests import supported
from gapless.torch_internals import VERSION


@pytest.fixture(autouse=True)
def ends_are_told() -> None:
    if not supported():
        pytest.skip(f"torch 2.{VERSION[1]} does not tell when storages end")
