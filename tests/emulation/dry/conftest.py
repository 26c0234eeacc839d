"""A dry run, for all tests of them."""

from __future__ import annotations

import pytest

import gapless


@pytest.fixture
def dry():
    with gapless.emulate(dry=True) as emulation:
        yield emulation
