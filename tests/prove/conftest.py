"""Fixtures for tests of `compare`."""

from __future__ import annotations

import pytest

from gapless.prove import proving
from gapless.prove.waits import EmulatedCosts


@pytest.fixture
def nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are another matter, and take the longer part of the time."""
    monkeypatch.setattr(proving, "count_costs", lambda setup: EmulatedCosts())
